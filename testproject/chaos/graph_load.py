"""Who enqueues graphs of run groups, repairs them and retries: until the database has said yes, as any client."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from django.db import Error, connections

from pgbroker import DeferredRef, Edge, GroupRef, JobRef, get_group, run_group, tenant_context
from pgbroker.errors import GroupExists
from pgbroker.registry import Call
from testproject.chaos import graph_plans, jobs
from testproject.chaos.graph_plans import Graph, Group, Member, callback_tag, graphs
from testproject.chaos.models import Repaired

AGAIN_SECONDS = 0.1
# How long what was stored late may be waited for.
WITHIN = timedelta(hours=1)


class GraphLoad(threading.Thread):
    """
    Enqueue graphs, one after the other, evenly.

    `stored` is the ledger: every graph whose groups the database said it has. Nothing in them may be lost.
    """

    def __init__(self, *, seed: int, rate: float) -> None:
        super().__init__(name="chaos-graphs", daemon=True)
        self.rate = rate
        self.stored: list[Graph] = []
        self.trouble: BaseException | None = None
        self.errors = 0
        self._graphs = graphs(seed)
        self._dice = random.Random(seed)
        self._over = threading.Event()

    def stop(self) -> list[Graph]:
        """Begin no more graphs; returns those that are stored."""
        self._over.set()
        self.join(60)
        if self.is_alive() or self.trouble is not None:
            raise AssertionError(f"the graphs did not come to an end: {self.trouble!r}")
        return self.stored

    def run(self) -> None:
        """Store graphs until told to stop."""
        try:
            while not self._over.wait(self._dice.expovariate(self.rate)):
                self._store(next(self._graphs))
        except BaseException as error:
            self.trouble = error
        finally:
            connections.close_all()

    def _store(self, graph: Graph) -> None:
        groups = {group.name: group for group in graph.groups}
        for place, name in enumerate(graph.stored):
            there = set(graph.stored[:place])
            self.errors += until_done(lambda group=groups[name], there=there: store(graph, group, there))
        for group in graph.groups:
            if group.is_cancelled:
                self.errors += until_done(lambda group=group: cancel(graph, group))
        self.stored.append(graph)


def until_done(act: Callable[[], object]) -> int:
    """Do it again until it is done, whatever the fault; returns how often it failed."""
    failed = 0
    while True:
        try:
            act()
        except Error:
            failed += 1
            connections.close_all()
            time.sleep(AGAIN_SECONDS)
        else:
            return failed


def store(graph: Graph, group: Group, there: set[str]) -> None:
    """Store one group, whole; one that is there already was stored by a call whose answer was lost."""
    with tenant_context(graph.tenant):
        try:
            with run_group(
                group.name,
                tolerate=group.tolerate,
                on_completed=_callback(group, "completed"),
                on_failed=_callback(group, "failed"),
                depends_on=[Edge(GroupRef(edge.group), edge.on_failure) for edge in group.edges],
            ) as handle:
                calls = [_call(graph, group, member, there) for member in group.members]
                for outcome in handle.enqueue_many(calls):
                    if outcome.error is not None:
                        raise outcome.error
        except GroupExists:
            pass


def cancel(graph: Graph, group: Group) -> None:
    """Cancel a group, as an operator does."""
    with tenant_context(graph.tenant):
        get_group(group.name).cancel(reason="chaos")


def repair(graphs: list[Graph]) -> int:
    """Repair what is broken, and retry every group; returns how often that failed and was done again."""
    failed = 0
    for graph in graphs:
        failed += until_done(lambda graph=graph: Repaired.objects.get_or_create(graph=graph.name))
        for group in graph.groups:
            failed += until_done(lambda graph=graph, group=group: _retry(graph, group))
    return failed


def _retry(graph: Graph, group: Group) -> None:
    with tenant_context(graph.tenant):
        get_group(group.name).retry_failed()


def _callback(group: Group, ending: str) -> Call:
    return jobs.called.options(tags=[callback_tag(group, ending)]).bind()


def _call(graph: Graph, group: Group, member: Member, there: set[str]) -> Call:
    match member.fate:
        case "broken":
            call = jobs.mend.bind(graph=graph.name)
        case "hopeless":
            call = jobs.never.bind()
        case "flaky":
            call = jobs.work.bind(seconds=0.01, load="", fails=1)
        case _:
            call = jobs.work.bind(seconds=0.02, load="")
    task = call.task
    if member.fate == "far":
        task = task.using(run_after=timedelta(hours=1))
    known = there | {group.name}
    chosen = task.options(
        name=member.name, depends_on=[_reference(edge, edge.group in known) for edge in member.edges]
    )
    return chosen.bind(*call.args, **call.kwargs)


def _reference(edge: graph_plans.Edge, is_there: bool) -> Edge:
    assert edge.member is not None
    reference = (
        JobRef(edge.group, edge.member) if is_there else DeferredRef(edge.group, edge.member, within=WITHIN)
    )
    return Edge(reference, edge.on_failure)

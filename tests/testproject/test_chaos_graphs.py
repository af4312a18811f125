"""Graphs of the chaos suite: their plain model and the engine agree, and their judge sees every kind of harm."""

from __future__ import annotations

from itertools import islice
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from pgbroker.lifecycle.cancel_group import cancel_group
from pgbroker.lifecycle.retry import retry_many
from pgbroker.models import Job, RunGroup
from pgbroker.states import Status
from pgbroker.tenancy import scope_all, tenant_context
from testproject.chaos import graph_judge
from testproject.chaos.graph_plans import Edge, Graph, Group, Member, callback_tag, graphs
from testproject.chaos.judge import Verdict
from tests.support.jobs import TYPE, claim_many, completed, failed, guards_off, settle_one
from tests.support.links import deferred, links, open_group, passes, seal

pytestmark = pytest.mark.django_db

FAR = "2100-01-01T00:00:00Z"


def reference(edge: Edge, there: set[str]) -> dict[str, Any]:
    named = {"group": edge.group, "on_failure": edge.on_failure}
    if edge.member is not None:
        named["job"] = edge.member
    return named if edge.group in there else {**named, "within_seconds": 3600}


def callback(group: Group, ending: str) -> dict[str, Any]:
    return {"job_type": TYPE, "tags": [callback_tag(group, ending)]}


def entry(group: Group, member: Member, there: set[str]) -> dict[str, Any]:
    # What is hopeless has one attempt only: it is a dead letter at once.
    return {
        "group": group.name,
        "name": member.name,
        "max_attempts": 1 if member.fate == "hopeless" else 5,
        "depends_on": [reference(each, there) for each in member.edges],
        **({"available_at": FAR} if member.fate == "far" else {}),
    }


def store(graph: Graph) -> None:
    groups = {group.name: group for group in graph.groups}
    with tenant_context(graph.tenant):
        for place, name in enumerate(graph.stored):
            there = {*graph.stored[: place + 1]}
            group = groups[name]
            group_id = open_group(
                name,
                *(reference(edge, there) for edge in group.edges),
                tolerate_count=group.tolerate,
                on_completed=callback(group, "completed"),
                on_failed=callback(group, "failed"),
            )
            answers = links(*(entry(group, member, there) for member in group.members))
            assert all(answer.made for answer in answers), answers
            seal(group_id)
            if group.is_cancelled:
                cancel_group(group_id, limit=100)


def place_of(job_id: UUID) -> tuple[str, str] | None:
    with scope_all():
        job = Job.objects.get(pk=job_id)
        return (
            None if job.run_group_id is None else (RunGroup.objects.get(pk=job.run_group_id).name, job.name)
        )


def play(graph: Graph, *, repaired: bool) -> None:
    """Let everybody run who may, until nobody may."""
    fates = {(group.name, member.name): member.fate for group in graph.groups for member in group.members}
    while True:
        deferred()
        passes()
        leases = claim_many()
        if not leases:
            return
        for lease in leases:
            # A callback is in no group.
            fate = fates.get(place_of(lease.job_id), "well")
            if fate == "hopeless" or (fate == "broken" and not repaired):
                settle_one(failed(lease, permanent=fate == "broken"))
            else:
                settle_one(completed(lease))


def retry_all(graph: Graph) -> None:
    with tenant_context(graph.tenant):
        bad = Job.objects.filter(status__in=[Status.FAILED, Status.DEAD_LETTER], run_group_id__isnull=False)
        retry_many(list(bad.values_list("pk", flat=True)))


@pytest.mark.parametrize("seed", range(2))
def test_model_and_engine_agree_on_every_graph_before_and_after_a_repair(seed: int) -> None:
    for graph in islice(graphs(seed), 6):
        store(graph)
        play(graph, repaired=False)
        assert graph_judge.standing([graph], repaired=False) == [], graph

        retry_all(graph)
        play(graph, repaired=True)

        found = Verdict()
        graph_judge.judge(found, [graph])
        assert found.is_clean, (graph, found.trouble)
        assert set(graph_judge.accepted([graph]).values()) <= {Status.COMPLETED, None}


@pytest.fixture
def graph() -> Graph:
    """A graph of two groups with callbacks, which has come to its end."""
    first = Group(name="a", members=(Member(name="m0", fate="well"), Member(name="m1", fate="broken")))
    second = Group(
        name="b",
        members=(Member(name="m0", fate="well", edges=(Edge(group="a", member="m0"),)),),
        edges=(Edge(group="a"),),
    )
    made = Graph(name="g", tenant="acme", groups=(first, second), stored=("a", "b"))
    store(made)
    play(made, repaired=False)
    retry_all(made)
    play(made, repaired=True)
    return made


def test_the_judge_blames_nobody_where_all_is_well(graph: Graph) -> None:
    found = Verdict()

    graph_judge.judge(found, [graph])

    assert found.is_clean, found.trouble


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        ("update pgbroker.job set status = 13 where name = 'm1'", "lost"),
        ("update pgbroker.run_group set state = 11 where name = 'b'", "lost"),
        ("delete from pgbroker.job where name = 'm1'", "lost"),
        ("delete from pgbroker.execution where state = 1", "doubled"),
        (
            "insert into pgbroker.execution (job_id, tenant_id, attempt_no, state) "
            "select job_id, tenant_id, 9, 1 from pgbroker.execution where state = 1 limit 1",
            "doubled",
        ),
        ("delete from pgbroker.job_tag where tag = 'a failed'", "lost"),
        (
            "insert into pgbroker.job_tag (tag, tenant_id, job_id) "
            "select 'b failed', tenant_id, job_id from pgbroker.job_tag where tag = 'a failed'",
            "doubled",
        ),
        (
            "update pgbroker.job_dependency set satisfied_at = satisfied_at + interval '1 hour'",
            "inconsistent",
        ),
        ("update pgbroker.job_dependency set satisfied_at = null", "inconsistent"),
        (
            "insert into pgbroker.unresolved (prerequisite_id, tenant_id) select id, tenant_id from pgbroker.run_group",
            "inconsistent",
        ),
        (
            "update pgbroker.job_dependency set satisfied_at = null, outcome = 0",
            "inconsistent",
        ),
    ],
)
def test_the_judge_sees_harm(graph: Graph, harm: str, kind: str) -> None:
    with guards_off(), connection.cursor() as cursor:
        cursor.execute(
            "select set_config('pgbroker.scope', 'all', true), set_config('pgbroker.events', 'off', true)"
        )
        cursor.execute(harm)
        assert cursor.rowcount > 0
    with scope_all():
        assert RunGroup.objects.count() == 2

    found = Verdict()
    graph_judge.judge(found, [graph])

    assert getattr(found, kind) > 0, found

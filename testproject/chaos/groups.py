"""Faults under run groups that wait for each other, fail, are repaired, retried and cancelled."""

from __future__ import annotations

import signal
import threading
import time

from django.db import connections

from testproject.chaos import graph_judge
from testproject.chaos.graph_load import GraphLoad, repair
from testproject.chaos.graph_plans import Graph
from testproject.chaos.scenarios import scenario
from testproject.chaos.settings import LEASE_SECONDS
from testproject.chaos.stage import Stage

CLIENTS = 2
GRAPHS_A_SECOND = 10.0
# How long everybody may take to come to where the plan says, once the faults are over.
SETTLED_SECONDS = 60.0


@scenario()
def graphs(stage: Stage) -> None:
    """
    Run groups wait for each other while workers are killed and stopped, backends ended and PostgreSQL crashes.

    Some members fail: others go along, block or ignore it, as their edges say. Then what was broken is repaired, and
    two operators retry every group at the same time, under the same faults. Everybody must stand where a plain model
    says, the right ones have run, once, no earlier than what they wait for, and each callback was made once.
    """
    loads = [GraphLoad(seed=1_000 * stage.seed + number, rate=GRAPHS_A_SECOND) for number in range(CLIENTS)]
    for load in loads:
        load.start()
    _faults(stage)
    stored = [graph for load in loads for graph in load.stop()]
    stage.also_judge(lambda: graph_judge.accepted(stored), lambda found: graph_judge.judge(found, stored))
    _wait_until_settled(stage, stored, repaired=False)

    failed: list[int] = []
    operators = [threading.Thread(target=_operate, args=(stored, failed), daemon=True) for _ in range(2)]
    for operator in operators:
        operator.start()
    _faults(stage)
    for operator in operators:
        operator.join()
    _wait_until_settled(stage, stored, repaired=True)
    stage.facts |= {"graphs": len(stored), "graph_errors": sum(load.errors for load in loads) + sum(failed)}


def _faults(stage: Stage) -> None:
    """Make one fault of each kind, and some of them together."""
    stage.wait(2)
    stage.kill(0)
    _end_backends(stage, seconds=4)
    stage.signal(signal.SIGSTOP, 1)
    stage.wait(1.4 * LEASE_SECONDS)
    stage.signal(signal.SIGCONT, 1)
    stage.wait(1)
    crash = threading.Thread(target=stage.server.restart, args=("immediate",))
    crash.start()
    stage.kill(1)
    crash.join()
    connections.close_all()
    stage.wait(2)


def _end_backends(stage: Stage, *, seconds: float) -> None:
    """End a backend of a worker in the middle of a statement, as often as one is met."""
    until = time.monotonic() + seconds
    with stage.superuser() as session:
        while time.monotonic() < until:
            (count,) = session.execute(
                "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity "
                "where datname = current_database() and backend_type = 'client backend' and state <> 'idle' "
                "and pid <> pg_backend_pid() order by random() limit 1) as chosen"
            ).fetchone() or (0,)
            stage.facts["killed"] = stage.facts.get("killed", 0) + count
            stage.wait(0.05)


def _wait_until_settled(stage: Stage, stored: list[Graph], *, repaired: bool) -> None:
    until = time.monotonic() + SETTLED_SECONDS
    while wrong := graph_judge.standing(stored, repaired=repaired):
        if time.monotonic() > until:
            when = "after" if repaired else "before"
            stage.facts[f"unsettled_{when}_repair"] = wrong[:10]
            return
        stage.wait(0.2)


def _operate(stored: list[Graph], failed: list[int]) -> None:
    failed.append(repair(stored))
    connections.close_all()

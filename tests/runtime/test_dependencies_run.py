"""Jobs that wait for each other, in real workers: nobody is missed, starts too early, or waits for a poll."""

from __future__ import annotations

import math
import random
import threading
import time
from uuid import UUID

import pytest
from django.db import connections

from pgbroker import retry, run_group
from pgbroker.models import RunGroup
from pgbroker.runtime.options import WorkerOptions
from pgbroker.runtime.supervisor import Worker
from pgbroker.states import AttemptState, GroupState, Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.runtime import handlers
from tests.runtime.fleet import (
    TENANTS,
    Fleet,
    effects,
    executions_of,
    put,
    raw_session,
    states_of,
    wait_for_status,
    wait_until,
)

pytestmark = pytest.mark.django_db(transaction=True)

DONE = Status.COMPLETED
TENANT = TENANTS[0]


def rounds_of(size: int, slow: int) -> list[object]:
    """Few rounds in the gate, many in the nightly run."""
    return [size, pytest.param(slow, marks=pytest.mark.slow)]


@pytest.mark.parametrize("rounds", rounds_of(120, 1_000))
def test_b050_a_child_that_comes_while_its_parent_ends_is_not_missed(rounds, fleet: Fleet):
    worker = fleet.start(slots=4)
    worker.wait_until_started()
    children: list[UUID] = []

    def put_pairs(number: int, seed: int) -> None:
        delays = random.Random(seed)
        try:
            for _ in range(number):
                parent = put(handlers.nothing, 1)
                time.sleep(delays.uniform(0, 0.003))
                children.append(put(handlers.nothing, 2, depends_on=[parent]))
        finally:
            connections.close_all()

    clients = [threading.Thread(target=put_pairs, args=(rounds // 4, seed)) for seed in range(4)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()

    assert len(children) == rounds
    wait_for_status(children, DONE, of=worker)


@pytest.mark.parametrize("rounds", rounds_of(60, 300))
def test_b052_a_child_sees_what_its_parent_wrote(rounds, fleet: Fleet):
    workers = [fleet.start(slots=2), fleet.start(slots=2)]
    for worker in workers:
        worker.wait_until_started()

    children = []
    for number in range(rounds):
        parent = put(handlers.note, f"row {number}")
        children.append(put(handlers.needs_note, f"row {number}", depends_on=[parent]))
    wait_for_status(children, DONE, of=workers[0])

    assert {tuple(states_of(child)) for child in children} == {(AttemptState.COMPLETED,)}


def test_b064_a_child_starts_once_after_the_last_attempt_of_its_parent(fleet: Fleet):
    failing = put(handlers.fail_before, 3)
    child = put(handlers.note, "child", depends_on=[failing])
    worker = fleet.start()

    wait_for_status([child], DONE, of=worker)

    assert states_of(failing) == [AttemptState.FAILED] * 2 + [AttemptState.COMPLETED]
    assert len(effects("child")) == 1
    assert executions_of(child)[0].started_at >= executions_of(failing)[-1].completed_at


@pytest.mark.parametrize("length", [30])
def test_a_chain_does_not_wait_for_a_poll(length, fleet: Fleet):
    """POLL_SECONDS is out of reach: each link is woken by the one before."""
    worker = fleet.start(slots=2, POLL_SECONDS=30)
    worker.wait_until_started()
    last = put(handlers.nothing, 0, priority=1)
    wait_for_status([last], DONE, of=worker)

    began = time.monotonic()
    with tenant_context(TENANT), run_group("chain") as group:
        before = group.enqueue(handlers.nothing, 1)
        for number in range(length - 1):
            before = group.enqueue(handlers.nothing, number, depends_on=[before])
    wait_for_status([UUID(before.id)], DONE, of=worker)

    assert time.monotonic() - began < 25
    assert state_of("chain") == GroupState.COMPLETED


def state_of(name: str) -> GroupState:
    with scope_all():
        return GroupState(RunGroup.objects.get(name=name).state)


@pytest.mark.parametrize("size", rounds_of(400, 2_000))
def test_b187_reaper_passes_and_workers_meet_in_one_group_and_nobody_is_lost(size, fleet: Fleet):
    """Leases that run out, members that end together, dependents in every state: each job is done once."""
    workers = [fleet.start(slots=4, REAP_SECONDS=0.1) for _ in range(2)]
    for worker in workers:
        worker.wait_until_started()
    with tenant_context(TENANT), run_group("all", on_completed=handlers.note.bind("over")) as group:
        rows = [handlers.nothing.bind(number) for number in range(size // 2)]
        first = group.enqueue_many(rows)
        group.enqueue_many(
            handlers.nothing.options(depends_on=[each.job_id]).bind(number)
            for number, each in enumerate(first)
        )
    after = put(handlers.note, "after", depends_on=["all"])

    wait_for_status([after], DONE, of=workers[0])
    wait_until(lambda: len(effects("over")) == 1, "the group has called", of=workers[0])

    assert state_of("all") == GroupState.COMPLETED
    assert len(effects("after")) == 1
    for worker in workers:
        assert "deadlock" not in worker.log
    assert {tuple(states_of(each.job_id)) for each in first} == {(AttemptState.COMPLETED,)}


def test_what_a_killed_worker_left_the_other_one_does(fleet: Fleet):
    """More than one statement takes: the rest of the fan-out is left to passes, and whoever lives makes them."""
    parent = put(handlers.note, "parent")
    with tenant_context(TENANT), run_group("many") as group:
        children = group.enqueue_many(
            handlers.nothing.options(depends_on=[parent]).bind(number) for number in range(1_500)
        )
    first, second = fleet.start(), fleet.start()
    wait_until(lambda: effects("parent") != [], "the parent has run", of=first)
    first.kill()

    wait_for_status([each.job_id for each in children], DONE, of=second)

    assert state_of("many") == GroupState.COMPLETED


@pytest.mark.parametrize("rounds", rounds_of(6, 40))
def test_a_burst_runs_a_job_that_a_retry_has_just_brought_back_with_what_waits_for_it(rounds, fleet: Fleet):
    """Its row is locked for a moment while those that were cancelled along with it come back: it is not passed over."""
    for number in range(rounds):
        parent = put(handlers.fail_before, 2, max_attempts=1)
        child = put(handlers.note, f"child {number}", depends_on=[parent])
        assert fleet.start("--burst", slots=2, wait=False).wait(30) == 0
        wait_for_status([child], Status.CANCELLED)
        with tenant_context(TENANT):
            retry(parent)

        burst = fleet.start("--burst", slots=2, wait=False)

        assert burst.wait(30) == 0
        assert states_of(parent)[-1] == AttemptState.COMPLETED, burst.log
        assert len(effects(f"child {number}")) == 1, burst.log


def test_a_burst_runs_what_a_pass_brings_however_late_its_upkeep_is(monkeypatch, fleet: Fleet):
    """A level deeper than the statement of the end goes is left to a pass, and with it the end of a group."""
    parent = put(handlers.fail_before, 2, max_attempts=1)
    middle = put(handlers.nothing, 1, depends_on=[parent])
    with tenant_context(TENANT), run_group("late", on_failed=handlers.note.bind("over")) as group:
        group.enqueue(handlers.nothing, 2, depends_on=[middle])
    worker = Worker(WorkerOptions(concurrency=2, burst=True, poll_interval=0.1))
    looked, look, step = threading.Event(), worker.claimer._look, worker.upkeep.step

    def note_look() -> None:
        look()
        if worker.settler.settled_count and not worker.board.size:
            looked.set()

    monkeypatch.setattr(worker.claimer, "_look", note_look)
    # The pass comes after the claimer has found that there is nothing more.
    monkeypatch.setattr(worker.upkeep, "step", lambda: looked.wait(20) and step())

    assert worker.run() == 0

    assert state_of("late") == GroupState.FAILED
    assert len(effects("over")) == 1


def test_a_burst_waits_anew_for_what_is_left_once_it_has_run_something(monkeypatch, fleet: Fleet):
    """What the first pass frees takes longer than a burst waits for passes, and its end leaves something to another."""
    monkeypatch.setattr("pgbroker.runtime.claimer.LEFT_SECONDS", 1.0)
    parent = put(handlers.fail_before, 2, max_attempts=1)
    middle = put(handlers.nothing, 1, depends_on=[parent])
    with tenant_context(TENANT), run_group("first") as group:
        group.enqueue(handlers.nothing, 2, depends_on=[middle])
    slow = put(handlers.fail_slowly, 1.5, max_attempts=1, depends_on=["first"], on_failure="ignore")
    below = put(handlers.nothing, 3, depends_on=[slow])
    with tenant_context(TENANT), run_group("second", on_failed=handlers.note.bind("over")) as group:
        group.enqueue(handlers.nothing, 4, depends_on=[below])
    held = put(handlers.nothing, 5, depends_on=[put(handlers.nothing, 6, depends_on=[parent])])
    worker = Worker(WorkerOptions(concurrency=2, burst=True, poll_interval=0.1))
    look, step, found_nothing = worker.claimer._look, worker.upkeep.step, [math.inf]

    def note_look() -> None:
        look()
        idle = worker.settler.settled_count and not worker.board.size
        found_nothing[0] = min(found_nothing[0], time.monotonic()) if idle else math.inf

    monkeypatch.setattr(worker.claimer, "_look", note_look)
    # Half a second after the claimer has found that there is nothing more.
    late = 0.5
    monkeypatch.setattr(
        worker.upkeep,
        "step",
        lambda: min(step(), 0.02) if time.monotonic() - found_nothing[0] > late else 0.02,
    )

    with raw_session() as session, session.transaction():
        # So that something is left all the time.
        session.execute("select set_config('pgbroker.scope', 'all', true)")
        session.execute("select from pgbroker.job where id = %s for update", [held])
        assert worker.run() == 0

    assert state_of("second") == GroupState.FAILED
    assert len(effects("over")) == 1


@pytest.mark.parametrize("what", ["held", "broken"])
def test_a_burst_ends_though_a_pass_cannot(what, monkeypatch, fleet: Fleet):
    """Of other queues, or of its own: what somebody holds, or a row that breaks a pass, stops no burst for long."""
    parent = put(handlers.fail_before, 2, max_attempts=1)
    middle = put(handlers.nothing, 1, depends_on=[parent])
    last = put(handlers.nothing, 2, depends_on=[middle])
    monkeypatch.setattr("pgbroker.runtime.claimer.LEFT_SECONDS", 0.5)
    worker = Worker(WorkerOptions(concurrency=2, burst=True, poll_interval=0.1))
    with raw_session() as session:
        session.execute("select set_config('pgbroker.scope', 'all', false)")
        if what == "held":
            session.execute("begin")
            session.execute("select from pgbroker.job where id = %s for update", [last])
        else:
            monkeypatch.setattr(worker.upkeep, "step", lambda: 60.0)
        ready = [put(handlers.note, "ready") for _ in range(3)]
        began = time.monotonic()

        assert worker.run() == 0

        assert time.monotonic() - began < 15
    wait_for_status(ready, DONE)

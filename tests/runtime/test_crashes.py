"""Workers that die: attempts and crashes are counted at the claim, poison jobs end, nothing is lost or doubled."""

from __future__ import annotations

import pytest

from pgbroker.lifecycle.configure import configure_queue
from pgbroker.models import Job
from pgbroker.states import AttemptState, Status
from pgbroker.testing import guards_off
from tests.runtime import handlers
from tests.runtime.fleet import (
    Fleet,
    count_by_status,
    effects,
    executions_of,
    job,
    make_queues,
    put,
    put_for_both,
    put_together,
    states_of,
    wait_for_effect,
    wait_for_status,
)

pytestmark = pytest.mark.django_db(transaction=True)

DONE, DEAD = Status.COMPLETED, Status.DEAD_LETTER
# Shorter than elsewhere: each crash is found at the end of a lease.
SOON = {"LEASE_SECONDS": 2, "HEARTBEAT_SECONDS": 0.5, "REAP_SECONDS": 0.3}


def test_b013_a_job_that_kills_its_worker_is_run_exactly_three_times(fleet: Fleet):
    ids = put_for_both(handlers.die, 9, max_attempts=10)
    behind = put_for_both(handlers.note, "behind")
    worker = fleet.start(slots=1, restart=True, wait=False, **SOON)

    wait_for_status(behind, DONE, seconds=90, of=worker)
    wait_for_status(ids, DEAD, seconds=90, of=worker)

    for each in ids:
        # What another job's crash took along had not started: it counts as lost, but never ran.
        assert len(effects("enter", each)) <= 3
        assert set(states_of(each)) == {AttemptState.CRASHED}
        assert len(states_of(each)) == job(each).crash_count == 3
        assert executions_of(each)[-1].error_code == "worker_lost"
    assert len(effects("enter")) == 6
    starts = worker.starts
    wait_for_status(put(handlers.note, "later"), DONE, of=worker)
    assert worker.starts == starts


@pytest.mark.parametrize("ways", [("die", "raise"), ("raise", "die")], ids=" then ".join)
def test_b015_a_crash_and_an_error_count_the_same(fleet: Fleet, ways):
    ids = put_for_both(handlers.die_or_raise, *ways, max_attempts=2)
    worker = fleet.start(slots=1, restart=True, wait=False, **SOON)

    wait_for_status(ids, DEAD, seconds=90, of=worker)

    expected = [{"die": AttemptState.CRASHED, "raise": AttemptState.FAILED}[way] for way in ways]
    for each in ids:
        assert states_of(each) == expected
        assert job(each).attempt_count == 2


def test_jobs_held_behind_one_that_kills_the_worker_are_not_counted_down_to_death(fleet: Fleet):
    """A type known as quick is held; a crash takes the held along, and alone they are not fragile for ever."""
    quick = [put(handlers.nothing, n, tenant=("acme", "globex")[n % 2]) for n in range(200)]
    poison = put(handlers.die, 9)
    more = [put(handlers.nothing, n, tenant=("acme", "globex")[n % 2]) for n in range(200)]
    worker = fleet.start(slots=2, restart=True, wait=False, **SOON)

    wait_for_status([*quick, *more], DONE, seconds=90, of=worker)
    wait_for_status(poison, DEAD, seconds=90, of=worker)

    assert len(effects("enter", poison)) == 3


def test_a_job_that_kills_its_worker_takes_no_other_along_to_the_end(fleet: Fleet):
    """All are lost together twice; after that the guilty one cannot run beside the others, who are as suspect."""
    poison, *others = put_together(
        (handlers.die, "acme", 9), *[(handlers.work, tenant, 0.5) for tenant in ("acme", "globex", "acme")]
    )
    together = {"base": 0, "jitter": False}
    worker = fleet.start(slots=4, restart=True, wait=False, **SOON, BACKOFF=together)

    wait_for_status(poison, DEAD, seconds=90, of=worker)
    wait_for_status(others, DONE, seconds=90, of=worker)

    for each in others:
        assert states_of(each)[:2] == [AttemptState.CRASHED] * 2
        assert states_of(each)[2:] == [AttemptState.COMPLETED]


def test_a_crash_is_one_also_where_the_worker_serves_a_queue_of_longer_leases(fleet: Fleet):
    make_queues("long")
    configure_queue("long", lease_seconds=600)
    poison = put(handlers.die, 9, max_attempts=10)
    worker = fleet.start(slots=1, restart=True, wait=False, **SOON)

    wait_for_status(poison, DEAD, seconds=60, of=worker)

    assert states_of(poison) == [AttemptState.CRASHED] * 3


def test_beside_a_suspect_that_was_given_up_no_other_suspect_runs(fleet: Fleet):
    """Its outcome is written, but its thread lives and may still bring the process down."""
    first = put(handlers.stubborn, 6.0, max_attempts=10, timeout=0.5)
    others = [put(handlers.note, "suspect", max_attempts=10) for _ in range(2)]
    with guards_off():
        Job.objects.update(attempt_count=2, crash_count=2)
    worker = fleet.start(slots=4)

    wait_for_effect("enter", first, of=worker)
    (left,) = wait_for_effect("leave", first, of=worker)
    wait_for_status(others, DONE, of=worker)

    assert all(each["at"] > left["at"] for each in effects("suspect"))


def test_suspects_of_two_queues_take_turns(fleet: Fleet):
    make_queues("one", "two")
    ids = [
        put(handlers.enter_queue, name, 0.0, queue_name=name, max_attempts=10)
        for name in ("one", "two")
        for _ in range(8)
    ]
    with guards_off():
        Job.objects.update(attempt_count=2, crash_count=2)
    busy = [put(handlers.enter_queue, "busy", 0.01, queue_name="two") for _ in range(100)]
    worker = fleet.start(slots=2)

    wait_for_status([*ids, *busy], DONE, of=worker)

    order = [each["what"] for each in effects() if each["what"] != "busy"]
    assert min(order[:8].count(name) for name in ("one", "two")) >= 3


def run_with_crashes(fleet: Fleet, nth: int, moment: str) -> None:
    """A worker that is killed at its nth statement, then one that is not; both tenants; effects counted."""
    ids = []
    for tenant in ("acme", "globex"):
        ids += [put(handlers.note, "sync", tenant=tenant), put(handlers.note_async, "async", tenant=tenant)]
        ids.append(put(handlers.raise_it, "retry_soon", tenant=tenant, max_attempts=3))
    fails = ids[2::3]
    first = fleet.start(slots=2, wait=False, crash={"nth": nth, "moment": moment}, **SOON)
    # It may have had nothing left to do before it came so far; then it is asked to go, and dies on its way.
    try:
        code = first.wait(6)
    except AssertionError:
        code = first.stop()
    assert code in (-9, 0)
    second = fleet.start(slots=2, **SOON)

    wait_for_status([each for each in ids if each not in fails], DONE, of=second)
    wait_for_status(fails, DEAD, of=second)

    for each in ids:
        states = states_of(each)
        lost = [state for state in states if state in (AttemptState.CRASHED, AttemptState.LEASE_EXPIRED)]
        assert job(each).attempt_count == len(executions_of(each))
        assert len(lost) <= 1
        if each in fails:
            assert len(states) == 3
        else:
            assert states == [*lost, AttemptState.COMPLETED]
            # An effect for each attempt that ran; the lost one may have got as far.
            assert 1 <= len(effects(job_id=each)) <= 1 + len(lost)
    assert sum(count_by_status().values()) == 6
    second.stop()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("nth", [7, 9])
def test_a_worker_killed_at_any_statement_loses_and_doubles_nothing(fleet: Fleet, nth: int, moment: str):
    run_with_crashes(fleet, nth, moment)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("nth", [n for n in range(1, 26) if n not in (7, 9)])
def test_a_worker_killed_at_every_statement_loses_and_doubles_nothing(fleet: Fleet, nth: int, moment: str):
    run_with_crashes(fleet, nth, moment)

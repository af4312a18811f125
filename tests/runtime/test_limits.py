"""Timeouts, cancels and deadlines: the handler hears of it, the job ends in time, the slot is used again."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from pgbroker import cancel, tenant_context
from pgbroker.models import Job
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import scope_all
from tests.runtime import handlers
from tests.runtime.fleet import (
    HEARTBEAT,
    Fleet,
    effects,
    executions_of,
    job,
    put,
    put_together,
    states_of,
    status_of,
    wait_for_effect,
    wait_for_status,
    wait_until,
    workers,
)

pytestmark = pytest.mark.django_db(transaction=True)

DONE, DEAD, FAILED, CANCELLED = Status.COMPLETED, Status.DEAD_LETTER, Status.FAILED, Status.CANCELLED
# The watchdog's, from the stop signal to giving up.
GRACE = 2.0
# What a loaded machine may add to a time that is bounded.
MARGIN = 3.0

BOTH = pytest.mark.parametrize("task", [handlers.work, handlers.work_async], ids=["thread", "async"])
STUBBORN = pytest.mark.parametrize(
    "task",
    [handlers.stubborn, handlers.stubborn_async, handlers.stubborn_thread],
    ids=["thread", "async", "thread of a coroutine"],
)


@BOTH
def test_b069_a_handler_that_looks_stops_at_its_timeout(fleet: Fleet, task):
    worker = fleet.start(slots=1)
    job_id = put(task, 600, timeout=1, max_attempts=1)
    behind = put(handlers.note, "behind", tenant="globex")

    wait_for_status([job_id, behind], DEAD, DONE, of=worker)

    (execution,) = executions_of(job_id)
    assert (AttemptState(execution.state), execution.error_code) == (AttemptState.TIMED_OUT, "timed_out")
    assert 0.9 < execution.duration_seconds < 1 + GRACE + MARGIN
    assert [each["detail"] for each in effects("stopped", job_id)] == ["timed_out"]


@STUBBORN
def test_b069_a_handler_that_ignores_its_timeout_is_settled_and_its_slot_used_again(fleet: Fleet, task):
    worker = fleet.start(slots=1)
    began = time.monotonic()
    job_id = put(task, 9, timeout=1, max_attempts=1)
    wait_for_effect("enter", job_id, of=worker)
    behind = put(handlers.note, "behind", tenant="globex")

    wait_for_status(job_id, DEAD, of=worker)
    took = time.monotonic() - began
    wait_for_status(behind, DONE, of=worker)

    assert took < 1 + GRACE + MARGIN
    assert states_of(job_id) == [AttemptState.TIMED_OUT]
    before = job(job_id)
    if task is not handlers.stubborn_thread:
        wait_for_effect("leave", job_id, of=worker)
        again = put(handlers.note, "again")
        wait_for_status(again, DONE, of=worker)
    # The late result changed nothing, and the thread that came back is not a slot more.
    assert states_of(job_id) == [AttemptState.TIMED_OUT]
    assert job(job_id).finished_at == before.finished_at
    assert worker.exit_code is None


@pytest.mark.parametrize("task", [handlers.stubborn, handlers.stubborn_async], ids=["thread", "async"])
def test_b069_more_stuck_handlers_than_slots_end_the_process_with_75(fleet: Fleet, task):
    worker = fleet.start(slots=2, SHUTDOWN_TIMEOUT_SECONDS=1)
    ids = [put(task, 600, timeout=0.3, max_attempts=1, tenant=("acme", "globex")[n % 2]) for n in range(4)]

    code = worker.wait()

    assert code == 75
    entered = len(effects("enter"))
    assert 3 <= entered <= 4
    with scope_all():
        assert Job.objects.filter(pk__in=ids, status=Status.RUNNING).count() == 0
    assert workers()[0].stopped_at is not None


@BOTH
def test_a_running_job_is_stopped_within_a_heartbeat_of_its_cancel(fleet: Fleet, task):
    worker = fleet.start(slots=1)
    job_id = put(task, 600)
    wait_for_effect("enter", job_id, of=worker)

    with tenant_context("acme"):
        cancel(job_id, reason="not needed")
    began = time.monotonic()
    wait_for_effect("stopped", job_id, of=worker)
    took = time.monotonic() - began
    wait_for_status(job_id, CANCELLED, of=worker)

    assert took < HEARTBEAT + MARGIN
    assert [each["detail"] for each in effects("stopped", job_id)] == ["cancelled"]
    (execution,) = executions_of(job_id)
    assert (AttemptState(execution.state), execution.error_code) == (AttemptState.CANCELLED, "cancelled")
    assert execution.error == "the attempt was asked to stop: cancelled"
    if task is handlers.work_async:
        assert len(effects("cleaned", job_id)) == 1


def test_a_cancel_that_arrives_while_djangos_thread_works_is_not_swallowed(fleet: Fleet):
    worker = fleet.start(slots=1)
    job_id = put(handlers.query_async, 600)
    wait_for_effect("enter", job_id, of=worker)

    with tenant_context("acme"):
        cancel(job_id)

    wait_for_status(job_id, CANCELLED, of=worker)
    assert states_of(job_id) == [AttemptState.CANCELLED]


def test_a_held_job_that_is_cancelled_never_starts(fleet: Fleet):
    worker = fleet.start(slots=1)
    wait_for_status([put(handlers.sometimes_slow, 0) for _ in range(30)], DONE, of=worker)
    slow, *ids = put_together(*[(handlers.sometimes_slow, "acme", 0 if n else 4) for n in range(8)])
    held = wait_until(
        lambda: [each for each in ids if status_of(each) == Status.RUNNING], "some are held", of=worker
    )

    with tenant_context("acme"):
        for each in held:
            cancel(each)

    wait_for_status([slow, *ids], of=worker)
    assert {status_of(each) for each in held} == {CANCELLED}
    assert [effects("slow", each) for each in held] == [[]] * len(held)
    assert {AttemptState(executions_of(each)[0].state) for each in held} == {AttemptState.CANCELLED}


def test_b065_a_cancel_wins_over_the_error_that_the_handler_then_raises(fleet: Fleet):
    worker = fleet.start(slots=1)
    job_id = put(handlers.fail_after, 2.0, max_attempts=5)
    wait_for_effect("enter", job_id, of=worker)

    with tenant_context("acme"):
        cancel(job_id)
    wait_for_status(job_id, of=worker)
    wait_for_status(put(handlers.note, "later", run_after=now_in(1.0)), DONE, of=worker)

    assert status_of(job_id) == CANCELLED
    assert job(job_id).available_at is None
    assert len(states_of(job_id)) == 1


def now_in(seconds: float):
    from django.utils import timezone

    return timezone.now() + timedelta(seconds=seconds)


@BOTH
def test_a_job_that_passes_its_deadline_while_it_runs_is_stopped_and_fails(fleet: Fleet, task):
    worker = fleet.start(slots=1)
    job_id = put(task, 600, deadline=2, max_attempts=5)

    wait_for_status(job_id, FAILED, of=worker)

    (execution,) = executions_of(job_id)
    assert (AttemptState(execution.state), execution.error_code) == (
        AttemptState.TIMED_OUT,
        "deadline_exceeded",
    )
    assert len(effects("stopped", job_id)) == 1


def test_b071_a_job_past_its_deadline_never_starts(fleet: Fleet):
    from pgbroker import pause, resume

    with tenant_context("acme"):
        pause(queue="default")
    ids = [put(handlers.note, "late", tenant=tenant, deadline=0.2) for tenant in ("acme", "globex")]
    worker = fleet.start(slots=1)
    wait_until(
        lambda: effects("late") == [] and [status_of(each) for each in ids] == [FAILED] * 2,
        "expired",
        of=worker,
    )

    resume(queue="default")
    wait_for_status(put(handlers.note, "after"), DONE, of=worker)

    assert effects("late") == []
    assert [executions_of(each) for each in ids] == [[], []]

"""A worker ends when it is told to, in good order, and when it must, without leaving anything behind."""

from __future__ import annotations

import random
import signal
import time

import pytest

from pgbroker.models import Job
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import scope_all
from tests.runtime import handlers
from tests.runtime.fleet import (
    LEASE,
    POLL,
    Fleet,
    effects,
    executions_of,
    make_queues,
    put,
    put_for_both,
    put_together,
    raw_session,
    states_of,
    status_of,
    wait_for_effect,
    wait_for_status,
    wait_until,
    workers,
)

pytestmark = pytest.mark.django_db(transaction=True)

DONE = Status.COMPLETED
MARGIN = 4.0


@pytest.mark.parametrize("task", [handlers.work, handlers.work_async], ids=["thread", "async"])
def test_b167_what_ends_within_the_grace_succeeds_and_the_rest_starts_elsewhere(fleet: Fleet, task):
    first = fleet.start(slots=3, SHUTDOWN_TIMEOUT_SECONDS=4)
    ids = [
        put(task, seconds, tenant=tenant) for seconds, tenant in ((1, "acme"), (2.5, "globex"), (12, "acme"))
    ]
    waiting = put(task, 0.1, tenant="globex")
    for each in ids:
        wait_for_effect("enter", each, of=first)

    second = fleet.start(slots=3)
    wait_for_status(waiting, DONE, of=second)
    began = time.monotonic()
    first.signal(signal.SIGTERM)
    wait_until(lambda: "drains" in first.log, "the signal has arrived", of=first)
    late = put_for_both(handlers.note, "after the signal")
    wait_for_status(ids[:2], DONE, of=first)
    assert first.wait() == 0
    took = time.monotonic() - began
    ended = time.monotonic()
    wait_until(lambda: len(effects("enter", ids[2])) == 2, "the third runs elsewhere", of=second)

    assert time.monotonic() - ended < POLL + MARGIN
    assert took < 4 + 2 + MARGIN
    assert [each.error_code for each in executions_of(ids[2])] == ["shutdown"]
    assert executions_of(ids[2])[0].state == AttemptState.RELEASED
    wait_for_status(late, DONE)
    assert {each["pid"] for each in effects("after the signal")} == {second.pid}
    assert [states_of(each) for each in ids[:2]] == [[AttemptState.COMPLETED]] * 2


def test_b169_no_handler_is_told_to_stop_before_the_grace_ends(fleet: Fleet):
    worker = fleet.start(slots=2, SHUTDOWN_TIMEOUT_SECONDS=20)
    ids = [put(handlers.work, 3, tenant="acme"), put(handlers.work_async, 3, tenant="globex")]
    for each in ids:
        wait_for_effect("enter", each, of=worker)

    assert worker.stop() == 0

    assert [status_of(each) for each in ids] == [DONE] * 2
    assert effects("stopped") == []


@pytest.mark.parametrize(
    "task",
    [handlers.stubborn, handlers.stubborn_async, handlers.stubborn_thread],
    ids=["thread", "async", "thread of a coroutine"],
)
def test_a_handler_that_never_stops_cannot_keep_the_process(fleet: Fleet, task):
    worker = fleet.start(slots=1, SHUTDOWN_TIMEOUT_SECONDS=1)
    job_id = put(task, 600)
    wait_for_effect("enter", job_id, of=worker)

    began = time.monotonic()
    assert worker.stop() == 0

    assert time.monotonic() - began < 1 + 4 + MARGIN
    assert status_of(job_id) == Status.READY


def test_a_handler_may_leave_before_it_is_told_to(fleet: Fleet):
    job_id = put(handlers.leave_early)
    worker = fleet.start(slots=1, SHUTDOWN_TIMEOUT_SECONDS=20)
    wait_for_effect("enter", of=worker)
    began = time.monotonic()

    assert worker.stop() == 0

    assert time.monotonic() - began < 15
    assert len(effects("left early")) == 1
    assert states_of(job_id) == [AttemptState.SNOOZED]


@pytest.mark.parametrize("task", [handlers.work, handlers.work_async], ids=["thread", "async"])
def test_only_a_handler_that_does_not_leave_is_said_to_ignore_its_signal(fleet: Fleet, task):
    put(task, 60.0)
    worker = fleet.start(slots=1, SHUTDOWN_TIMEOUT_SECONDS=0.5)
    wait_for_effect("enter", of=worker)

    assert worker.stop() == 0

    assert len(effects("stopped")) == 1
    assert "ignored its stop signal" not in worker.log


def test_held_jobs_go_back_unharmed_when_the_worker_drains(fleet: Fleet):
    worker = fleet.start(slots=1)
    wait_for_status([put(handlers.sometimes_slow, 0) for _ in range(30)], DONE, of=worker)
    slow, *ids = put_together(
        *[(handlers.sometimes_slow, ("acme", "globex")[n % 2], 0 if n else 3) for n in range(20)]
    )
    wait_until(lambda: len(running()) > 2, "some are held", of=worker)
    held = [each for each in running() if each != slow]

    assert worker.stop() == 0

    assert status_of(slow) == DONE
    # Counted as claimed, granted again, and not one of them run.
    back = [each for each in held if status_of(each) == Status.READY]
    assert back
    assert {executions_of(each)[0].error_code for each in back} == {"drain"}
    assert running() == []
    fleet.start(slots=4)
    wait_for_status(ids, DONE)
    assert {tuple(states_of(each)) for each in ids} == {(AttemptState.COMPLETED,)}


def running() -> list:
    with scope_all():
        return list(Job.objects.filter(status=Status.RUNNING).values_list("id", flat=True))


def test_held_jobs_go_back_when_their_tenant_is_paused(fleet: Fleet):
    from pgbroker import pause, resume

    worker = fleet.start(slots=1)
    wait_for_status([put(handlers.sometimes_slow, 0) for _ in range(30)], DONE, of=worker)
    slow, *ids = put_together(
        *[(handlers.sometimes_slow, ("globex", "acme")[n % 2], 0 if n else 5) for n in range(20)]
    )
    wait_until(lambda: len(running()) > 4, "some are held", of=worker)

    pause(tenant="globex")
    wait_for_status([slow, *ids[::2]], DONE, of=worker)

    assert {status_of(each) for each in ids[1::2]} == {Status.READY}
    released = [one.error_code for each in ids[1::2] for one in executions_of(each)]
    assert released
    assert set(released) == {"paused"}
    resume(tenant="globex")
    wait_for_status(ids, DONE, of=worker)
    assert {tuple(states_of(each)) for each in ids} == {(AttemptState.COMPLETED,)}


def test_b171_a_loop_that_cannot_go_on_ends_the_process_and_its_heartbeats(fleet: Fleet, superuser):
    worker = fleet.start(slots=1)
    superuser.execute("alter table pgbroker.pause rename to pause_gone")
    try:
        put_for_both(handlers.note, "cannot be claimed")

        assert worker.wait() == 1

        (row,) = workers()
        assert row.stopped_at is not None
    finally:
        superuser.execute("alter table pgbroker.pause_gone rename to pause")
    fleet.start()
    wait_for_status(put(handlers.note, "all is well"), DONE)


def test_upkeep_that_fails_does_not_end_the_worker(fleet: Fleet, superuser):
    superuser.execute("alter function pgbroker.ensure_partitions_1 rename to gone_1")
    try:
        worker = fleet.start(slots=1)
        wait_until(lambda: "duty=partitions " in worker.log, "upkeep has failed", of=worker)
        wait_for_status(put_for_both(handlers.note, "goes on"), DONE, of=worker)
        assert worker.exit_code is None
    finally:
        superuser.execute("alter function pgbroker.gone_1 rename to ensure_partitions_1")


@pytest.mark.parametrize("rounds", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_b173_a_signal_at_any_moment_ends_an_idle_worker_and_leaves_nothing_claimed(
    fleet: Fleet, rounds: int
):
    dice = random.Random(173)
    for number in range(rounds):
        if number % 3 == 0:
            put_for_both(handlers.note, f"round {number}")
        worker = fleet.start(slots=2, wait=number % 2 == 0)
        time.sleep(dice.random() * 0.3)
        began = time.monotonic()
        code = worker.stop()
        took = time.monotonic() - began

        # Before its first line the process has no handler for the signal, and may end by it.
        assert code in (0, -signal.SIGTERM), worker.log
        assert took < 3 + MARGIN
        assert running() == []
    fleet.start()
    wait_until(lambda: not any(each for each in open_jobs()), "the rest is done")
    assert len({each["job_id"] for each in effects()}) == len(effects())


def open_jobs() -> list:
    with scope_all():
        return list(Job.objects.exclude(status=DONE).values_list("id", flat=True))


def test_a_second_signal_ends_the_process_at_once_and_the_work_comes_back(fleet: Fleet):
    worker = fleet.start(slots=1, SHUTDOWN_TIMEOUT_SECONDS=60)
    job_id = put(handlers.work, 600, max_attempts=2)
    wait_for_effect("enter", job_id, of=worker)

    worker.signal(signal.SIGTERM)
    wait_until(lambda: "drains" in worker.log, "it drains", of=worker)
    worker.signal(signal.SIGTERM)

    assert worker.wait(5) == 1
    fleet.start()
    wait_until(lambda: len(effects("enter", job_id)) == 2, "it runs again", LEASE + 10)


def test_the_heartbeat_outlives_the_drain(fleet: Fleet):
    worker = fleet.start(slots=1, SHUTDOWN_TIMEOUT_SECONDS=30)
    job_id = put(handlers.work, 2 * LEASE)
    wait_for_effect("enter", job_id, of=worker)
    fleet.start(slots=1)

    worker.signal(signal.SIGTERM)

    wait_for_status(job_id, DONE)
    assert states_of(job_id) == [AttemptState.COMPLETED]


def test_a_burst_runs_what_its_last_job_enqueued_and_ends_beside_a_paused_queue(fleet: Fleet):
    from pgbroker import pause

    make_queues("paused")
    put_for_both(handlers.look_at_jobs)
    put_for_both(handlers.note, "paused", queue_name="paused")
    pause(queue="paused")

    worker = fleet.start("--burst", slots=2, wait=False)

    assert worker.wait(30) == 0
    assert len(effects("child")) == 2
    assert effects("paused") == []


def test_max_jobs_are_run_and_not_one_more(fleet: Fleet):
    ids = [put(handlers.note, "n", tenant=("acme", "globex")[n % 2]) for n in range(20)]

    worker = fleet.start("--max-jobs", "7", slots=3, wait=False)

    assert worker.wait(30) == 0
    assert len(effects("n")) == 7
    assert sum(status_of(each) == DONE for each in ids) == 7


def test_a_worker_that_cannot_start_ends_for_its_service_manager_to_start_another(fleet: Fleet):
    with raw_session() as session, session.transaction():
        session.execute("lock table public.django_migrations in access exclusive mode")
        worker = fleet.start(wait=False)

        assert worker.wait() == 3
    assert "not started in 10 s" in worker.log

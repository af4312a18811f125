"""A lease is kept by healthy work, lost by what stands still, and never ends a job twice."""

from __future__ import annotations

import signal
import time

import pytest
from django.db import connection

from pgbroker import cancel, tenant_context
from pgbroker.models import Worker as WorkerRow
from pgbroker.runtime.supervisor import Worker, WorkerOptions
from pgbroker.states import AttemptState, Status
from tests.runtime import handlers
from tests.runtime.fleet import (
    HEARTBEAT,
    LEASE,
    REAP,
    Fleet,
    effects,
    executions_of,
    job,
    put,
    put_for_both,
    raw_session,
    states_of,
    status_of,
    wait_for_effect,
    wait_for_status,
    wait_until,
)
from tests.support.jobs import guards_off

pytestmark = pytest.mark.django_db(transaction=True)

DONE, DEAD, CANCELLED = Status.COMPLETED, Status.DEAD_LETTER, Status.CANCELLED
MARGIN = 4.0


def test_b001_the_work_of_a_killed_worker_is_done_by_another(fleet: Fleet):
    first = fleet.start()
    ids = put_for_both(handlers.work, 2.0)
    for each in ids:
        wait_for_effect("enter", each, of=first)

    first.kill()
    began = time.monotonic()
    second = fleet.start()
    wait_for_status(ids, DONE, of=second)

    assert time.monotonic() - began < LEASE + REAP + 2.0 + 3 + MARGIN
    for each in ids:
        assert states_of(each) == [AttemptState.CRASHED, AttemptState.COMPLETED]
        assert job(each).crash_count == 1
        assert len(effects("leave", each)) == 1


@pytest.mark.slow
def test_b003_a_worker_that_starts_again_under_its_name_does_not_hide_the_old_ones_jobs(fleet: Fleet):
    first = fleet.start()
    job_id = put(handlers.work, 1.0)
    wait_for_effect("enter", job_id, of=first)

    first.kill()
    second = fleet.start()

    wait_for_status(job_id, DONE, of=second)
    assert states_of(job_id) == [AttemptState.CRASHED, AttemptState.COMPLETED]
    assert WorkerRow.objects.count() == 2


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(handlers.work, id="thread", marks=pytest.mark.slow),
        pytest.param(handlers.work_async, id="async"),
    ],
)
def test_b009_a_worker_that_stood_still_tells_its_handlers_within_a_heartbeat_and_is_refused(
    fleet: Fleet, task
):
    first = fleet.start(slots=2)
    ids = put_for_both(task, 8.0, max_attempts=3)
    for each in ids:
        wait_for_effect("enter", each, of=first)

    first.signal(signal.SIGSTOP)
    second = fleet.start(slots=2)
    for each in ids:
        wait_until(lambda each=each: len(effects("enter", each)) == 2, "it runs elsewhere", of=second)
    first.signal(signal.SIGCONT)
    woken = time.monotonic()
    for each in ids:
        wait_for_effect("stopped", each, of=first)
    told = time.monotonic() - woken

    wait_for_status(ids, DONE, of=second)
    assert told < HEARTBEAT + MARGIN
    for each in ids:
        assert states_of(each) == [AttemptState.CRASHED, AttemptState.COMPLETED]
        assert [found["detail"] for found in effects("stopped", each)] == ["lease_lost"]
        assert len(effects("leave", each)) == 1
    assert first.exit_code is None
    wait_for_status(put(handlers.note, "both still work"), DONE)


def test_b009_the_key_of_a_job_that_died_with_a_stopped_worker_is_free_and_its_late_result_refused(
    fleet: Fleet,
):
    first = fleet.start(slots=1)
    one = put(handlers.stubborn, 7.0, max_attempts=1, idempotency_key="u")
    wait_for_effect("enter", one, of=first)

    first.signal(signal.SIGSTOP)
    second = fleet.start(slots=1)
    wait_for_status(one, DEAD, of=second)
    two = put(handlers.stubborn, 0.1, max_attempts=1, idempotency_key="u")
    wait_for_status(two, DONE, of=second)
    first.signal(signal.SIGCONT)
    wait_until(lambda: len(effects("leave", one)) == 1, "the first copy has ended", of=first)
    wait_for_status(put(handlers.note, "after"), DONE)

    assert one != two
    assert states_of(one) == [AttemptState.CRASHED]
    assert status_of(one) == DEAD
    wait_until(lambda: "lease lost" in first.log, "the loss is told", of=first)


def test_b007_healthy_work_never_comes_near_the_end_of_its_lease(fleet: Fleet):
    worker = fleet.start(slots=4)
    fleet.start(slots=4)
    ids = [put(handlers.work, 2.5 * LEASE, tenant=tenant) for tenant in ("acme", "globex") for _ in range(2)]
    for each in ids:
        wait_for_effect("enter", each, of=worker)

    left = []
    with raw_session() as session:
        while any(status_of(each) == Status.RUNNING for each in ids):
            left += session.execute(
                "select extract(epoch from lease_expires_at - clock_timestamp())::float from pgbroker.job "
                "where status = 3"
            ).fetchall()
            time.sleep(0.2)

    assert min(seconds for (seconds,) in left) > LEASE / 3
    assert [states_of(each) for each in ids] == [[AttemptState.COMPLETED]] * 4


def test_b011_busy_python_in_every_slot_does_not_starve_the_heartbeats(fleet: Fleet):
    fleet.start(slots=4)
    fleet.start(slots=1)
    ids = [put(handlers.burn, 2 * LEASE, tenant=tenant) for tenant in ("acme", "globex") for _ in range(2)]

    wait_for_status(ids, DONE, seconds=90)

    assert [states_of(each) for each in ids] == [[AttemptState.COMPLETED]] * 4


@pytest.mark.slow
def test_b011_a_call_that_holds_the_gil_beyond_the_lease_ends_in_one_success(fleet: Fleet):
    first = fleet.start(slots=4)
    ids = [put(handlers.hold_the_gil, 24, tenant=tenant) for tenant in ("acme", "globex") for _ in range(2)]
    wait_for_effect("enter", of=first)
    fleet.start(slots=4)

    wait_for_status(ids, DONE, seconds=180)

    for each in ids:
        assert states_of(each).count(AttemptState.COMPLETED) == 1
        assert len([state for state in states_of(each) if state == AttemptState.RELEASED]) == 0
        assert job(each).crash_count < 3


def test_b067_a_job_that_was_cancelled_when_its_worker_died_is_not_run_again(fleet: Fleet):
    first = fleet.start()
    ids = put_for_both(handlers.work, 60)
    for each in ids:
        wait_for_effect("enter", each, of=first)

    first.signal(signal.SIGSTOP)
    for each, tenant in zip(ids, ("acme", "globex"), strict=True):
        with tenant_context(tenant):
            assert cancel(each).outcome == "requested"
    first.kill()
    second = fleet.start()

    wait_for_status(ids, CANCELLED, of=second)
    assert [len(executions_of(each)) for each in ids] == [1, 1]


def test_b005_a_completion_that_waits_for_a_lock_past_the_lease_wins_or_is_refused_but_never_both(
    fleet: Fleet,
):
    worker = fleet.start(slots=4)
    fleet.start(slots=1)
    ids = [put(handlers.work, 1.5, tenant=("acme", "globex")[number % 2]) for number in range(4)]
    for each in ids:
        wait_for_effect("enter", each, of=worker)

    with raw_session() as session, session.transaction():
        session.execute("select id from pgbroker.job where id = any (%s) order by id for update", (ids,))
        # Held until the leases have run out, while the completions wait in line and the reapers skip.
        wait_until(
            lambda: session.execute(
                "select max(lease_expires_at) < clock_timestamp() from pgbroker.job where id = any (%s)",
                (ids,),
            ).fetchone()[0],
            "the leases have expired",
        )
    wait_for_status(ids, DONE)

    for each in ids:
        states = states_of(each)
        assert states.count(AttemptState.COMPLETED) == 1
        assert states in (
            [AttemptState.COMPLETED],
            [AttemptState.LEASE_EXPIRED, AttemptState.COMPLETED],
            [AttemptState.CRASHED, AttemptState.COMPLETED],
        )
        assert len(effects("leave", each)) <= len(states)


def test_an_outcome_whose_row_is_locked_holds_up_no_other(fleet: Fleet):
    worker = fleet.start(slots=2)
    ids = [put(handlers.work, 0.7, tenant=tenant) for tenant in ("acme", "globex")]
    for each in ids:
        wait_for_effect("enter", each, of=worker)

    with raw_session() as session, session.transaction():
        # As a person in psql does who forgets to commit.
        session.execute("select id from pgbroker.job where id = any (%s) order by id for update", (ids,))
        wait_for_effect("leave", count=2, of=worker)
        began = time.monotonic()
        others = [
            put(handlers.note, "meanwhile", tenant=tenant) for tenant in ("acme", "globex") for _ in range(20)
        ]
        wait_for_status(others, DONE, of=worker)
        took = time.monotonic() - began
        assert {status_of(each) for each in ids} == {Status.RUNNING}
    wait_for_status(ids, DONE, of=worker)

    # With them in one batch it waits once for the locks.
    assert took < MARGIN
    assert all(states_of(each).count(AttemptState.COMPLETED) == 1 for each in ids)
    assert [states_of(each) for each in others] == [[AttemptState.COMPLETED]] * 40


def test_a_lease_that_ran_out_on_a_live_worker_is_no_crash(fleet: Fleet):
    worker = fleet.start(slots=1)
    job_id = put(handlers.work, 3 * LEASE)
    wait_for_effect("enter", job_id, of=worker)

    with raw_session() as session, session.transaction():
        session.execute("select id from pgbroker.job where id = %s for update", (job_id,))
        wait_until(
            lambda: session.execute(
                "select lease_expires_at < clock_timestamp() from pgbroker.job where id = %s", (job_id,)
            ).fetchone()[0],
            "the lease has expired",
        )
    stopped = wait_for_effect("stopped", job_id, of=worker)
    wait_until(lambda: len(states_of(job_id)) >= 1, "it was reaped", of=worker)

    assert stopped[0]["detail"] == "lease_lost"
    assert states_of(job_id)[0] == AttemptState.LEASE_EXPIRED
    assert job(job_id).crash_count == 0


def test_while_heartbeats_do_not_get_through_nothing_is_claimed(fleet: Fleet):
    worker = Worker(WorkerOptions(concurrency=2))
    worker.prepare()
    ids = put_for_both(handlers.note, "meanwhile")
    try:
        worker.settler.step()
        worker.claimer.step()
        assert worker.board.size == 0, "it has never beaten"
        worker.heartbeats.step()
        worker.heartbeats.renewed_at -= worker.lease_time.total_seconds()
        worker.claimer.step()
        assert [status_of(each) for each in ids] == [Status.READY] * 2

        worker.heartbeats.step()
        worker.claimer.step()
        wait_until(lambda: worker.settler.backlog == 2, "both have run")
        worker.settler.step()
    finally:
        for session in worker.sessions.by_loop.values():
            session.drop()
        worker.executors.threads.stop()

    assert [states_of(each) for each in ids] == [[AttemptState.COMPLETED]] * 2


def test_who_locks_the_table_of_workers_ends_no_healthy_work(fleet: Fleet):
    worker = fleet.start(slots=2)
    ids = put_for_both(handlers.stubborn, LEASE + 2)
    wait_for_effect("enter", count=2, of=worker)

    with raw_session() as session, session.transaction():
        session.execute("lock table pgbroker.worker in access exclusive mode")
        time.sleep(LEASE + 1)  # nothing to wait for: what is tested is that nothing happens
    wait_for_status(ids, DONE, of=worker)

    assert [states_of(each) for each in ids] == [[AttemptState.COMPLETED]] * 2


def test_a_token_that_was_issued_again_after_commits_were_lost_lets_no_two_attempts_pass(fleet: Fleet):
    worker = fleet.start(slots=2, LEASE_SECONDS=30, HEARTBEAT_SECONDS=10)
    job_id = put(handlers.work, 6.0)
    wait_for_effect("enter", job_id, of=worker)
    with guards_off(), connection.cursor() as cursor:
        # As a standby knows it that lacks the commit of the claim.
        cursor.execute(
            "update pgbroker.job set status = 2, attempt_count = 0, lease_token = 0, worker_id = null, "
            "leased_at = null, lease_expires_at = null where id = %s",
            [job_id],
        )
    with raw_session() as session:
        session.execute("notify pgbroker, 'default'")
    wait_for_status(job_id, DONE, of=worker)

    assert [effect["detail"] for effect in effects("stopped", job_id)] == ["lease_lost"]
    assert [(each.state, each.error_code) for each in executions_of(job_id)] == [
        (AttemptState.RELEASED, "claimed_twice"),
        (AttemptState.COMPLETED, None),
    ]
    assert job(job_id).lease_token == 2


@pytest.mark.slow
def test_two_attempts_of_one_job_in_one_process_do_not_answer_for_each_other(fleet: Fleet):
    """The first loses its lease and stays; the second is claimed by the same worker, and settles alone."""
    worker = fleet.start(slots=2)
    job_id = put(handlers.stubborn, 2 * LEASE, max_attempts=3)
    wait_for_effect("enter", job_id, of=worker)

    with raw_session() as session, session.transaction():
        session.execute("select id from pgbroker.job where id = %s for update", (job_id,))
        wait_until(
            lambda: session.execute(
                "select lease_expires_at < clock_timestamp() from pgbroker.job where id = %s", (job_id,)
            ).fetchone()[0],
            "the lease has expired",
        )
    wait_for_effect("enter", job_id, count=2, of=worker)
    wait_for_status(job_id, DONE, of=worker)

    assert states_of(job_id) == [AttemptState.LEASE_EXPIRED, AttemptState.COMPLETED]
    assert len({each["pid"] for each in effects("enter", job_id)}) == 1
    assert job(job_id).attempt_count == 2

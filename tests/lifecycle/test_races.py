"""Staged races: two sessions meet at one row, in both orders, and PostgreSQL says when one of them waits."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import transaction

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.expire import expire
from pgbroker.lifecycle.heartbeat import heartbeat
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.release import release
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.settle import settle
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import tenant_context
from tests.support.jobs import (
    OTHER_WORKER,
    age,
    attempt_states,
    claim_many,
    completed,
    enqueue_one,
    events,
    failed,
    queue_id,
    reap_all,
    row,
    settle_one,
    status,
)
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)
A_MINUTE = timedelta(minutes=1)


@pytest.fixture
def leases():
    """A running job of each of two tenants, the other tenant's first."""
    for tenant in ("bolt", "acme"):
        with tenant_context(tenant):
            enqueue_one()
    both = claim_many()
    assert [lease.tenant_id for lease in both] == ["bolt", "acme"]
    return both


@pytest.fixture
def lease(leases):
    """The running job of the tenant acme; a second one of another tenant runs beside it."""
    return leases[1]


@contextmanager
def psql_holds(job_id):
    """Hold a row as a person in psql would, until the block ends."""
    with second_session() as psql, psql.transaction():
        psql.execute("select from pgbroker.job where id = %s for update", (job_id,))
        yield psql


# ------------------------------------------------------------------ claim and claim


def test_two_claims_at_once_share_the_jobs_and_neither_waits():
    with tenant_context("acme"):
        theirs = [enqueue_one() for _ in range(2)]
    ours = [enqueue_one() for _ in range(2)]

    with transaction.atomic():
        first = claim_many(2)
        second = InThread(lambda: claim_many(10, worker_id=OTHER_WORKER)).start().result()

    assert [lease.job_id for lease in first] == theirs
    assert [lease.job_id for lease in second] == ours
    assert {lease.lease_token for lease in first + second} == {1}


def test_jobs_of_a_claim_that_rolls_back_are_there_for_the_next_under_the_same_token():
    with tenant_context("acme"):
        enqueue_one()
    with transaction.atomic():
        (lost,) = claim_many()
        assert InThread(claim_many).start().result() == []
        transaction.set_rollback(True)

    (lease,) = claim_many(worker_id=OTHER_WORKER)

    assert (lease.attempt_count, lease.lease_token) == (1, 1)
    assert settle([completed(lost)]) == [], "the same token, but another worker"
    assert settle_one(completed(lease)).status == Status.COMPLETED


# ------------------------------------------------------------------ settle and reap


def test_b005_a_settle_that_waits_behind_a_reap_loses(lease, leases):
    age(lease.job_id, minutes=2)
    with transaction.atomic():
        reaped = reap_all()
        settling = InThread(lambda: settle([completed(each) for each in leases])).start()
        wait_until_blocked(settling)
    settled = settling.result()

    assert [taken.job_id for taken in reaped] == [lease.job_id]
    assert [decision.job_id for decision in settled] == [leases[0].job_id]
    assert (status(lease.job_id), attempt_states(lease.job_id)) == (Status.SCHEDULED, [AttemptState.CRASHED])
    assert events(lease.job_id) == []


def test_b005_a_reap_skips_what_a_settle_is_writing_and_finds_it_settled(lease):
    age(lease.job_id, minutes=2)
    with transaction.atomic():
        settle_one(completed(lease, result='"done"'))
        assert InThread(reap_all).start().result() == []
    before = row(lease.job_id)

    assert reap_all() == []
    after = row(lease.job_id)
    assert (after.status, after.finished_at, after.crash_count) == (Status.COMPLETED, before.finished_at, 0)
    assert attempt_states(lease.job_id) == [AttemptState.COMPLETED]
    assert events(lease.job_id) == [Status.COMPLETED]


def test_b005_behind_a_lock_the_settle_queues_and_the_reaper_passes_by(lease, leases):
    age(lease.job_id, minutes=2)
    with psql_holds(lease.job_id) as psql:
        settling = InThread(lambda: settle([completed(each) for each in leases])).start()
        wait_until_blocked(settling, psql)
        assert reap_all() == []

    assert len(settling.result()) == 2
    assert reap_all() == []
    assert (status(lease.job_id), row(lease.job_id).crash_count) == (Status.COMPLETED, 0)
    assert attempt_states(lease.job_id) == [AttemptState.COMPLETED]


def test_a_settle_that_waits_while_the_lease_passes_on_changes_nothing_of_the_next_holder(lease):
    """The row it waited for is running again when it gets it: only the token tells the two attempts apart."""
    age(lease.job_id, minutes=2)
    with transaction.atomic():
        reap_all()
        promote([queue_id()], limit=10)
        (current,) = claim_many(worker_id=lease.worker_id)
        settling = InThread(lambda: settle([completed(lease)])).start()
        wait_until_blocked(settling)

    assert settling.result() == []
    assert (current.lease_token, row(lease.job_id).lease_token) == (2, 2)
    assert status(lease.job_id) == Status.RUNNING


def test_two_settles_of_one_attempt_end_it_once(lease):
    with transaction.atomic():
        settle_one(failed(lease))
        second = InThread(lambda: settle([completed(lease)])).start()
        wait_until_blocked(second)

    assert second.result() == []
    assert (status(lease.job_id), attempt_states(lease.job_id)) == (Status.SCHEDULED, [AttemptState.FAILED])


def test_two_settles_of_overlapping_batches_wait_in_one_order_and_never_deadlock(leases):
    backwards = leases[::-1]
    with psql_holds(min(lease.job_id for lease in leases)) as psql:
        settlers = [InThread(lambda: settle([completed(each) for each in leases])).start()]
        # Whoever comes second waits for the first, not for the holder.
        wait_until_blocked(settlers[0], psql)
        settlers.append(InThread(lambda: settle([failed(each) for each in backwards])).start())
        wait_until_blocked(settlers[1])
    decisions = [decision for settler in settlers for decision in settler.result()]

    assert sorted(decision.job_id for decision in decisions) == sorted(lease.job_id for lease in leases)
    assert [len(attempt_states(lease.job_id)) for lease in leases] == [1, 1]


# ------------------------------------------------------------------ heartbeat


def test_a_heartbeat_while_the_row_is_being_settled_neither_waits_nor_extends(lease, leases):
    with transaction.atomic():
        settle_one(completed(lease))
        beating = InThread(lambda: heartbeat(leases, lease=timedelta(hours=1))).start()
        answers = {held.job_id: held.kept for held in beating.result()}

    assert answers == {leases[0].job_id: True, lease.job_id: True}, "as far as it can see"
    answers = {held.job_id: held.kept for held in heartbeat(leases, lease=timedelta(hours=1))}
    assert answers == {leases[0].job_id: True, lease.job_id: False}


def test_a_heartbeat_passes_a_row_that_an_open_transaction_refers_to(lease):
    """An edge to a live job holds a key-share lock on it for as long as the user's transaction lasts."""
    before = row(lease.job_id).lease_expires_at
    with second_session() as other, other.transaction():
        other.execute("select from pgbroker.job where id = %s for key share", (lease.job_id,))
        (held,) = heartbeat([lease], lease=timedelta(hours=1))
        assert held.kept
        assert row(lease.job_id).lease_expires_at > before
        assert settle_one(completed(lease)).status == Status.COMPLETED


# ------------------------------------------------------------------ cancel


def test_a_settle_that_waits_behind_a_cancel_request_ends_cancelled(lease):
    with tenant_context("acme"), transaction.atomic():
        (answer,) = cancel_many([lease.job_id])
        settling = InThread(lambda: settle([failed(lease, A_MINUTE)])).start()
        wait_until_blocked(settling)

    assert (answer.outcome, [decision.status for decision in settling.result()]) == (
        "requested", [Status.CANCELLED],
    )  # fmt: skip
    assert row(lease.job_id).available_at is None


def test_a_cancel_that_waits_behind_a_settle_leaves_the_ended_job_alone(lease):
    with tenant_context("acme"), transaction.atomic():
        settle_one(completed(lease))
        cancelling = InThread(lambda: cancel_many([lease.job_id])).start()
        wait_until_blocked(cancelling)
    (answer,) = cancelling.result()

    assert (answer.outcome, answer.status, status(lease.job_id)) == (
        "unchanged", Status.COMPLETED, Status.COMPLETED,
    )  # fmt: skip
    assert events(lease.job_id) == [Status.COMPLETED]


def test_a_cancel_that_waits_behind_a_retry_of_the_attempt_cancels_the_scheduled_job(lease):
    with tenant_context("acme"), transaction.atomic():
        settle_one(failed(lease, A_MINUTE))
        cancelling = InThread(lambda: cancel_many([lease.job_id])).start()
        wait_until_blocked(cancelling)

    assert [answer.outcome for answer in cancelling.result()] == ["cancelled"]
    assert (status(lease.job_id), events(lease.job_id)) == (Status.CANCELLED, [Status.CANCELLED])


def test_a_cancel_that_waits_behind_a_claim_asks_the_running_job():
    with tenant_context("acme"):
        job_id = enqueue_one()
        with transaction.atomic():
            (lease,) = claim_many()
            cancelling = InThread(lambda: cancel_many([job_id])).start()
            wait_until_blocked(cancelling)
        (answer,) = cancelling.result()

    assert (answer.outcome, answer.worker_id) == ("requested", lease.worker_id)
    assert settle_one(completed(lease)).status == Status.CANCELLED


def test_a_claim_passes_by_what_is_being_cancelled():
    with tenant_context("acme"):
        job_id = enqueue_one()
        with transaction.atomic():
            cancel_many([job_id])
            assert InThread(claim_many).start().result() == []

    assert (claim_many(), status(job_id)) == ([], Status.CANCELLED)


def test_a_release_that_waits_behind_a_cancel_request_leaves_the_job_for_settle(lease):
    with tenant_context("acme"), transaction.atomic():
        cancel_many([lease.job_id])
        releasing = InThread(lambda: release([(lease, None)], code="drain")).start()
        wait_until_blocked(releasing)

    assert (releasing.result(), status(lease.job_id)) == ([], Status.RUNNING)
    assert settle_one(completed(lease)).status == Status.CANCELLED


def test_two_cancels_of_the_same_jobs_in_opposite_order_never_deadlock():
    with tenant_context("acme"):
        jobs = [enqueue_one() for _ in range(3)]
        with psql_holds(jobs[1]) as psql:
            cancels = [
                InThread(lambda: cancel_many(jobs)).start(),
                InThread(lambda: cancel_many(jobs[::-1])).start(),
            ]
            wait_until_blocked(cancels[0])
            wait_until_blocked(cancels[1])
            assert psql.info.backend_pid
        answers = [answer.outcome for each in cancels for answer in each.result()]

    assert sorted(answers) == ["cancelled"] * 3 + ["unchanged"] * 3
    assert [len(events(job_id)) for job_id in jobs] == [1, 1, 1]


# ------------------------------------------------------------------ expire, promote, retry


@pytest.mark.parametrize("claim_first", [True, False])
def test_expire_and_claim_never_both_have_a_job(claim_first):
    """Its deadline passes in between: whoever comes first has it, the other passes by."""
    with tenant_context("acme"):
        job_id = enqueue_one(deadline_seconds=60)
    with transaction.atomic():
        if claim_first:
            (lease,) = claim_many()
            age(job_id, only=["deadline_at"], seconds=61)
            assert InThread(lambda: expire(limit=10)).start().result() == []
        else:
            age(job_id, only=["deadline_at"], seconds=61)
            assert [over.job_id for over in expire(limit=10)] == [job_id]
            assert InThread(claim_many).start().result() == []

    assert status(job_id) == (Status.RUNNING if claim_first else Status.FAILED)
    if claim_first:
        assert expire(limit=10) == []
        assert settle_one(completed(lease)).status == Status.COMPLETED


def test_two_promotes_at_once_promote_each_job_once():
    with tenant_context("acme"):
        jobs = [enqueue_one(delay_seconds=60) for _ in range(4)]
    age(*jobs, seconds=61)
    with transaction.atomic():
        assert promote([queue_id()], limit=2) == {queue_id(): 2}
        other = InThread(lambda: promote([queue_id()], limit=10)).start()
        assert other.result() == {queue_id(): 2}

    assert [lease.job_id for lease in claim_many()] != []
    assert {status(job_id) for job_id in jobs} == {Status.RUNNING}


def test_two_retries_of_one_job_grant_one_more_attempt_and_one_says_unchanged(lease):
    settle_one(failed(lease, dead=True))
    with tenant_context("acme"):
        with transaction.atomic():
            (first,) = retry_many([lease.job_id])
            second = InThread(lambda: retry_many([lease.job_id], attempts=50)).start()
            wait_until_blocked(second)
        (answer,) = second.result()

    assert (first.outcome, answer.outcome) == ("retried", "unchanged")
    assert row(lease.job_id).max_attempts == 5

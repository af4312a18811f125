"""heartbeat: running stays running, for leases that are still held and have not expired."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.heartbeat import heartbeat
from pgbroker.lifecycle.promote import promote
from pgbroker.tenancy import tenant_context
from tests.support.jobs import (
    OTHER_WORKER,
    age,
    claim_many,
    claim_one,
    completed,
    enqueue_one,
    reap_all,
    row,
    settle_one,
)
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def kept(*leases, lease=HOUR):
    """Beat and tell for each lease, in the order given, whether it is still its worker's."""
    answers = {(each.job_id, each.lease_token): each for each in heartbeat(leases, lease=lease)}
    return [answers[each.job_id, each.lease_token].kept for each in leases]


def test_a_held_lease_lasts_from_now_again():
    enqueue_one()
    lease = claim_one()
    before = row(lease.job_id)

    assert kept(lease) == [True]
    after = row(lease.job_id)
    assert after.lease_expires_at - before.lease_expires_at > timedelta(minutes=58)
    assert (after.lease_token, after.attempt_count, after.leased_at) == (1, 1, before.leased_at)


def test_an_expired_lease_is_never_extended_though_nobody_took_it_back_yet():
    enqueue_one()
    lease = claim_one()
    age(lease.job_id, minutes=2)
    expiry = row(lease.job_id).lease_expires_at

    assert kept(lease) == [False]
    assert row(lease.job_id).lease_expires_at == expiry


def test_a_lease_that_passed_on_is_not_kept_and_the_new_one_is_untouched():
    enqueue_one()
    lost = claim_one()
    age(lost.job_id, minutes=2)
    reap_all()
    promote([lost.queue_id], limit=1)
    current = claim_one(worker_id=OTHER_WORKER)
    expiry = row(lost.job_id).lease_expires_at

    assert kept(lost) == [False]
    assert row(lost.job_id).lease_expires_at == expiry
    assert kept(current) == [True]


def test_an_attempt_that_was_settled_is_not_kept():
    enqueue_one()
    lease = claim_one()
    settle_one(completed(lease))

    assert kept(lease) == [False]


@pytest.mark.parametrize("forged", [{"lease_token": 2}, {"worker_id": OTHER_WORKER}])
def test_the_fence_needs_the_token_and_the_worker(forged):
    enqueue_one()
    lease = claim_one()
    expiry = row(lease.job_id).lease_expires_at

    assert kept(lease._replace(**forged)) == [False]
    assert row(lease.job_id).lease_expires_at == expiry


def test_a_cancel_request_reaches_the_worker_with_its_next_beat():
    jobs = [enqueue_one() for _ in range(2)]
    leases = claim_many()
    cancel_many(jobs[:1])

    answers = {held.job_id: (held.kept, held.cancel) for held in heartbeat(leases, lease=HOUR)}

    assert answers == {jobs[0]: (True, True), jobs[1]: (True, False)}


def test_leases_of_several_tenants_and_workers_are_answered_one_by_one():
    with tenant_context("acme"):
        enqueue_one()
    enqueue_one()
    first, second = claim_one(), claim_one(worker_id=OTHER_WORKER)
    settle_one(completed(first))

    assert kept(second, first) == [True, False]


def test_nothing_to_beat_for_is_no_statement(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert heartbeat([], lease=HOUR) == []


@pytest.mark.django_db(transaction=True)
def test_locked_is_not_lost_and_a_beat_never_waits():
    with tenant_context("acme"):
        enqueue_one()
    enqueue_one()
    locked, free = claim_many()
    expiry = row(locked.job_id).lease_expires_at

    with second_session() as other, other.transaction():
        other.execute("select from pgbroker.job where id = %s for no key update", (locked.job_id,))
        assert kept(locked, free) == [True, True]
        assert row(locked.job_id).lease_expires_at == expiry

    assert row(free.job_id).lease_expires_at > expiry
    assert kept(locked) == [True]
    assert row(locked.job_id).lease_expires_at > expiry

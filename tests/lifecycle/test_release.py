"""release: a job is handed back unharmed. running -> ready, or scheduled after a delay."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.release import release
from pgbroker.lifecycle.settle import settle
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import tenant_context
from tests.support.jobs import (
    OTHER_WORKER,
    age,
    attempt_states,
    claim_many,
    claim_one,
    completed,
    enqueue_one,
    executions,
    failed,
    reap_all,
    row,
    settle_one,
    status,
)

pytestmark = pytest.mark.django_db


def test_a_released_job_is_ready_at_once_and_its_attempt_is_granted_again():
    enqueue_one(max_attempts=1)
    lease = claim_one()

    (decision,) = release([(lease, None)], code="drain")

    job = row(lease.job_id)
    assert (decision.job_id, decision.lease_token, decision.status) == (lease.job_id, 1, Status.READY)
    assert (job.status, job.attempt_count, job.max_attempts) == (Status.READY, 1, 2)
    assert (job.worker_id, job.lease_expires_at, job.available_at) == (None, None, None)
    assert [(each.state, each.error_code) for each in executions(job.pk)] == [
        (AttemptState.RELEASED, "drain")
    ]

    again = claim_one()
    assert (again.attempt_count, again.lease_token, again.failures_before) == (2, 2, 0)
    assert settle_one(failed(again)).status == Status.DEAD_LETTER


def test_a_release_with_a_delay_is_scheduled_for_then():
    enqueue_one()
    lease = claim_one()

    release([(lease, timedelta(minutes=5))], code="unknown_job_type")

    job = row(lease.job_id)
    assert (job.status, job.max_attempts) == (Status.SCHEDULED, 6)
    assert abs(job.available_at - timezone.now() - timedelta(minutes=5)) < timedelta(seconds=30)
    assert claim_many() == []


def test_released_jobs_come_back_in_the_order_of_their_ids_at_their_own_instants():
    jobs = [enqueue_one() for _ in range(3)]
    leases = claim_many()

    release([(lease, None) for lease in reversed(leases)], code="drain")

    assert len({row(job_id).ready_at for job_id in jobs}) == 3
    assert [lease.job_id for lease in claim_many()] == sorted(jobs)


@pytest.mark.parametrize("forged", [{"lease_token": 0}, {"worker_id": OTHER_WORKER}])
def test_the_fence_needs_the_token_and_the_worker(forged):
    enqueue_one()
    lease = claim_one()

    assert release([(lease._replace(**forged), None)], code="drain") == []
    assert (status(lease.job_id), executions(lease.job_id)) == (Status.RUNNING, [])


def test_a_stale_release_takes_nothing_from_the_next_holder():
    enqueue_one()
    lost = claim_one()
    age(lost.job_id, minutes=2)
    reap_all()
    promote([lost.queue_id], limit=1)
    current = claim_one(worker_id=OTHER_WORKER)

    assert release([(lost, None)], code="drain") == []
    assert row(lost.job_id).lease_token == current.lease_token
    assert status(lost.job_id) == Status.RUNNING


def test_a_job_that_is_asked_to_cancel_is_not_handed_on_and_stays_for_settle():
    with tenant_context("acme"):
        enqueue_one()
    free = enqueue_one()
    leases = claim_many()
    with tenant_context("acme"):
        cancel_many([leases[0].job_id])

    released = release([(lease, None) for lease in leases], code="drain")

    assert [decision.job_id for decision in released] == [free]
    assert (status(leases[0].job_id), attempt_states(leases[0].job_id)) == (Status.RUNNING, [])
    assert [decision.status for decision in settle([completed(leases[0])])] == [Status.CANCELLED]


def test_a_release_twice_grants_once():
    enqueue_one()
    lease = claim_one()
    release([(lease, None)], code="drain")

    assert release([(lease, None)], code="drain") == []
    assert row(lease.job_id).max_attempts == 6
    assert attempt_states(lease.job_id) == [AttemptState.RELEASED]

"""reap: an attempt whose lease ran out is taken back. running -> scheduled, dead_letter, cancelled."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.reap import reap
from pgbroker.lifecycle.settle import settle
from pgbroker.models import JobPayload
from pgbroker.policy.backoff import Backoff
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import tenant_context
from tests.support.jobs import (
    age,
    age_worker,
    alive,
    attempt_states,
    claim_many,
    claim_one,
    completed,
    enqueue_one,
    events,
    executions,
    guards_off,
    reap_all,
    row,
    snoozed,
    status,
)
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db
STEADY = Backoff(base=100.0, factor=1.0, cap=100.0, jitter=False)


def expire_lease(*leases):
    age(*(lease.job_id for lease in leases), only=["lease_expires_at", "leased_at"], minutes=2)


def claim_when_due(job_id):
    age(job_id, only=["available_at"], days=400)
    promote([row(job_id).queue_id], limit=10)
    (lease,) = [each for each in claim_many() if each.job_id == job_id]
    return lease


def test_b001_a_job_whose_holder_is_gone_runs_again_under_a_new_token():
    enqueue_one()
    lease = claim_one()
    expire_lease(lease)

    (taken,) = reap_all()

    assert (taken.job_id, taken.lease_token, taken.worker_id) == (lease.job_id, 1, lease.worker_id)
    assert (taken.attempt_no, taken.state, taken.status) == (1, AttemptState.CRASHED, Status.SCHEDULED)
    again = claim_when_due(lease.job_id)
    assert (again.attempt_count, again.lease_token, again.crash_count) == (2, 2, 1)
    settle([completed(again)])
    assert attempt_states(lease.job_id) == [AttemptState.CRASHED, AttemptState.COMPLETED]


def test_a_lease_that_has_not_expired_is_left_alone():
    enqueue_one()
    lease = claim_one()

    assert reap_all() == []
    assert status(lease.job_id) == Status.RUNNING


def test_the_attempt_is_a_crash_only_where_the_worker_is_silent():
    for _ in range(2):
        enqueue_one()
    alive()
    lively, silent = claim_many()
    expire_lease(lively)
    reap_all()
    age_worker(minutes=2)
    expire_lease(silent)
    reap_all()

    assert attempt_states(lively.job_id) == [AttemptState.LEASE_EXPIRED]
    assert attempt_states(silent.job_id) == [AttemptState.CRASHED]
    assert [row(each.job_id).crash_count for each in (lively, silent)] == [0, 1]
    assert {executions(each.job_id)[0].error_code for each in (lively, silent)} == {"worker_lost"}
    assert executions(silent.job_id)[0].started_at == row(silent.job_id).leased_at


@pytest.mark.parametrize(
    ("seconds", "state"), [(29, AttemptState.LEASE_EXPIRED), (31, AttemptState.CRASHED)], ids=str
)
def test_a_worker_that_had_no_half_lease_to_speak_up_in_is_no_crash(seconds, state):
    """Whoever reaps was cut off as well: the database was away, and nobody could beat."""
    enqueue_one()
    lease = claim_one()
    alive()
    age_worker(minutes=5)
    expire_lease(lease)

    assert [taken.state for taken in reap_all(in_touch=timedelta(seconds=seconds))] == [state]


def test_a_worker_that_beat_a_moment_after_its_last_claim_and_died_is_a_crash():
    """Its row outlives the lease by that moment, in which the reaper may come."""
    enqueue_one()
    lease = claim_one()
    alive()
    age_worker(seconds=59)
    expire_lease(lease)

    assert [taken.state for taken in reap_all()] == [AttemptState.CRASHED]


def test_b003_a_holder_is_one_process_start_so_a_namesake_keeps_nothing_alive():
    enqueue_one()
    lease = claim_one()
    alive(uuid4())
    expire_lease(lease)

    assert [taken.state for taken in reap_all()] == [AttemptState.CRASHED]


def test_the_first_crash_is_retried_at_once_and_later_ones_after_the_backoff():
    enqueue_one(max_attempts=10)
    lease = claim_one()
    waits = []
    for _ in range(3):
        expire_lease(lease)
        reap_all(max_crashes=10, backoff=STEADY)
        waits.append((row(lease.job_id).available_at - timezone.now()).total_seconds())
        lease = claim_when_due(lease.job_id)

    assert waits[0] < 1
    assert waits[1:] == pytest.approx([100, 100], abs=30)


def test_b013_a_job_that_kills_its_workers_ends_as_a_dead_letter_and_the_next_one_runs():
    enqueue_one(max_attempts=10)
    behind = enqueue_one()
    lease = claim_one()
    for crash in (1, 2, 3):
        expire_lease(lease)
        (taken,) = reap_all(max_crashes=3)
        assert taken.status == (Status.DEAD_LETTER if crash == 3 else Status.SCHEDULED)
        if crash < 3:
            age(lease.job_id, only=["available_at"], days=1)
            promote([lease.queue_id], limit=9)
            age(lease.job_id, only=["ready_at"], days=1)
            lease = claim_one()

    job = row(lease.job_id)
    assert (job.crash_count, job.attempt_count, job.finished_at is not None) == (3, 3, True)
    assert events(job.pk) == [Status.DEAD_LETTER]
    assert [each.job_id for each in claim_many()] == [behind]


def test_the_last_attempt_that_is_lost_is_a_dead_letter_crash_or_not():
    for _ in range(2):
        enqueue_one(max_attempts=1)
    alive()
    lively, silent = claim_many()
    expire_lease(lively)
    (first,) = reap_all()
    age_worker(minutes=2)
    expire_lease(silent)
    (second,) = reap_all()

    assert [first.status, second.status] == [Status.DEAD_LETTER, Status.DEAD_LETTER]


def test_leases_lost_on_a_live_worker_do_not_count_as_crashes():
    enqueue_one(max_attempts=10)
    alive()
    lease = claim_one()
    for _ in range(4):
        expire_lease(lease)
        (taken,) = reap_all(max_crashes=1)
        assert taken.status == Status.SCHEDULED
        lease = claim_when_due(lease.job_id)

    assert row(lease.job_id).crash_count == 0


def test_b067_a_job_of_a_dead_worker_that_was_asked_to_cancel_ends_cancelled():
    with tenant_context("acme"):
        enqueue_one()
        lease = claim_one()
        (answer,) = cancel_many([lease.job_id], reason="no longer wanted")
    expire_lease(lease)

    assert answer.outcome == "requested"
    assert [taken.status for taken in reap_all()] == [Status.CANCELLED]
    assert attempt_states(lease.job_id) == [AttemptState.CRASHED]
    assert events(lease.job_id) == [Status.CANCELLED]
    assert claim_many() == []


def test_the_backoff_counts_failures_and_not_snoozes():
    """Base 1 s, doubled per failure: ten snoozes must not make the second crash wait 2**11 s."""
    enqueue_one(max_attempts=5)
    lease = claim_one()
    for _ in range(10):
        settle([snoozed(lease)])
        lease = claim_when_due(lease.job_id)
    for _ in range(2):
        expire_lease(lease)
        reap_all(backoff=Backoff(base=1.0, factor=2.0, cap=10_000.0, jitter=False))
        waited = row(lease.job_id).available_at - timezone.now()
        lease = claim_when_due(lease.job_id)

    assert waited < timedelta(seconds=3)


def test_the_backoff_of_the_job_goes_before_the_general_one():
    enqueue_one(max_attempts=9, options={"backoff": {"base": 500, "factor": 1, "cap": 500, "jitter": False}})
    lease = claim_one()
    for _ in range(2):
        expire_lease(lease)
        reap_all(max_crashes=9, backoff=STEADY)
        waited = row(lease.job_id).available_at - timezone.now()
        lease = claim_when_due(lease.job_id)

    assert waited.total_seconds() == pytest.approx(500, abs=30)


@pytest.mark.parametrize(
    "backoff",
    [
        {"base": 5, "factor": 1e300, "cap": 3600},
        {"base": 1e300, "factor": 2, "cap": 1e300},
        {"base": 5, "factor": 0, "cap": 3600},
        {"base": -1, "factor": -2, "cap": -3},
        {"base": 0, "factor": 2, "cap": 0},
        {"base": "soon", "factor": None, "cap": []},
        {"base": 1e-300},
        [],
        "never",
    ],
    ids=str,
)
def test_b017_no_backoff_that_a_row_may_carry_stops_the_reaper(backoff):
    """Enqueue refuses such values; a row may have them from whoever wrote it by hand."""
    job_id = enqueue_one(max_attempts=100)
    with guards_off():
        JobPayload.objects.filter(pk=job_id).update(options={"backoff": backoff})
    lease = claim_one()
    for _ in range(3):
        expire_lease(lease)
        (taken,) = reap_all(max_crashes=100)
        assert taken.status == Status.SCHEDULED
        waited = row(lease.job_id).available_at - timezone.now()
        assert timedelta(seconds=-30) < waited <= timedelta(days=366)
        lease = claim_when_due(lease.job_id)


def test_b017_the_wait_is_capped_before_it_is_multiplied():
    enqueue_one(max_attempts=10_000)
    lease = claim_one()
    with_many_attempts = "update pgbroker.job set attempt_count = 900, crash_count = 1 where id = %s"
    with connection.cursor() as cursor:
        cursor.execute(with_many_attempts, [lease.job_id])
    expire_lease(lease)

    reap_all(max_crashes=10_000, backoff=Backoff(base=5, factor=5, cap=3600, jitter=False))

    waited = row(lease.job_id).available_at - timezone.now()
    assert waited.total_seconds() == pytest.approx(3600, abs=30)


def test_with_jitter_the_wait_is_a_random_share_of_the_whole():
    enqueue_one(max_attempts=100)
    lease = claim_one()
    waits = set()
    for _ in range(6):
        expire_lease(lease)
        reap_all(max_crashes=100, backoff=Backoff(base=1000, factor=1, cap=1000))
        waits.add(round((row(lease.job_id).available_at - timezone.now()).total_seconds()))
        lease = claim_when_due(lease.job_id)

    assert len(waits) > 3
    assert all(-30 < wait <= 1000 for wait in waits)


def test_the_bound_is_only_a_hint():
    for _ in range(3):
        enqueue_one()
    leases = claim_many()
    for place, lease in enumerate(leases):
        age(lease.job_id, only=["lease_expires_at"], seconds=600 - 100 * place)

    recent = reap_all(within=timedelta(seconds=480))
    (oldest,) = reap(limit=1, max_crashes=3, backoff=Backoff())

    assert [taken.job_id for taken in recent] == [lease.job_id for lease in leases[1:]]
    assert oldest.job_id == leases[0].job_id


def test_the_limit_is_kept_and_the_oldest_expiry_goes_first():
    for _ in range(3):
        enqueue_one()
    leases = claim_many()
    for place, lease in enumerate(leases):
        age(lease.job_id, only=["lease_expires_at"], seconds=100 + 100 * place)

    (oldest,) = reap(limit=1, max_crashes=3, backoff=Backoff())

    assert oldest.job_id == leases[2].job_id


@pytest.mark.django_db(transaction=True)
def test_a_row_that_somebody_holds_is_left_to_them_without_waiting():
    with tenant_context("acme"):
        enqueue_one()
    enqueue_one()
    held, free = claim_many()
    expire_lease(held, free)

    with second_session() as other, other.transaction():
        other.execute("select from pgbroker.job where id = %s for no key update", (held.job_id,))
        assert [taken.job_id for taken in reap_all()] == [free.job_id]

    assert [taken.job_id for taken in reap_all()] == [held.job_id]

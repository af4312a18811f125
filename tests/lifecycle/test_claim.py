"""claim: ready -> running, best rank first, one attempt burned and one new token."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from pgbroker.lifecycle.pause import Target, pause, resume
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.settle import settle
from pgbroker.models import JobPayload
from pgbroker.states import Status
from pgbroker.tenancy import tenant_context
from tests.factories import JobFactory
from tests.support.jobs import (
    LEASE,
    MAX_CRASHES,
    OTHER_TYPE,
    OTHER_WORKER,
    TYPE,
    WORKER,
    age,
    claim_many,
    claim_one,
    completed,
    enqueue_one,
    failed,
    guards_off,
    queue_id,
    row,
    settle_one,
    status,
    type_id,
)

pytestmark = pytest.mark.django_db


def claimed(**options):
    """Claim what there is and return the ids, in order."""
    return [lease.job_id for lease in claim_many(**options)]


def test_a_claim_burns_an_attempt_and_hands_over_a_new_token_and_all_a_handler_needs():
    job_id = enqueue_one(
        args={"v": 1, "args": [], "kwargs": {"a": 1}}, priority=3, max_attempts=4, options={"timeout": 9},
        correlation_id="c", principal="p", traceparent="t",
    )  # fmt: skip

    lease = claim_one()

    job = row(job_id)
    assert (job.status, job.attempt_count, job.lease_token, job.worker_id) == (Status.RUNNING, 1, 1, WORKER)
    assert job.lease_expires_at - job.leased_at == LEASE
    assert (lease.job_id, lease.lease_token, lease.worker_id) == (job_id, 1, WORKER)
    assert (lease.queue_id, lease.job_type_id, lease.tenant_id) == (job.queue_id, job.job_type_id, "default")
    assert (lease.priority, lease.attempt_count, lease.max_attempts, lease.declared_attempts) == (3, 1, 4, 4)
    assert (lease.ready_at, lease.leased_at, lease.created_at) == (
        job.ready_at,
        job.leased_at,
        job.created_at,
    )
    assert lease.args == {"v": 1, "args": [], "kwargs": {"a": 1}}
    assert (lease.options, lease.correlation_id, lease.principal, lease.traceparent) == (
        {"timeout": 9},
        "c",
        "p",
        "t",
    )


def test_the_token_and_the_count_rise_with_every_claim():
    job_id = enqueue_one()
    for attempt in (1, 2, 3):
        lease = claim_one(worker_id=OTHER_WORKER)
        assert (lease.lease_token, lease.attempt_count, lease.worker_id) == (attempt, attempt, OTHER_WORKER)
        settle_one(failed(lease))
        promote([queue_id()], limit=1)
    assert row(job_id).attempt_count == 3


def test_a_claim_takes_no_more_than_its_limit_and_none_twice():
    jobs = [enqueue_one() for _ in range(5)]

    first, second, third = claimed(limit=2), claimed(limit=2), claimed(limit=2)

    assert [len(first), len(second), len(third)] == [2, 2, 1]
    assert first + second + third == jobs
    assert claimed() == []


def test_a_claim_serves_only_its_queue():
    enqueue_one(queue="other")

    assert claimed() == []
    assert len(claimed(queue="other")) == 1


def test_a_claim_serves_every_tenant():
    with tenant_context("acme"):
        theirs = enqueue_one()
    ours = enqueue_one()

    with tenant_context("bolt"):
        leases = claim_many()

    assert [(lease.job_id, lease.tenant_id) for lease in leases] == [(theirs, "acme"), (ours, "default")]


@pytest.mark.parametrize(
    "state", ["scheduled", "waiting", "running", "suspended", "blocked", "completed", "failed"]
)
def test_only_a_ready_job_is_claimed(state):
    JobFactory(**{state: True})

    assert claimed() == []


def test_a_job_past_its_deadline_is_not_started():
    late = enqueue_one(deadline_seconds=60)
    age(late, seconds=61)
    soon = enqueue_one(deadline_seconds=60)

    assert claimed() == [soon]
    assert status(late) == Status.READY


# ------------------------------------------------------------------ priorities and ageing


def test_a_higher_priority_goes_first_and_equals_go_by_age():
    low, first, second, high = (
        enqueue_one(priority=0), enqueue_one(priority=5), enqueue_one(priority=5), enqueue_one(priority=100)
    )  # fmt: skip

    assert claimed() == [high, first, second, low]


@pytest.mark.parametrize(("waited", "low_first"), [(9.0, False), (11.0, True)])
def test_b033_ten_steps_of_priority_are_worth_ten_steps_of_waiting_and_no_more(waited, low_first):
    """A step a second: a job of priority 0 overtakes fresh ones of priority 10 once it waited 10 s."""
    low = enqueue_one(priority=0)
    age(low, seconds=waited)
    high = [enqueue_one(priority=10) for _ in range(3)]

    order = claimed(ageing=timedelta(seconds=1))

    assert order == ([low, *high] if low_first else [*high, low])


def test_b033_a_step_of_ten_years_makes_priority_strict():
    low = enqueue_one(priority=0)
    age(low, days=365)
    high = enqueue_one(priority=1)

    assert claimed(ageing=timedelta(days=3650)) == [high, low]


def test_a_step_of_nothing_is_first_come_first_served():
    low, high = enqueue_one(priority=-100), enqueue_one(priority=100)

    assert claimed(ageing=timedelta(0)) == [low, high]


def test_the_limit_is_over_all_priorities_together():
    for priority in (0, 1, 2):
        for _ in range(3):
            enqueue_one(priority=priority)

    leases = claim_many(4)

    assert [lease.priority for lease in leases] == [2, 2, 2, 1]


# ------------------------------------------------------------------ bounds


def test_a_bound_hides_what_is_before_it_and_nothing_after_it():
    before, at, after = enqueue_one(), enqueue_one(), enqueue_one()

    assert claimed(bounds={0: (row(at).ready_at, at)}) == [after]
    assert claimed() == [before, at]


def test_a_bound_of_one_priority_leaves_the_others_alone():
    low = [enqueue_one(priority=0) for _ in range(2)]
    high = [enqueue_one(priority=5) for _ in range(2)]

    assert claimed(bounds={0: (row(low[1]).ready_at, low[1])}) == high
    assert claimed() == low


def test_a_bound_tells_equal_instants_apart_by_id():
    jobs = sorted((JobFactory(), JobFactory()), key=lambda job: job.pk)
    with guards_off(), connection.cursor() as cursor:
        cursor.execute("update pgbroker.job set ready_at = statement_timestamp() - interval '1 s'")

    assert claimed(bounds={0: (row(jobs[0].pk).ready_at, jobs[0].pk)}) == [jobs[1].pk]


# ------------------------------------------------------------------ fragile jobs


def test_a_job_on_its_last_attempt_is_taken_only_for_an_idle_slot():
    enqueue_one(max_attempts=1)

    assert claimed(idle=0) == []
    (lease,) = claim_many(idle=1)
    assert lease.fragile


def test_a_job_that_crashed_a_worker_is_taken_only_for_an_idle_slot():
    job = JobFactory(attempt_count=1, crash_count=1)

    assert claimed(idle=0) == []
    assert claimed(idle=1) == [job.pk]


def test_fragile_jobs_fill_the_idle_slots_and_the_others_are_held_behind_them():
    fragile = [enqueue_one(max_attempts=1) for _ in range(3)]
    sturdy = [enqueue_one() for _ in range(3)]

    leases = claim_many(10, idle=2)

    assert [lease.job_id for lease in leases] == [*fragile[:2], *sturdy]
    assert status(fragile[2]) == Status.READY


def test_a_fragile_job_behind_sturdy_ones_waits_for_its_slot():
    sturdy = [enqueue_one() for _ in range(2)]
    fragile = enqueue_one(max_attempts=1)

    assert claimed(idle=2) == sturdy
    assert claimed(idle=1) == [fragile]


def test_of_suspects_no_more_are_taken_than_asked_for_and_they_do_not_stand_in_the_way():
    """A suspect has crashed a worker, and another crash would end it: by the count of crashes, or its attempts."""
    suspects = [
        JobFactory(attempt_count=2, crash_count=2).pk,
        JobFactory(attempt_count=2, crash_count=1, max_attempts=3, declared_attempts=3).pk,
    ]
    crashed_once, sound = JobFactory(attempt_count=1, crash_count=1).pk, enqueue_one()

    assert claimed(suspects=0) == [crashed_once, sound]
    assert claimed(suspects=1) == suspects[:1]
    assert claimed(suspects=0) == []
    assert claimed(suspects=2) == suspects[1:]


def test_a_lease_tells_that_it_is_a_suspects():
    JobFactory(attempt_count=2, crash_count=2)
    JobFactory(attempt_count=2, crash_count=1, max_attempts=3, declared_attempts=3)
    JobFactory(attempt_count=1, crash_count=1)
    enqueue_one(max_attempts=1)

    assert [lease.is_suspect(MAX_CRASHES) for lease in claim_many()] == [True, True, False, False]


def test_beyond_the_idle_slots_only_quick_types_are_taken():
    slow = [enqueue_one() for _ in range(2)]
    quick = [enqueue_one(job_type=OTHER_TYPE) for _ in range(2)]

    assert claimed(idle=1, quick=[type_id(OTHER_TYPE)]) == [slow[0], *quick]
    assert claimed(idle=0, quick=[]) == []
    assert claimed(idle=1, quick=[]) == [slow[1]]


def test_with_a_slot_for_each_every_job_is_taken():
    jobs = [enqueue_one(max_attempts=1 + place % 2) for place in range(6)]

    assert claimed(limit=6, idle=6) == jobs


# ------------------------------------------------------------------ pauses


@pytest.mark.parametrize(
    "target",
    [
        Target(queue="default"),
        Target(job_type=TYPE),
        Target(tenant="acme"),
        Target(queue="default", tenant="acme"),
    ],
    ids=lambda target: target.kind,
)
def test_b035_a_paused_job_is_not_claimed_until_it_is_resumed(target):
    with tenant_context("acme"):
        job_id = enqueue_one()
    pause(target)

    assert claimed() == []
    resume(target)
    assert claimed() == [job_id]


@pytest.mark.parametrize(
    "target",
    [
        Target(queue="other"),
        Target(job_type=OTHER_TYPE),
        Target(tenant="bolt"),
        Target(queue="other", tenant="acme"),
        Target(queue="default", tenant="bolt"),
    ],
    ids=str,
)
def test_b035_a_pause_of_something_else_stops_nothing(target):
    queue_id("other")
    enqueue_one(job_type=OTHER_TYPE, queue="other")
    with tenant_context("acme"):
        job_id = enqueue_one()
    assert pause(target) is not None

    assert claimed() == [job_id]


def test_b035_a_pause_with_an_end_ends_by_itself():
    job_id = enqueue_one()
    pause(Target(queue="default"), duration=timedelta(seconds=60))
    assert claimed() == []

    with connection.cursor() as cursor:
        cursor.execute("update pgbroker.pause set until = until - interval '61 s'")

    assert claimed() == [job_id]


def test_b035_retries_and_due_jobs_of_a_paused_queue_wait_too():
    retried = enqueue_one()
    settle_one(failed(claim_one(), delay=timedelta(0)))
    scheduled = enqueue_one(delay_seconds=1)
    age(scheduled, seconds=2)
    pause(Target(queue="default"))

    assert promote([queue_id()], limit=10) == {queue_id(): 2}
    assert claimed() == []
    resume(Target(queue="default"))
    assert sorted(claimed()) == sorted([retried, scheduled])


# ------------------------------------------------------------------ rows that no enqueue made


def test_b130_a_job_without_a_payload_is_handed_over_all_the_same():
    """A raw INSERT, or a payload lost in a restore: it must fail in sight, not be claimed into nowhere."""
    job = JobFactory()
    with guards_off():
        JobPayload.objects.filter(pk=job.pk).delete()

    (lease,) = claim_many()

    assert (lease.job_id, lease.args, lease.type_version) == (job.pk, None, 1)
    assert [decision.status for decision in settle([failed(lease, permanent=True)])] == [Status.FAILED]


def test_the_lease_starts_at_the_databases_time_of_the_claim():
    enqueue_one()

    lease = claim_one()

    assert abs(lease.leased_at - timezone.now()) < timedelta(seconds=30)
    assert settle_one(completed(lease)).status == Status.COMPLETED

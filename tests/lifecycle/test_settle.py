"""settle: the one verb that ends an attempt. Workers report, the row decides, the fence holds."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.settle import settle
from pgbroker.models import JobCounter
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import tenant_context
from tests.support.jobs import (
    OTHER_WORKER,
    age,
    alive,
    attempt_states,
    claim_many,
    claim_one,
    completed,
    ended,
    enqueue_one,
    events,
    executions,
    failed,
    queue_id,
    reap_all,
    reason,
    row,
    settle_one,
    snoozed,
    status,
)

pytestmark = pytest.mark.django_db
A_MINUTE = timedelta(minutes=1)


def claimed(**options):
    enqueue_one(**options)
    return claim_one()


def claimed_again(lease):
    """Wait until the job is due again and claim it."""
    age(lease.job_id, only=["available_at"], days=400)
    promote([lease.queue_id], limit=10)
    return claim_one()


# ------------------------------------------------------------------ where the job goes


@pytest.mark.parametrize(
    ("attempts", "outcome", "expected"),
    [
        (2, {"state": AttemptState.COMPLETED}, Status.COMPLETED),
        (1, {"state": AttemptState.COMPLETED}, Status.COMPLETED),
        (2, {"state": AttemptState.FAILED}, Status.SCHEDULED),
        (1, {"state": AttemptState.FAILED}, Status.DEAD_LETTER),
        (2, {"state": AttemptState.TIMED_OUT}, Status.SCHEDULED),
        (1, {"state": AttemptState.TIMED_OUT}, Status.DEAD_LETTER),
        (2, {"state": AttemptState.CRASHED}, Status.SCHEDULED),
        (1, {"state": AttemptState.SNOOZED}, Status.SCHEDULED),
        (2, {"state": AttemptState.FAILED, "permanent": True}, Status.FAILED),
        (1, {"state": AttemptState.FAILED, "permanent": True}, Status.FAILED),
        (2, {"state": AttemptState.FAILED, "dead": True}, Status.DEAD_LETTER),
    ],
)
def test_the_row_decides_where_the_job_goes(attempts, outcome, expected):
    lease = claimed(max_attempts=attempts)

    decision = settle_one(ended(lease, delay=A_MINUTE, **outcome))

    job = row(lease.job_id)
    assert (decision.job_id, decision.lease_token, decision.status) == (lease.job_id, 1, expected)
    assert job.status == expected
    assert (job.worker_id, job.lease_expires_at) == (None, None)
    assert (job.finished_at is not None) == (expected >= 10)
    assert (job.available_at is not None) == (expected == Status.SCHEDULED)
    assert attempt_states(lease.job_id) == [outcome["state"]]


def crashed(lease, delay=timedelta(0)):
    return ended(lease, AttemptState.CRASHED, delay=delay, error_code="child_crashed", error="gone")


def test_a_crash_that_is_reported_is_counted_and_too_many_make_a_dead_letter():
    lease = claimed(max_attempts=10)
    statuses = []
    for _ in range(3):
        (decision,) = settle([crashed(lease)], max_crashes=3)
        statuses.append((decision.status, row(lease.job_id).crash_count))
        if decision.status == Status.SCHEDULED:
            lease = claimed_again(lease)

    assert statuses == [(Status.SCHEDULED, 1), (Status.SCHEDULED, 2), (Status.DEAD_LETTER, 3)]
    assert attempt_states(lease.job_id) == [AttemptState.CRASHED] * 3
    assert row(lease.job_id).finished_at is not None


def test_crashes_that_were_reaped_and_reported_are_counted_together():
    lease = claimed(max_attempts=10)
    age(lease.job_id, only=["lease_expires_at"], hours=1)
    reap_all()
    lease = claimed_again(lease)

    (decision,) = settle([crashed(lease)], max_crashes=2)

    assert (decision.status, row(lease.job_id).crash_count) == (Status.DEAD_LETTER, 2)


def test_the_setting_says_how_many_crashes_where_the_caller_does_not(settings):
    settings.PGBROKER = {"MAX_CRASHES": 1}
    lease = claimed(max_attempts=10)

    assert settle_one(crashed(lease)).status == Status.DEAD_LETTER


def test_only_a_crash_is_counted_as_one():
    lease = claimed(max_attempts=10)

    settle([failed(lease)], max_crashes=1)

    assert (status(lease.job_id), row(lease.job_id).crash_count) == (Status.SCHEDULED, 0)


def test_a_crash_of_a_job_that_was_asked_to_cancel_cancels_it():
    lease = claimed()
    cancel_many([lease.job_id], reason="enough")

    assert settle_one(crashed(lease)).status == Status.CANCELLED
    assert row(lease.job_id).crash_count == 1


def test_a_retry_waits_for_its_delay_by_the_databases_clock():
    lease = claimed()

    settle_one(failed(lease, delay=timedelta(minutes=10)))

    assert abs(row(lease.job_id).available_at - timezone.now() - timedelta(minutes=10)) < timedelta(
        seconds=30
    )
    assert promote([queue_id()], limit=1) == {}


def test_b015_the_attempts_are_counted_at_the_claim_so_the_last_one_is_the_last():
    lease = claimed(max_attempts=3)
    decisions = [settle_one(failed(lease)).status]
    for _ in range(2):
        lease = claimed_again(lease)
        decisions.append(settle_one(failed(lease)).status)

    job = row(lease.job_id)
    assert decisions == [Status.SCHEDULED, Status.SCHEDULED, Status.DEAD_LETTER]
    assert (job.attempt_count, job.max_attempts) == (3, 3)
    assert [each.attempt_no for each in executions(job.pk)] == [1, 2, 3]


@pytest.mark.parametrize("crash_first", [True, False])
def test_b015_a_crash_and_an_exception_count_the_same_in_either_order(crash_first):
    lease = claimed(max_attempts=2)

    for crash in (crash_first, not crash_first):
        if crash:
            age(lease.job_id, only=["lease_expires_at"], minutes=2)
            reap_all()
        else:
            settle_one(failed(lease))
        if status(lease.job_id) == Status.SCHEDULED:
            lease = claimed_again(lease)

    job = row(lease.job_id)
    assert (job.status, job.attempt_count) == (Status.DEAD_LETTER, 2)
    assert sorted(attempt_states(job.pk)) == [AttemptState.FAILED, AttemptState.CRASHED]


def test_a_snooze_burns_nothing_and_is_no_failure():
    lease = claimed(max_attempts=2)
    for number in (1, 2, 3):
        settle_one(snoozed(lease, delay=A_MINUTE))
        assert row(lease.job_id).max_attempts == 2 + number
        lease = claimed_again(lease)

    assert (lease.attempt_count, lease.max_attempts, lease.failures_before) == (4, 5, 0)
    assert settle_one(failed(lease)).status == Status.SCHEDULED
    lease = claimed_again(lease)
    assert lease.failures_before == 1
    assert settle_one(failed(lease)).status == Status.DEAD_LETTER


# ------------------------------------------------------------------ the fence


def test_a_settle_under_a_lost_lease_changes_nothing():
    lost = claimed()
    age(lost.job_id, minutes=2)
    reap_all()
    current = claimed_again(lost)

    assert settle([completed(lost)]) == []

    job = row(lost.job_id)
    assert (job.status, job.lease_token) == (Status.RUNNING, current.lease_token)
    assert attempt_states(job.pk) == [AttemptState.CRASHED]
    assert events(job.pk) == []


@pytest.mark.parametrize("forged", [{"lease_token": 0}, {"lease_token": 2}, {"worker_id": OTHER_WORKER}])
def test_the_fence_needs_the_token_and_the_worker(forged):
    lease = claimed()

    assert settle([completed(lease._replace(**forged))]) == []
    assert (status(lease.job_id), executions(lease.job_id)) == (Status.RUNNING, [])


def test_b005_the_second_settle_of_an_attempt_changes_nothing():
    lease = claimed()
    settle_one(completed(lease, result='"first"'))
    before = row(lease.job_id)

    assert settle([failed(lease)]) == []

    after = row(lease.job_id)
    assert (after.status, after.finished_at) == (Status.COMPLETED, before.finished_at)
    assert [each.result for each in executions(lease.job_id)] == ["first"]
    assert events(lease.job_id) == [Status.COMPLETED]


def test_an_expired_lease_that_nobody_took_back_may_still_be_settled():
    lease = claimed()
    age(lease.job_id, minutes=2)

    assert settle_one(completed(lease)).status == Status.COMPLETED
    assert reap_all() == []


def test_the_same_attempt_twice_in_a_batch_is_settled_once():
    lease = claimed()

    decisions = settle([completed(lease), completed(lease)])

    assert {decision.job_id for decision in decisions} == {lease.job_id}
    assert attempt_states(lease.job_id) == [AttemptState.COMPLETED]
    assert events(lease.job_id) == [Status.COMPLETED]


def test_one_lost_attempt_does_not_sink_the_batch():
    with tenant_context("acme"):
        enqueue_one()
    jobs = [enqueue_one() for _ in range(3)]
    leases = claim_many()
    settle_one(completed(leases[1]))

    decisions = settle([failed(each) for each in reversed(leases)])

    assert [decision.job_id for decision in decisions] == sorted(
        {lease.job_id for lease in leases} - {jobs[0]}
    )
    assert status(jobs[0]) == Status.COMPLETED


def test_leases_of_two_workers_settle_together():
    for _ in range(2):
        enqueue_one()
    mine, theirs = claim_one(), claim_one(worker_id=OTHER_WORKER)

    assert len(settle([completed(theirs), completed(mine)])) == 2


# ------------------------------------------------------------------ cancel and deadline


@pytest.mark.parametrize(
    "outcome",
    [
        {"state": AttemptState.COMPLETED},
        {"state": AttemptState.FAILED, "delay": A_MINUTE},
        {"state": AttemptState.FAILED, "permanent": True},
        {"state": AttemptState.FAILED, "dead": True},
        {"state": AttemptState.SNOOZED, "delay": A_MINUTE},
        {"state": AttemptState.CANCELLED},
        {"state": AttemptState.TIMED_OUT},
    ],
    ids=str,
)
def test_b065_a_cancel_request_wins_over_whatever_the_handler_reports(outcome):
    lease = claimed()
    cancel_many([lease.job_id], reason="stop")

    assert settle_one(ended(lease, **outcome)).status == Status.CANCELLED

    job = row(lease.job_id)
    assert (job.available_at, job.max_attempts) == (None, 5)
    assert attempt_states(job.pk) == [outcome["state"]]
    assert (reason(job.pk), events(job.pk)) == ("cancelled", [Status.CANCELLED])


@pytest.mark.parametrize("settled", [failed, snoozed])
@pytest.mark.parametrize(("delay", "expected"), [(30, Status.SCHEDULED), (90, Status.FAILED)])
def test_no_retry_and_no_snooze_is_scheduled_beyond_the_deadline(settled, delay, expected):
    lease = claimed(deadline_seconds=60)

    assert settle_one(settled(lease, timedelta(seconds=delay))).status == expected

    assert reason(lease.job_id) == ("deadline_exceeded" if expected == Status.FAILED else None)
    assert row(lease.job_id).max_attempts == (6 if settled is snoozed and expected == Status.SCHEDULED else 5)


@pytest.mark.parametrize("delay", [None, timedelta(0)])
def test_a_failure_after_the_deadline_has_passed_is_the_end_though_it_asks_for_no_delay(delay):
    lease = claimed(deadline_seconds=60)
    age(lease.job_id, only=["deadline_at"], seconds=61)

    assert settle_one(failed(lease, delay)).status == Status.FAILED
    assert reason(lease.job_id) == "deadline_exceeded"


def test_work_that_completed_after_the_deadline_is_complete():
    lease = claimed(deadline_seconds=60)
    age(lease.job_id, only=["deadline_at"], seconds=61)

    assert settle_one(completed(lease)).status == Status.COMPLETED
    assert reason(lease.job_id) is None


def test_attempts_that_are_used_up_are_a_dead_letter_deadline_or_not():
    lease = claimed(deadline_seconds=60, max_attempts=1)

    assert settle_one(failed(lease, timedelta(seconds=90))).status == Status.DEAD_LETTER
    assert reason(lease.job_id) is None


# ------------------------------------------------------------------ what is recorded


def test_the_execution_keeps_what_the_worker_told():
    lease = claimed()
    outcome = ended(
        lease, AttemptState.FAILED, delay=A_MINUTE, error_code="boom", error='it "broke"\\',
        traceback="line 1\nline 2", result=json.dumps({"a": [1, None]}), log_tail="tail, {with} braces",
    )  # fmt: skip

    settle_one(outcome)

    (kept,) = executions(lease.job_id)
    assert (kept.error_code, kept.error, kept.traceback) == ("boom", 'it "broke"\\', "line 1\nline 2")
    assert (kept.result, kept.log_tail) == ({"a": [1, None]}, "tail, {with} braces")
    assert (kept.tenant_id, kept.attempt_no, kept.worker_id) == ("default", 1, lease.worker_id)
    assert (kept.started_at, kept.duration_seconds) == (lease.leased_at, 0.25)
    assert abs(kept.completed_at - timezone.now()) < timedelta(seconds=30)


def test_columns_that_only_some_of_a_batch_have_stay_with_their_own_attempt():
    for _ in range(3):
        enqueue_one()
    first, second, third = claim_many()

    settle([completed(first), failed(second, A_MINUTE), completed(third, result="3", log_tail="log")])

    assert [each.result for lease in (first, second, third) for each in executions(lease.job_id)] == [
        None,
        None,
        3,
    ]
    assert [each.error for lease in (first, second, third) for each in executions(lease.job_id)] == [
        None,
        "it broke",
        None,
    ]
    assert [status(lease.job_id) for lease in (first, second, third)] == [
        Status.COMPLETED, Status.SCHEDULED, Status.COMPLETED,
    ]  # fmt: skip


def test_every_end_of_a_job_is_one_event_and_a_retry_is_none():
    lease = claimed()
    settle_one(failed(lease))
    assert events(lease.job_id) == []

    settle_one(completed(claimed_again(lease)))
    assert events(lease.job_id) == [Status.COMPLETED]


def test_the_counters_of_the_worker_add_up_over_settles():
    for _ in range(6):
        enqueue_one()
    leases = claim_many()
    cancel_many([leases[5].job_id])

    settle([completed(leases[0]), failed(leases[1], A_MINUTE), snoozed(leases[2], A_MINUTE)])
    settle([failed(leases[3], permanent=True), failed(leases[4], dead=True), completed(leases[5])])

    counted = JobCounter.objects.values_list("done", "retried", "snoozed", "failed", "dead", "cancelled")
    assert [sum(column) for column in zip(*counted, strict=True)] == [1] * 6
    assert sum(JobCounter.objects.values_list("run_seconds", flat=True)) == pytest.approx(1.5)
    assert all(waited >= 0 for waited in JobCounter.objects.values_list("wait_seconds", flat=True))


def test_a_lost_attempt_is_counted_nowhere():
    lease = claimed()

    settle([completed(lease._replace(lease_token=7))])

    assert not JobCounter.objects.exists()


def test_nothing_to_settle_is_no_statement(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert settle([]) == []


def test_a_worker_that_is_alive_changes_nothing_about_a_settle():
    alive()
    lease = claimed()

    assert settle_one(completed(lease)).status == Status.COMPLETED

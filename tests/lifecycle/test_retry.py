"""retry and redrive: failed, dead_letter, cancelled -> ready, with attempts granted and history kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.lifecycle.expire import expire
from pgbroker.lifecycle.retry import Ending, find_ended, retry_many
from pgbroker.states import LIVE, RETRYABLE, AttemptState, Status
from pgbroker.tenancy import tenant_context
from tests.factories import JobFactory
from tests.support.jobs import (
    OTHER_TYPE,
    TYPE,
    age,
    attempt_states,
    claim_many,
    claim_one,
    completed,
    enqueue_one,
    events,
    failed,
    queue_id,
    reason,
    row,
    settle_one,
    status,
)

pytestmark = pytest.mark.django_db


def dead(**options) -> UUID:
    """A dead letter that used its one attempt."""
    job_id = enqueue_one(max_attempts=1, **options)
    (lease,) = [each for each in claim_many() if each.job_id == job_id]
    settle_one(failed(lease))
    assert status(job_id) == Status.DEAD_LETTER
    return job_id


@pytest.mark.parametrize("state", sorted(RETRYABLE), ids=lambda each: each.label)
def test_a_job_that_went_wrong_is_ready_again_with_its_history(state):
    job = JobFactory(**{state.label: True})
    before = attempt_states(job.pk)

    (answer,) = retry_many([job.pk])

    after = row(job.pk)
    assert (answer.job_id, answer.outcome, answer.queue_id, answer.status) == (
        job.pk,
        "retried",
        queue_id(),
        state,
    )
    assert (after.status, after.finished_at, after.available_at) == (Status.READY, None, None)
    assert after.ready_at > job.ready_at
    assert attempt_states(job.pk) == before


@pytest.mark.parametrize("state", sorted(LIVE | {Status.COMPLETED}), ids=lambda each: each.label)
def test_a_live_or_completed_job_is_unchanged(state):
    job = JobFactory(**{state.label: True})

    (answer,) = retry_many([job.pk])

    assert (answer.outcome, answer.status, status(job.pk)) == ("unchanged", state, state)


@pytest.mark.parametrize(
    ("used", "maximum", "declared", "asked", "expected"),
    [
        (5, 5, 5, 1, 6),
        (5, 5, 5, 3, 8),
        (5, 5, 5, None, 10),
        (1, 5, 5, 1, 5),  # failed for good on the first of five: the others were never used
        (1, 5, 5, 9, 10),
        (0, 5, 5, 1, 5),
        (7, 9, 2, None, 9),
        (9, 9, 2, None, 11),
    ],
)
def test_a_retry_grants_what_it_was_asked_for_and_never_takes_attempts_away(
    used, maximum, declared, asked, expected
):
    job = JobFactory(
        failed=True, attempt_count=used, max_attempts=maximum, declared_attempts=declared, history=None
    )

    retry_many([job.pk], attempts=asked)

    after = row(job.pk)
    assert (after.attempt_count, after.max_attempts, after.declared_attempts) == (used, expected, declared)


def test_b023_a_retried_dead_letter_runs_once_more_and_no_oftener():
    job_id = dead()
    retry_many([job_id])

    lease = claim_one()
    assert (lease.attempt_count, lease.lease_token, lease.max_attempts) == (2, 2, 2)
    assert settle_one(failed(lease)).status == Status.DEAD_LETTER
    retry_many([job_id])
    assert settle_one(completed(claim_one())).status == Status.COMPLETED
    assert attempt_states(job_id) == [AttemptState.FAILED, AttemptState.FAILED, AttemptState.COMPLETED]
    assert events(job_id) == [Status.DEAD_LETTER, Status.DEAD_LETTER, Status.COMPLETED]


def test_a_retried_job_is_no_longer_asked_to_cancel():
    job_id = enqueue_one()
    lease = claim_one()
    cancel_many([job_id])
    settle_one(completed(lease))
    retry_many([job_id])

    assert reason(job_id) is None
    assert settle_one(completed(claim_one())).status == Status.COMPLETED


def test_the_deadline_that_ended_a_job_does_not_end_its_retry():
    job_id = enqueue_one(deadline_seconds=60)
    age(job_id, seconds=61)
    expire(limit=1)
    retry_many([job_id])

    assert (reason(job_id), row(job_id).deadline_at) == (None, None)
    assert claim_one().job_id == job_id


def test_retried_jobs_get_instants_of_their_own():
    jobs = [dead() for _ in range(3)]

    retry_many(jobs)

    assert len({row(job_id).ready_at for job_id in jobs}) == 3
    assert [lease.job_id for lease in claim_many()] == sorted(jobs)


def test_b137_a_job_of_another_tenant_is_like_one_that_does_not_exist():
    with tenant_context("acme"):
        theirs = dead()

    with tenant_context("bolt"):
        assert retry_many([theirs, uuid4()]) == []

    assert status(theirs) == Status.DEAD_LETTER


# ------------------------------------------------------------------ idempotency keys


def test_a_retry_never_collides_with_its_own_key():
    job_id = dead(idempotency_key="k")

    assert [answer.outcome for answer in retry_many([job_id])] == ["retried"]
    (again,) = enqueue_rows([{"job_type": TYPE, "max_attempts": 1, "idempotency_key": "k"}])
    assert (again.outcome, again.job_id) == ("existing", job_id)


def test_b041_a_dead_job_lets_go_of_its_key_and_its_retry_is_refused_while_the_next_one_lives():
    old = dead(idempotency_key="k")
    new = enqueue_one(idempotency_key="k")

    (answer,) = retry_many([old])

    assert (answer.outcome, answer.holder_id, status(old)) == (
        "key_held_by_newer_job",
        new,
        Status.DEAD_LETTER,
    )
    settle_one(completed(claim_one()))
    assert [answer.outcome for answer in retry_many([old])] == ["key_held_by_newer_job"]


def test_b041_once_the_newer_job_let_go_the_older_takes_its_key_back():
    old = dead(idempotency_key="k")
    new = enqueue_one(idempotency_key="k", priority=9)
    cancel_many([new])

    (answer,) = retry_many([old])

    assert (answer.outcome, answer.holder_id) == ("retried", None)
    (same,) = enqueue_rows([{"job_type": TYPE, "max_attempts": 1, "idempotency_key": "k"}])
    (other,) = enqueue_rows([{"job_type": TYPE, "idempotency_key": "k", "priority": 9}])
    assert (same.outcome, same.job_id) == ("existing", old)
    assert (other.outcome, other.job_id) == ("idempotency_conflict", old)
    assert [answer.outcome for answer in retry_many([new])] == ["key_held_by_newer_job"]


def test_of_jobs_that_share_a_key_a_redrive_retries_only_one():
    """Each of them ended and let go; together they would be two live jobs under one key."""
    jobs = [dead(idempotency_key="k") for _ in range(3)]
    free = dead()

    answers = {answer.job_id: answer for answer in retry_many([*jobs, free], attempts=None)}

    assert answers[jobs[2]].outcome == "retried"
    assert [(answers[each].outcome, answers[each].holder_id) for each in jobs[:2]] == [
        ("key_held_by_newer_job", jobs[2])
    ] * 2
    assert answers[free].outcome == "retried"
    assert [status(job_id) for job_id in jobs] == [Status.DEAD_LETTER, Status.DEAD_LETTER, Status.READY]


def test_of_two_older_jobs_with_one_key_the_latest_takes_it_back():
    first, second, third = (dead(idempotency_key="k") for _ in range(3))

    answers = {answer.job_id: answer.outcome for answer in retry_many([first, second])}

    assert answers == {first: "key_held_by_newer_job", second: "retried"}
    assert [answer.outcome for answer in retry_many([third])] == ["key_held_by_newer_job"]


# ------------------------------------------------------------------ finding what to redrive

FIRST = Ending(job_id=UUID(int=0), finished_at=datetime(1970, 1, 1, tzinfo=UTC))
FAR = datetime(9999, 1, 1, tzinfo=UTC)


def found(**filters):
    asked = {"status": Status.DEAD_LETTER, "before": FAR, "after": FIRST, "limit": 10, **filters}
    return [ending.job_id for ending in find_ended(**asked)]


def test_ended_jobs_are_listed_oldest_end_first_in_pages_that_neither_skip_nor_repeat():
    jobs = [dead() for _ in range(5)]
    for place, job_id in enumerate(jobs):
        age(job_id, only=["finished_at"], hours=10 - place)
    seen, after = [], FIRST
    while page := find_ended(status=Status.DEAD_LETTER, before=FAR, after=after, limit=2):
        seen += [ending.job_id for ending in page]
        after = page[-1]

    assert seen == jobs


def test_ended_jobs_are_found_by_queue_type_error_and_status():
    by_queue = dead()
    age(by_queue, only=["finished_at"], hours=1)
    by_type = dead(job_type=OTHER_TYPE)
    queue_id("other")
    cancelled = JobFactory(cancelled=True)
    JobFactory(completed=True)

    assert found() == [by_queue, by_type]
    assert found(queue="other") == []
    assert found(job_type=OTHER_TYPE) == [by_type]
    assert found(error_code="boom") == [by_queue, by_type]
    assert found(error_code="bang") == []
    assert found(status=Status.CANCELLED) == [cancelled.pk]
    assert found(status=Status.COMPLETED) == []
    assert found(before=row(by_type).finished_at) == [by_queue]


def test_ended_jobs_of_another_tenant_are_not_found():
    with tenant_context("acme"):
        theirs = dead()
        assert found() == [theirs]

    assert found() == []


def test_what_ends_while_a_redrive_runs_is_not_taken_again():
    job_id = dead()
    before = row(job_id).finished_at + timedelta(microseconds=1)
    retry_many([job_id])
    settle_one(failed(claim_one()))

    assert found(before=before) == []

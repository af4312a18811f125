"""expire: a job that passed its deadline before it ran. Any live status but running -> failed."""

from __future__ import annotations

import pytest

from pgbroker.lifecycle.expire import expire
from pgbroker.lifecycle.pause import Target, pause, resume
from pgbroker.lifecycle.promote import promote
from pgbroker.states import LIVE, Status
from pgbroker.tenancy import tenant_context
from tests.factories import JobFactory, now
from tests.support.jobs import (
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


@pytest.mark.parametrize("state", sorted(LIVE - {Status.RUNNING}), ids=lambda each: each.label)
def test_a_live_job_that_does_not_run_ends_failed_once_its_deadline_has_passed(state):
    with tenant_context("acme"):
        job = JobFactory(**{state.label: True}, deadline_at=now(), history=None)
    age(job.pk, only=["deadline_at"], seconds=60)

    (over,) = expire(limit=10)

    assert (over.job_id, over.tenant_id, over.queue_id) == (job.pk, "acme", job.queue_id)
    assert (status(job.pk), row(job.pk).finished_at is not None) == (Status.FAILED, True)
    assert (reason(job.pk), events(job.pk)) == ("deadline_exceeded", [Status.FAILED])
    assert expire(limit=10) == []


def test_a_running_job_is_left_to_its_worker():
    job_id = enqueue_one(deadline_seconds=60)
    lease = claim_one()
    age(job_id, only=["deadline_at"], seconds=61)

    assert expire(limit=10) == []
    assert settle_one(completed(lease)).status == Status.COMPLETED


def test_a_job_whose_deadline_is_to_come_is_left_alone():
    enqueue_one(deadline_seconds=60)
    enqueue_one()

    assert expire(limit=10) == []


def test_b071_a_job_whose_deadline_passed_in_a_paused_queue_never_starts():
    pause(Target(queue="default"))
    job_id = enqueue_one(deadline_seconds=60)
    age(job_id, seconds=61)
    resume(Target(queue="default"))

    assert claim_many() == []
    expire(limit=10)

    assert (status(job_id), attempt_states(job_id)) == (Status.FAILED, [])


def test_a_retry_that_became_due_after_the_deadline_is_not_run():
    job_id = enqueue_one(deadline_seconds=60)
    settle_one(failed(claim_one()))
    age(job_id, only=["available_at", "deadline_at"], seconds=61)
    promote([queue_id()], limit=1)

    assert claim_many() == []
    assert [over.job_id for over in expire(limit=10)] == [job_id]


def test_the_limit_takes_the_earliest_deadline_first():
    jobs = [enqueue_one(deadline_seconds=60) for _ in range(3)]
    for place, job_id in enumerate(jobs):
        age(job_id, only=["deadline_at"], seconds=100 + 10 * place)

    assert [over.job_id for over in expire(limit=1)] == [jobs[2]]
    assert {over.job_id for over in expire(limit=10)} == set(jobs[:2])

"""cancel: any live status but running -> cancelled; a running job is asked to stop."""

from __future__ import annotations

from uuid import uuid4

import pytest

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.models import JobState
from pgbroker.states import LIVE, TERMINAL, Status
from pgbroker.tenancy import tenant_context
from tests.factories import JobFactory
from tests.support.jobs import (
    WORKER,
    attempt_states,
    claim_many,
    claim_one,
    completed,
    enqueue_one,
    events,
    reason,
    row,
    settle_one,
    status,
)

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("state", sorted(LIVE - {Status.RUNNING}), ids=lambda each: each.label)
def test_a_live_job_that_does_not_run_ends_cancelled_at_once(state):
    job = JobFactory(**{state.label: True})

    (answer,) = cancel_many([job.pk], reason="not wanted", by="ann")

    assert (answer.job_id, answer.outcome, answer.status, answer.worker_id) == (
        job.pk,
        "cancelled",
        state,
        None,
    )
    assert (status(job.pk), row(job.pk).finished_at is not None) == (Status.CANCELLED, True)
    kept = JobState.objects.get(pk=job.pk)
    assert (kept.reason_code, kept.reason, kept.by) == ("cancelled", "not wanted", "ann")
    assert events(job.pk) == [Status.CANCELLED]
    assert claim_many() == []


def test_a_running_job_is_asked_once_and_runs_until_its_handler_reports():
    job_id = enqueue_one()
    lease = claim_one()

    (answer,) = cancel_many([job_id], by="ann")
    first = row(job_id).cancel_requested_at
    (again,) = cancel_many([job_id], by="bob")

    assert (answer.outcome, answer.status, answer.worker_id) == ("requested", Status.RUNNING, WORKER)
    assert (again.outcome, row(job_id).cancel_requested_at, first is not None) == ("requested", first, True)
    assert JobState.objects.get(pk=job_id).by == "ann"
    assert (status(job_id), events(job_id)) == (Status.RUNNING, [])
    assert settle_one(completed(lease)).status == Status.CANCELLED
    assert len(attempt_states(job_id)) == 1


@pytest.mark.parametrize("state", sorted(TERMINAL), ids=lambda each: each.label)
def test_b158_a_job_that_has_ended_is_unchanged_and_says_so(state):
    job = JobFactory(**{state.label: True})
    before = row(job.pk)

    (answer,) = cancel_many([job.pk])

    assert (answer.outcome, answer.status) == ("unchanged", state)
    assert (status(job.pk), row(job.pk).finished_at) == (state, before.finished_at)
    assert (reason(job.pk), events(job.pk)) == (None, [])


def test_b137_a_job_of_another_tenant_is_like_one_that_does_not_exist():
    with tenant_context("acme"):
        theirs = enqueue_one()

    with tenant_context("bolt"):
        assert cancel_many([theirs, uuid4()]) == []

    assert status(theirs) == Status.READY


def test_each_job_is_answered_once_however_often_it_is_named():
    first, second = enqueue_one(), enqueue_one()

    answers = cancel_many([second, first, second, uuid4()])

    assert sorted(answer.job_id for answer in answers) == sorted([first, second])


def test_nothing_to_cancel_is_nothing():
    assert cancel_many([]) == []

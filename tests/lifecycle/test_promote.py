"""promote: scheduled -> ready, once due by the database's clock."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from pgbroker.lifecycle.promote import promote
from pgbroker.states import Status
from pgbroker.tenancy import tenant_context
from tests.support.jobs import age, claim_many, enqueue_one, queue_id, row, status
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db


def test_a_job_becomes_ready_when_it_is_due_and_not_before():
    due, later = enqueue_one(delay_seconds=60), enqueue_one(delay_seconds=60)
    age(due, seconds=61)

    promoted = promote([queue_id()], limit=10)

    assert promoted == {queue_id(): 1}
    assert (row(due).status, row(due).available_at) == (Status.READY, None)
    assert abs(row(due).ready_at - timezone.now()) < timedelta(seconds=30)
    assert status(later) == Status.SCHEDULED


def test_jobs_are_promoted_in_the_order_they_were_due_and_claimed_in_that_order():
    jobs = [enqueue_one(delay_seconds=60) for _ in range(4)]
    for place, job_id in enumerate(reversed(jobs)):
        age(job_id, seconds=100 - place)

    promote([queue_id()], limit=10)

    assert [lease.job_id for lease in claim_many()] == list(reversed(jobs))


def test_the_limit_counts_for_each_queue_and_the_earliest_go_first():
    default = [enqueue_one(delay_seconds=60) for _ in range(3)]
    other = [enqueue_one(delay_seconds=60, queue="other") for _ in range(3)]
    for place, job_id in enumerate([*default, *other]):
        age(job_id, seconds=100 - place)

    promoted = promote([queue_id(), queue_id("other")], limit=2)

    assert promoted == {queue_id(): 2, queue_id("other"): 2}
    assert [status(job_id) for job_id in default] == [Status.READY, Status.READY, Status.SCHEDULED]
    assert [status(job_id) for job_id in other] == [Status.READY, Status.READY, Status.SCHEDULED]


def test_a_queue_that_was_not_asked_for_keeps_its_jobs():
    job_id = enqueue_one(delay_seconds=60)
    age(job_id, seconds=100)

    assert promote([queue_id("other")], limit=10) == {}
    assert status(job_id) == Status.SCHEDULED


def test_the_bound_is_only_a_hint():
    job_id = enqueue_one(delay_seconds=60)
    age(job_id, seconds=160)

    assert promote([queue_id()], limit=10, within=timedelta(seconds=90)) == {}
    assert promote([queue_id()], limit=10, within=timedelta(seconds=130)) == {queue_id(): 1}


def test_jobs_of_every_tenant_are_promoted():
    with tenant_context("acme"):
        theirs = enqueue_one(delay_seconds=60)
    ours = enqueue_one(delay_seconds=60)
    age(theirs, ours, seconds=100)

    assert promote([queue_id()], limit=10) == {queue_id(): 2}


@pytest.mark.django_db(transaction=True)
def test_a_row_that_somebody_holds_is_left_for_the_next_time_without_waiting():
    held, free = enqueue_one(delay_seconds=60), enqueue_one(delay_seconds=60)
    age(held, free, seconds=100)

    with second_session() as other, other.transaction():
        other.execute("select from pgbroker.job where id = %s for no key update", (held,))
        assert promote([queue_id()], limit=10) == {queue_id(): 1}

    assert (status(held), status(free)) == (Status.SCHEDULED, Status.READY)
    assert promote([queue_id()], limit=10) == {queue_id(): 1}

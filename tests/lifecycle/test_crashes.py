"""Crashes: a process that dies before or after any statement neither loses a job nor ends it twice."""

from __future__ import annotations

import itertools

import pytest

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.settle import settle
from pgbroker.models import Execution, Job
from pgbroker.policy.backoff import Backoff
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.crash import Crash, crash_after, fault
from tests.support.jobs import (
    TYPE,
    age,
    attempt_states,
    claim_many,
    completed,
    enqueue_one,
    events,
    queue_id,
    reap_all,
    row,
    status,
    type_id,
)

pytestmark = pytest.mark.django_db(transaction=True)
moments = pytest.mark.parametrize("moment", ["before", "after"])


def step() -> None:
    """What a worker does in one turn: make due jobs ready, take some, run them, say how they ended."""
    promote([queue_id()], limit=10)
    leases = claim_many(10)
    settle([completed(lease) for lease in leases])


def recover() -> None:
    """What others do once the leases of a dead worker have run out."""
    with scope_all():
        running = list(Job.objects.filter(status=Status.RUNNING).values_list("pk", flat=True))
    if running:
        age(*running, only=["lease_expires_at"], hours=1)
    reap_all()
    step()


@moments
def test_a_crash_at_any_statement_of_a_turn_neither_loses_nor_doubles_a_job(moment):
    for nth in itertools.count(1):
        jobs = []
        for tenant in ("acme", "bolt"):
            with tenant_context(tenant):
                jobs.append(enqueue_one())
        try:
            with crash_after(nth, moment=moment):
                step()
        except Crash:
            recover()
        else:
            assert nth > 3, "promote, claim and settle were all hit"
            return

        for job_id in jobs:
            states = attempt_states(job_id)
            assert status(job_id) == Status.COMPLETED
            assert states in ([AttemptState.COMPLETED], [AttemptState.CRASHED, AttemptState.COMPLETED])
            assert row(job_id).attempt_count == len(states)
            assert events(job_id) == [Status.COMPLETED]


@moments
def test_a_crash_burns_exactly_one_attempt_of_exactly_the_jobs_that_were_held(moment):
    with tenant_context("acme"):
        held = enqueue_one()
    queue = queue_id()
    with tenant_context("bolt"):
        free = enqueue_one(delay_seconds=60)

    def die(now, name):
        if (now, name) == (moment, "settle"):
            raise Crash

    with fault(die), pytest.raises(Crash):
        step()
    recover()

    assert (row(held).attempt_count, row(free).attempt_count) == (1 if moment == "after" else 2, 0)
    assert status(free) == Status.SCHEDULED
    assert queue == queue_id()


@moments
def test_an_enqueue_that_is_sent_again_after_a_crash_is_one_job(moment):
    type_id()
    rows = [{"job_type": TYPE, "idempotency_key": "k"}, {"job_type": TYPE, "idempotency_key": "k2"}]
    with tenant_context("acme"):
        with pytest.raises(Crash), crash_after(1, moment=moment):
            enqueue_rows(rows)
        answers = enqueue_rows(rows)
    with tenant_context("bolt"):
        enqueue_rows(rows)

    assert {answer.outcome for answer in answers} == {"created" if moment == "before" else "existing"}
    with scope_all():
        assert Job.objects.count() == 4


@moments
def test_a_cancel_and_a_retry_can_be_asked_again_after_a_crash(moment):
    for tenant in ("acme", "bolt"):
        with tenant_context(tenant):
            job_id = enqueue_one()
            with pytest.raises(Crash), crash_after(1, moment=moment):
                cancel_many([job_id])
            cancel_many([job_id])
            assert events(job_id) == [Status.CANCELLED]
            with pytest.raises(Crash), crash_after(1, moment=moment):
                retry_many([job_id])
            retry_many([job_id])
            assert (status(job_id), row(job_id).max_attempts) == (Status.READY, 5)


def test_a_worker_that_always_dies_uses_the_attempts_up_and_is_not_run_for_ever():
    with tenant_context("acme"):
        job_id = enqueue_one(max_attempts=2)
    with tenant_context("bolt"):
        enqueue_one()

    def die_with_jobs_in_hand(moment, name):
        if (moment, name) == ("after", "claim"):
            raise Crash

    for _ in range(3):
        with pytest.raises(Crash), fault(die_with_jobs_in_hand):
            step()
        age(*[job.pk for job in _running()], only=["lease_expires_at"], hours=1)
        reap_all(max_crashes=100, backoff=Backoff(base=0, factor=1, cap=0))

    assert status(job_id) == Status.DEAD_LETTER
    assert attempt_states(job_id) == [AttemptState.CRASHED] * 2
    with scope_all():
        assert Execution.objects.filter(state=AttemptState.COMPLETED).count() == 0


def _running() -> list[Job]:
    with scope_all():
        return list(Job.objects.filter(status=Status.RUNNING))

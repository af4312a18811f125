"""The kit for a project's own tests: jobs run inside the test, on its connection."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import TestCase

from pgbroker import Discard, Snooze, job, tenant_context
from pgbroker.control import get_job
from pgbroker.models import Execution, Job
from pgbroker.states import AttemptState, Status
from pgbroker.testing import age, flush, run_jobs

calls: list[object] = []


@job(name="tests.kit.add")
def add(left: int, right: int) -> int:
    calls.append((left, right))
    return left + right


@job(name="tests.kit.add_async")
async def add_async(left: int, right: int) -> int:
    return left + right


@job(name="tests.kit.spawn")
def spawn(times: int) -> None:
    calls.append(times)
    if times > 1:
        spawn.enqueue(times - 1)


@job(name="tests.kit.breaks", max_attempts=1)
def breaks() -> None:
    with connection.cursor() as cursor:
        cursor.execute("insert into pgbroker.queue (name) values ('default')")


@job(name="tests.kit.sleepy")
def sleepy() -> None:
    raise Snooze(timedelta(hours=1), "not yet")


@job(name="tests.kit.hopeless")
def hopeless() -> None:
    raise Discard("bad data")


@pytest.fixture(autouse=True)
def _forget_calls() -> None:
    calls.clear()


class TestInsideATestCase(TestCase):
    def test_a_job_runs_in_the_transaction_of_the_test_and_its_result_is_stored(self) -> None:
        result = add.enqueue(2, right=3)

        (ran,) = run_jobs()

        assert (ran.state, ran.status, ran.error) == (AttemptState.COMPLETED, Status.COMPLETED, None)
        result.refresh()
        assert result.return_value == 5

    def test_a_job_that_breaks_the_transaction_fails_and_the_test_goes_on(self) -> None:
        enqueued = breaks.enqueue()

        (ran,) = run_jobs()

        assert isinstance(ran.error, IntegrityError)
        assert get_job(enqueued.id).status == Status.DEAD_LETTER
        assert Job.objects.count() == 1

    def test_jobs_that_jobs_enqueue_run_too_up_to_the_limit(self) -> None:
        spawn.enqueue(5)

        assert len(run_jobs(limit=3)) == 3
        assert len(run_jobs()) == 2
        assert calls == [5, 4, 3, 2, 1]

    def test_a_snoozed_job_runs_again_once_its_rows_have_aged(self) -> None:
        enqueued = sleepy.enqueue()
        assert [ran.state for ran in run_jobs()] == [AttemptState.SNOOZED]
        assert run_jobs() == []

        age(enqueued.id, hours=2)

        assert [ran.state for ran in run_jobs()] == [AttemptState.SNOOZED]

    def test_age_moves_ended_jobs_and_their_history_without_waking_the_guards(self) -> None:
        enqueued = hopeless.enqueue()
        run_jobs()
        before = Execution.objects.get(job=enqueued.id).completed_at

        age(days=3)

        assert Execution.objects.get(job=enqueued.id).completed_at == before - timedelta(days=3)
        assert get_job(enqueued.id).finished_at is not None

    def test_each_job_runs_in_its_own_tenant(self) -> None:
        with tenant_context("acme"):
            add.enqueue(1, 1)
            spawn.enqueue(2)

        run_jobs()

        assert Job.objects.count() == 0
        with tenant_context("acme"):
            assert Job.objects.filter(status=Status.COMPLETED).count() == 3

    def test_only_the_named_queues_are_served(self) -> None:
        add.enqueue(1, 1)

        assert run_jobs(queues=["other"]) == []


@pytest.mark.django_db(transaction=True)
def test_an_async_job_runs_and_flush_leaves_nothing_of_it() -> None:
    with transaction.atomic():
        add_async.enqueue(1, 2)
    assert [ran.status for ran in run_jobs()] == [Status.COMPLETED]

    flush()

    assert not Job.objects.exists()
    assert not Execution.objects.exists()

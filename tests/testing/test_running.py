"""Jobs run inside the test, on its connection, and through the statements of a worker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import IntegrityError, connection, transaction
from django.test import TestCase

from pgbroker import Backoff, Discard, JobContext, Snooze, job, tenant_context
from pgbroker.compat import TaskResultStatus, task_enqueued, task_finished, task_started
from pgbroker.control import get_job
from pgbroker.errors import JobNotFound, UnknownQueue
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.models import Execution, Job
from pgbroker.states import AttemptState, Status
from pgbroker.testing import age, run_jobs, run_to_end, running
from tests.support.jobs import queue_id, type_id

calls: list[object] = []


@job(name="tests.kit.add", aliases=["tests.kit.plus"])
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


@job(name="tests.kit.fails", max_attempts=3, backoff=Backoff(base=3600.0, cap=36_000.0, jitter=False))
def fails() -> None:
    raise ConnectionError("down")


@job(name="tests.kit.recovers", takes_context=True, max_attempts=5, backoff=7200)
def recovers(context: JobContext) -> int:
    if context.attempt < 3:
        raise ConnectionError("down")
    return context.attempt


@pytest.fixture(autouse=True)
def _forget_calls() -> None:
    calls.clear()


class TestInsideATestCase(TestCase):
    def test_a_job_runs_in_the_transaction_of_the_test_and_its_result_is_stored(self) -> None:
        result = add.enqueue(2, right=3)

        (ran,) = run_jobs()

        assert (ran.state, ran.status, ran.error) == (AttemptState.COMPLETED, Status.COMPLETED, None)
        assert (ran.job_type, ran.attempt_no, ran.result) == ("tests.kit.add", 1, 5)
        result.refresh()
        assert result.return_value == 5

    def test_a_job_that_breaks_the_transaction_fails_and_the_test_goes_on(self) -> None:
        enqueued = breaks.enqueue()

        (ran,) = run_jobs()

        assert isinstance(ran.error, IntegrityError)
        assert get_job(enqueued.id).status == Status.DEAD_LETTER
        assert Job.objects.count() == 1

    def test_an_error_is_raised_on_request_once_it_is_recorded(self) -> None:
        enqueued = fails.enqueue()

        with pytest.raises(ConnectionError, match="down"):
            run_jobs(reraise=True)

        assert get_job(enqueued.id).error == "down"

    def test_jobs_that_jobs_enqueue_run_too_up_to_the_limit(self) -> None:
        spawn.enqueue(5)

        assert len(run_jobs(limit=3)) == 3
        assert len(run_jobs()) == 2
        assert calls == [5, 4, 3, 2, 1]

    def test_jobs_that_enqueue_one_another_for_ever_are_told_of(self) -> None:
        spawn.enqueue(7)

        with (
            mock.patch.object(running, "MOST", 3),
            pytest.raises(AssertionError, match=r"than 3 .*name a limit"),
        ):
            run_jobs()

        assert calls == [7, 6, 5, 4]
        assert len(run_jobs(limit=3)) == 3

    def test_a_snoozed_job_runs_again_once_its_rows_have_aged(self) -> None:
        enqueued = sleepy.enqueue()
        assert [ran.state for ran in run_jobs()] == [AttemptState.SNOOZED]
        assert run_jobs() == []

        age(enqueued, hours=2)

        assert [ran.state for ran in run_jobs()] == [AttemptState.SNOOZED]

    def test_a_job_that_has_aged_past_its_deadline_fails_without_running(self) -> None:
        enqueued = add.options(deadline=60).enqueue(1, 1)

        age(enqueued, minutes=2)

        assert run_jobs() == []
        assert get_job(enqueued).status == Status.FAILED

    def test_age_moves_ended_jobs_and_their_history_without_waking_the_guards(self) -> None:
        enqueued = hopeless.enqueue()
        run_jobs()
        before = Execution.objects.get(job=enqueued.id).completed_at

        age(days=3)

        assert Execution.objects.get(job=enqueued.id).completed_at == before - timedelta(days=3)
        assert get_job(enqueued.id).finished_at is not None

    def test_a_job_that_is_not_there_does_not_age_in_silence(self) -> None:
        with pytest.raises(JobNotFound):
            age(uuid4(), hours=1)

    def test_each_job_runs_in_its_own_tenant(self) -> None:
        with tenant_context("acme"):
            add.enqueue(1, 1)
            spawn.enqueue(2)

        run_jobs()

        assert Job.objects.count() == 0
        with tenant_context("acme"):
            assert Job.objects.filter(status=Status.COMPLETED).count() == 3

    def test_only_the_named_queues_are_served_and_a_mistyped_one_is_told(self) -> None:
        queue_id("tests.kit.other")
        add.enqueue(1, 1)

        assert run_jobs(queues=["tests.kit.other"]) == []
        with pytest.raises(UnknownQueue, match=r"Did you mean 'tests\.kit\.other'"):
            run_jobs(queues=["tests.kit.othr"])

    def test_a_job_stored_under_a_former_name_runs(self) -> None:
        type_id("tests.kit.plus")
        enqueue_rows([{"job_type": "tests.kit.plus", "args": {"v": 1, "args": [1, 2], "kwargs": {}}}])

        (ran,) = run_jobs()

        assert (ran.job_type, ran.result) == ("tests.kit.add", 3)

    def test_django_s_signals_are_sent_as_by_a_worker(self) -> None:
        told: list[tuple[str, str]] = []
        signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
        receivers = {name: _receiver(name, told) for name in signals}
        for name, signal in signals.items():
            signal.connect(receivers[name])
        try:
            hopeless.enqueue()
            run_jobs()
        finally:
            for name, signal in signals.items():
                signal.disconnect(receivers[name])

        assert told == [
            ("enqueued", TaskResultStatus.READY),
            ("started", TaskResultStatus.RUNNING),
            ("finished", TaskResultStatus.FAILED),
        ]

    def test_a_type_that_is_declared_late_does_not_wait_for_the_test_s_own_transaction(self) -> None:
        first = _declared("tests.kit.late1")
        assert run_jobs() == []
        second = _declared("tests.kit.late2")

        with connection.cursor() as cursor:
            cursor.execute("set local lock_timeout = '2s'")
        first.enqueue()
        second.enqueue()

        assert [ran.job_type for ran in run_jobs()] == ["tests.kit.late1", "tests.kit.late2"]

    async def test_an_async_test_runs_jobs_in_the_thread_of_its_connection(self) -> None:
        await add_async.aenqueue(1, 2)

        (ran,) = await sync_to_async(run_jobs)()

        assert ran.result == 3
        with pytest.raises(SynchronousOnlyOperation):
            run_jobs()


class TestRunToEnd(TestCase):
    def test_backoff_is_waited_out_for_this_job_alone(self) -> None:
        result, other = recovers.enqueue(), add.using(run_after=timedelta(hours=1)).enqueue(1, 1)

        last = run_to_end(result)

        assert (last.status, last.attempt_no, last.result) == (Status.COMPLETED, 3, 3)
        assert get_job(other).status == Status.SCHEDULED

    def test_the_last_attempt_is_returned_whether_or_not_it_went_well(self) -> None:
        last = run_to_end(fails.enqueue())

        assert (last.state, last.status, last.attempt_no) == (AttemptState.FAILED, Status.DEAD_LETTER, 3)
        assert isinstance(last.error, ConnectionError)

    def test_a_job_that_never_ends_is_not_run_for_ever(self) -> None:
        result = sleepy.enqueue()

        with pytest.raises(AssertionError, match="has not ended: after its last attempt it is scheduled"):
            run_to_end(result, attempts=3)

    def test_a_job_that_nobody_can_run_is_told(self) -> None:
        (answer,) = enqueue_rows([{"job_type": _undeclared(), "args": {"v": 1, "args": [], "kwargs": {}}}])

        with pytest.raises(AssertionError, match="has not registered"):
            run_to_end(answer.job_id)

    def test_a_job_that_is_not_there_is_told(self) -> None:
        with pytest.raises(JobNotFound):
            run_to_end(uuid4())


def _undeclared() -> str:
    type_id("tests.kit.nobody")
    return "tests.kit.nobody"


def _declared(name: str) -> Any:
    def handler() -> None: ...

    handler.__qualname__ = name
    return job(name=name)(handler)


def _receiver(name: str, told: list[tuple[str, str]]) -> Any:
    def receiver(sender: type, task_result: Any, **_: Any) -> None:
        told.append((name, task_result.status))

    return receiver


@pytest.mark.django_db(transaction=True)
def test_an_async_job_runs_in_autocommit_too() -> None:
    with transaction.atomic():
        add_async.enqueue(1, 2)

    assert [ran.status for ran in run_jobs()] == [Status.COMPLETED]

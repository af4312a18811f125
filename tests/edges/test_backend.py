"""Django's task framework on pgbroker: results, statuses, errors, context and signals."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from pgbroker import Discard, JobContext, backend, control, job, telemetry, tenant_context
from pgbroker.compat import (
    InvalidTask,
    TaskContext,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from pgbroker.registry import JobTask
from pgbroker.runtime.supervisor import Worker, WorkerOptions
from pgbroker.testing import run_jobs

ON_PGBROKER = {"default": {"BACKEND": "pgbroker.backend.PgBrokerBackend", "QUEUES": ["default", "tests"]}}
seen: list[Any] = []


@job(name="tests.backend.double", queue_name="tests")
def double(number: int) -> int:
    return 2 * number


@job(name="tests.backend.fails", queue_name="tests", max_attempts=2, backoff=0)
def fails() -> None:
    raise ValueError("no luck")


@job(name="tests.backend.gives_up", queue_name="tests")
async def gives_up() -> None:
    raise Discard("bad data")


@job(name="tests.backend.looks", takes_context=True, max_attempts=3)
def looks(context: JobContext) -> None:
    seen.append(context)


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


@pytest.mark.django_db
def test_without_tasks_in_the_settings_a_job_goes_to_pgbroker_not_to_django_s_immediate_backend() -> None:
    result = double.enqueue(4)

    assert isinstance(double.get_backend(), backend.PgBrokerBackend)
    assert result.status == TaskResultStatus.READY


@override_settings(TASKS=ON_PGBROKER)
def test_django_s_own_decorator_makes_our_task_with_our_options() -> None:
    made = task_backends["default"].task_class(
        func=double.func,
        priority=3,
        queue_name="tests",
        backend="default",
        run_after=None,
        max_attempts=7,
        timeout=60,
    )

    assert isinstance(made, JobTask)
    assert (made.max_attempts, made.timeout) == (7, timedelta(seconds=60))


@override_settings(TASKS=ON_PGBROKER)
def test_a_queue_outside_of_queues_is_refused_as_django_refuses_it() -> None:
    with pytest.raises(InvalidTask, match="elsewhere"):
        double.using(queue_name="elsewhere")


@pytest.mark.django_db
def test_a_completed_job_is_successful_with_its_value_and_one_attempt() -> None:
    result = double.enqueue(4)

    run_jobs()
    result.refresh()

    assert (result.status, result.return_value, result.errors) == (TaskResultStatus.SUCCESSFUL, 8, [])
    assert result.attempts == 1
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert double.get_result(result.id) == result


@pytest.mark.django_db
def test_a_dead_letter_is_failed_with_every_attempt_s_error() -> None:
    result = fails.enqueue()

    run_jobs()
    result.refresh()

    assert result.status == TaskResultStatus.FAILED
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert "no luck" in result.errors[0].traceback
    assert result.attempts == 2
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


@pytest.mark.django_db
def test_a_job_that_waits_for_its_retry_or_is_scheduled_is_ready_for_django() -> None:
    later = double.using(run_after=_in_an_hour()).enqueue(1)
    later.refresh()

    assert later.status == TaskResultStatus.READY
    assert later.task.run_after == _stored_time(later.id)


@pytest.mark.django_db
def test_a_cancelled_job_is_failed_and_says_that_it_was_cancelled() -> None:
    result = double.enqueue(1)

    control.cancel(result, reason="not needed", by="tests")
    result.refresh()

    assert result.status == TaskResultStatus.FAILED
    (error,) = result.errors
    assert error.exception_class_path == "pgbroker.errors.AttemptCancelled"
    assert error.traceback == "not needed"


@pytest.mark.django_db
@pytest.mark.parametrize("result_id", ["123", "", "x" * 64, "0198c0de-0000-7000-8000-000000000000"])
def test_an_id_that_is_nobody_s_does_not_exist(result_id: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        double.get_result(result_id)


@pytest.mark.django_db
def test_a_result_of_another_task_or_another_tenant_is_not_handed_out() -> None:
    result = double.enqueue(1)

    with pytest.raises(TaskResultMismatch):
        fails.get_result(result.id)
    with tenant_context("acme"), pytest.raises(TaskResultDoesNotExist):
        double.get_result(result.id)


@pytest.mark.django_db
def test_the_context_is_django_s_and_knows_the_job() -> None:
    with tenant_context("acme"):
        result = looks.options(correlation_id="abc").enqueue()

    run_jobs()

    (context,) = seen
    assert isinstance(context, TaskContext)
    assert (context.attempt, str(context.job_id), context.tenant_id) == (1, result.id, "acme")
    assert (context.correlation_id, context.cancelled, context.is_last_attempt) == ("abc", False, False)
    assert context.task_result.status == TaskResultStatus.RUNNING
    assert context.task_result.id == result.id


@pytest.mark.django_db
def test_b049_the_enqueued_signal_fires_for_new_jobs_only() -> None:
    ids: list[str] = []

    def receiver(sender: type, task_result: Any, **_: Any) -> None:
        ids.append(task_result.id)

    task_enqueued.connect(receiver)
    try:
        keyed = double.options(idempotency_key="once")
        first = keyed.enqueue(1)
        keyed.enqueue(1)
    finally:
        task_enqueued.disconnect(receiver)

    assert ids == [first.id]


@pytest.mark.django_db(transaction=True)
def test_a_worker_sends_django_s_signals_once_a_job_and_with_the_error_at_hand() -> None:
    import sys

    told: list[tuple[str, str, str, str | None]] = []

    def started(sender: type, task_result: Any, **_: Any) -> None:
        told.append(("started", task_result.task.name, task_result.status, None))

    def finished(sender: type, task_result: Any, **_: Any) -> None:
        error = sys.exc_info()[0]
        told.append(("finished", task_result.task.name, task_result.status, error and error.__name__))

    double.enqueue(1)
    fails.enqueue()
    gives_up.enqueue()
    unsubscribe = telemetry.subscribe(backend.send_signals, wants=backend.wants_signals)
    task_started.connect(started)
    task_finished.connect(finished)
    try:
        code = Worker(WorkerOptions(queues=("tests",), concurrency=2, burst=True, poll_interval=0.1)).run()
        Worker(WorkerOptions(queues=("tests",), concurrency=2, burst=True, poll_interval=0.1)).run()
    finally:
        unsubscribe()
        task_started.disconnect(started)
        task_finished.disconnect(finished)

    assert code == 0
    assert sorted(told) == [
        ("finished", "double", "SUCCESSFUL", None),
        ("finished", "fails", "FAILED", "ValueError"),
        ("finished", "gives_up", "FAILED", "Discard"),
        ("started", "double", "RUNNING", None),
        ("started", "fails", "RUNNING", None),
        ("started", "fails", "RUNNING", None),
        ("started", "gives_up", "RUNNING", None),
    ]


@override_settings(
    TASKS={"default": {"BACKEND": "pgbroker.backend.PgBrokerBackend", "OPTIONS": {"DATABASES": ["x"]}}}
)
def test_an_unknown_option_of_the_backend_is_a_check_error_that_names_the_known_ones() -> None:
    (error,) = task_backends["default"].check()

    assert (error.id, "DATABASES" in error.msg, "DATABASE" in error.hint) == ("pgbroker.E010", True, True)


def _in_an_hour() -> Any:
    from django.utils import timezone

    return timezone.now() + timedelta(hours=1)


def _stored_time(job_id: str) -> Any:
    return control.get_job(job_id).available_at


@pytest.mark.django_db
def test_a_result_is_refreshed_in_the_tenant_of_its_job_wherever_that_is_done() -> None:
    chosen = double.options(tenant="acme").enqueue(1)
    with tenant_context("globex"):
        inside = double.enqueue(2)

    run_jobs()
    chosen.refresh()
    inside.refresh()

    assert (chosen.return_value, inside.return_value) == (2, 4)
    with pytest.raises(TaskResultDoesNotExist):
        double.get_result(chosen.id)


@pytest.mark.django_db
def test_the_holder_of_a_key_is_found_in_the_tenant_of_the_call() -> None:
    keyed = double.options(tenant="acme", idempotency_key="k")

    assert keyed.enqueue(1).id == keyed.enqueue(1).id

"""
The contract of Django's task framework, case by case, on pgbroker's backend and on every Django.

`python3 testproject conformance` runs Django's own tests; these need nothing that is not here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import django
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import TransactionTestCase, override_settings
from django.utils import timezone

from pgbroker import job
from pgbroker.compat import (
    InvalidTask,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
)
from pgbroker.testing import run_jobs

TASKS = {
    "default": {"BACKEND": "pgbroker.backend.PgBrokerBackend", "QUEUES": ["default", "urgent"]},
    "any": {"BACKEND": "pgbroker.backend.PgBrokerBackend", "QUEUES": []},
    "missing": {"BACKEND": "does.not.exist"},
}


def plain_double(number: Any) -> Any:
    return number + number


def attempt(context: Any) -> int:
    return int(context.attempt)


async def async_double(number: Any) -> Any:
    return number + number


def plain_other() -> None: ...


def pickled_double(number: int) -> int:
    return number + number


def _inner() -> Any:
    def inner() -> None: ...

    return inner


@pytest.fixture(autouse=True)
def _tasks() -> Iterator[None]:
    with override_settings(TASKS=TASKS):
        yield


def task(**options: Any) -> Any:
    """Decorate as Django does; `TASKS` has to be ours by then."""
    try:
        from django.tasks import task as decorator
    except ImportError:
        from django_tasks import task as decorator
    return decorator(**options)


@pytest.fixture
def double() -> Any:
    return task()(plain_double)


def test_the_decorator_makes_a_task_bare_or_called(double: Any) -> None:
    bare = task(priority=3, queue_name="urgent")(plain_double)

    assert isinstance(double, Task)
    assert isinstance(bare, Task)
    assert (bare.priority, bare.queue_name, bare.backend) == (3, "urgent", "default")
    assert (double.priority, double.queue_name, double.run_after) == (0, "default", None)
    assert (double.name, double.module_path) == ("plain_double", f"{__name__}.plain_double")


@pytest.mark.django_db
def test_an_enqueued_task_is_ready_with_its_arguments_and_nothing_else(double: Any) -> None:
    before = timezone.now() - timedelta(seconds=5)

    result = double.enqueue([1], **{})

    assert isinstance(result, TaskResult)
    assert (result.status, result.task, result.backend) == (TaskResultStatus.READY, double, "default")
    assert (result.args, result.kwargs, result.errors, result.worker_ids) == ([[1]], {}, [], [])
    assert before < result.enqueued_at < timezone.now() + timedelta(seconds=5)
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    assert (result.attempts, result.is_finished, len(result.id) < 64) == (0, False, True)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, float("nan"), "\x00", {"deep": [object()]}],
    ids=["object", "set", "nan", "nul", "deep"],
)
def test_an_argument_that_is_no_json_is_refused_and_nothing_is_stored(double: Any, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        double.enqueue(value)

    assert run_jobs() == []


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"priority": 1}, {"priority": 1}),
        ({"queue_name": "urgent"}, {"queue_name": "urgent"}),
        ({"run_after": datetime(2090, 1, 1, tzinfo=UTC)}, {"run_after": datetime(2090, 1, 1, tzinfo=UTC)}),
        ({"backend": "any"}, {"backend": "any"}),
    ],
    ids=lambda value: next(iter(value)),
)
def test_using_makes_a_new_task_and_keeps_the_old(
    double: Any, options: dict[str, Any], changed: dict[str, Any]
) -> None:
    (name,) = changed
    before = getattr(double, name)

    made = double.using(**options)

    assert made is not double
    assert {name: getattr(made, name)} == changed
    assert getattr(double, name) == before
    assert made.using(**{}) == made


def test_using_can_be_chained(double: Any) -> None:
    instant = datetime(2090, 1, 1, tzinfo=UTC)

    made = double.using(priority=1).using(queue_name="urgent").using(run_after=instant).using(priority=2)

    assert (made.priority, made.queue_name, made.run_after) == (2, "urgent", instant)


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 101},
        {"priority": -101},
        {"priority": 3.1},
        {"queue_name": "elsewhere"},
        {"run_after": datetime(2090, 1, 1)},  # noqa: DTZ001
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_as_an_invalid_task(double: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask):
        double.using(**options)
    assert double.using(priority=100).priority == 100
    assert double.using(priority=-100).priority == -100


@pytest.mark.parametrize(("alias", "text"), [("unknown", "doesn't exist"), ("missing", "does.not.exist")])
def test_a_backend_that_is_not_there_is_told(double: Any, alias: str, text: str) -> None:
    with pytest.raises((ImproperlyConfigured, Exception), match=text) as raised:
        double.using(backend=alias)

    assert type(raised.value).__name__.startswith(("InvalidTaskBackend", "ImproperlyConfigured"))


@pytest.mark.parametrize("function", [any, _inner(), "".join], ids=["built in", "inner", "method"])
def test_only_a_function_of_a_module_can_be_a_task(function: Any) -> None:
    with pytest.raises(InvalidTask):
        task()(function)


def test_a_task_with_context_must_take_it() -> None:
    with pytest.raises(InvalidTask, match="context"):
        task(takes_context=True)(plain_double)
    assert task(takes_context=True)(attempt).takes_context


def test_a_task_can_be_called_sync_and_async(double: Any) -> None:
    assert double.call(21) == 42
    assert task()(async_double).call(21) == 42


@pytest.mark.django_db
def test_a_result_is_found_by_its_id_and_by_its_own_task_only(double: Any) -> None:
    result = double.enqueue(1)

    assert double.get_result(result.id) == result
    with pytest.raises(TaskResultMismatch):
        task()(plain_other).get_result(result.id)
    with pytest.raises(TaskResultDoesNotExist):
        double.get_result("123")


@pytest.mark.django_db
def test_the_handler_is_told_its_attempt() -> None:
    result = task(takes_context=True)(attempt).enqueue()

    run_jobs()
    result.refresh()

    assert (result.return_value, result.attempts, result.is_finished) == (1, 1, True)


def test_an_error_names_an_exception_class_or_says_what_it_names_instead() -> None:
    assert _error("builtins.ValueError").exception_class is ValueError
    with pytest.raises(ValueError, match="exception"):
        _ = _error("subprocess.run").exception_class
    with pytest.raises(ImportError):
        _ = _error("does.not.exist").exception_class


def _error(path: str) -> Any:
    return TaskError(exception_class_path=path, traceback="")


@pytest.mark.skipif(django.VERSION < (6, 1), reason="tasks can be pickled from Django 6.1 on")
@pytest.mark.django_db
def test_a_task_and_its_result_can_be_pickled_with_all_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = job(name="tests.contract.pickled")(pickled_double)
    # A task is found by the name of its function, which the decorator takes in real life.
    monkeypatch.setitem(globals(), "pickled_double", declared)
    made = declared.using(priority=7).options(idempotency_key="once", timeout=3)

    result = made.enqueue(1)

    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - made here
    assert pickle.loads(pickle.dumps(result)) == result  # noqa: S301


class TestInAsyncCode(TransactionTestCase):
    async def test_what_has_an_async_form_does_the_same(self) -> None:
        with override_settings(TASKS=TASKS):
            doubled = task()(async_double)
            result = await doubled.aenqueue(21)

            assert await doubled.acall(21) == 42
            assert await doubled.aget_result(result.id) == result
            with pytest.raises(TaskResultDoesNotExist):
                await doubled.aget_result("123")
            await result.arefresh()

        assert result.status == TaskResultStatus.READY

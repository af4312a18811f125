"""What is easily mistyped is refused where it is written, with the word that was meant."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pgbroker import Retry, Snooze, enqueue, enqueue_many, job, registry
from pgbroker.control import pause, redrive, resume
from pgbroker.errors import (
    DuplicateJobType,
    DuplicateSchedule,
    InvalidOption,
    InvalidSchedule,
    InvalidTimeZone,
)
from pgbroker.policy.cron import parse
from pgbroker.registry import synchronise
from pgbroker.schedules import operate
from pgbroker.schedules.declare import declarations, schedule
from pgbroker.schedules.definition import Definition, troubles_of
from pgbroker.schedules.written import written
from pgbroker.testing import all_enqueued, assert_enqueued, refute_enqueued, run_jobs, run_to_end

pytestmark = pytest.mark.django_db


@job(name="tests.mistyped.tell")
def tell(word: str = "") -> None:
    """Do nothing."""


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test declare types that nobody else sees."""
    monkeypatch.setattr(registry, "_types", registry._Types())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"queue": "mail"}, r"Did you mean 'queue_name'\?"),
        ({"max_attempts": 3}, r"Give it to \.options\(max_attempts=\.\.\.\)"),
        ({"max_atempts": 3}, r"Did you mean 'max_attempts'\?"),
        ({"zzz": 3}, "Known: backend, priority, queue_name, run_after"),
    ],
)
def test_using_names_what_was_meant(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        tell.using(**given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"queue": "mail"}, r"Did you mean \.using\(queue_name=\.\.\.\)"),
        ({"queue_name": "mail"}, r"Give it to \.using\(queue_name=\.\.\.\)"),
        ({"max_atempts": 3}, r"Did you mean 'max_attempts'\?"),
    ],
)
def test_options_names_what_was_meant(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        tell.options(**given)


@pytest.mark.parametrize("scope", ["live", "held", "retained"])
def test_a_scope_without_a_key_is_refused(scope: str) -> None:
    with pytest.raises(InvalidOption, match=f"idempotency_scope='{scope}' is nothing without one"):
        tell.options(idempotency_scope=scope).enqueue()


def test_aliases_are_a_list_of_names(apart: None) -> None:
    for given in ("shop.old", {"shop.old": 1}, 7):
        with pytest.raises(InvalidOption, match="aliases is a"):
            job(name="tests.mistyped.new", aliases=given)(tell.func)


def one() -> None:
    """Do nothing."""


def two() -> None:
    """Do nothing."""


def test_two_types_cannot_have_one_alias(apart: None) -> None:
    job(name="tests.mistyped.one", aliases=["tests.mistyped.old"])(one)
    assert set(registry.types()) == {"tests.mistyped.one"}
    job(name="tests.mistyped.two", aliases=["tests.mistyped.old"])(two)

    with pytest.raises(DuplicateJobType, match=r"'tests.mistyped.old' is declared twice: as an alias of"):
        registry.types()


def test_an_alias_cannot_be_the_name_of_a_type_that_lives(apart: None) -> None:
    job(name="tests.mistyped.one")(one)
    job(name="tests.mistyped.two", aliases=["tests.mistyped.one"])(two)

    with pytest.raises(
        DuplicateJobType, match=r"an alias of 'tests.mistyped.two', and by 'tests.mistyped.one'"
    ):
        registry.types()


def test_a_handler_that_yields_is_refused(apart: None) -> None:
    def numbers() -> Any:
        yield 1

    async def numbers_async() -> Any:
        yield 1

    for handler in (numbers, numbers_async):
        with pytest.raises(InvalidOption, match="yields"):
            job(name="tests.mistyped.numbers")(handler)


def test_a_task_may_stand_for_its_name_where_an_operator_names_a_type() -> None:
    synchronise(using="default")

    assert redrive(job_type=tell) == 0
    assert pause(job_type=tell) is None
    assert resume(job_type=tell)
    with pytest.raises(InvalidOption, match="job_type is a int"):
        redrive(job_type=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="limit"):
        redrive(limit=-1)


@pytest.mark.parametrize("seconds", [7.9e-07, 0, -1, 2_592_000.0000001])
def test_a_duration_is_what_the_database_takes_before_it_is_rounded(seconds: float) -> None:
    with pytest.raises(InvalidOption, match="timeout"):
        tell.options(timeout=seconds)


@pytest.mark.parametrize("verdict", [Retry, Snooze])
def test_a_delay_is_a_number_of_seconds_or_a_timedelta(verdict: Any) -> None:
    for wrong in ("5", True, [5]):
        with pytest.raises(InvalidOption, match="Give seconds or a timedelta"):
            verdict(wrong)


def test_filters_of_assertions_are_what_they_say() -> None:
    synchronise(using="default")
    tell.enqueue("x")

    with pytest.raises(InvalidOption, match="args is a dict"):
        refute_enqueued(tell, args={"word": "x"})  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="args is a str"):
        refute_enqueued(tell, args="x")
    with pytest.raises(InvalidOption, match="kwargs is a list"):
        refute_enqueued(tell, kwargs=[("word", "x")])  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="count"):
        assert_enqueued(tell, count="1")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="queues is 'default'"):
        run_jobs(queues="default")


def test_a_time_zone_that_is_no_name_is_shown_as_it_is() -> None:
    with pytest.raises(InvalidTimeZone, match=r"'UTC'.*Did you mean 'UTC'"):
        parse("* * * * *", UTC)  # type: ignore[arg-type]
    with pytest.raises(InvalidTimeZone, match=r"'Europe/Berlin'"):
        parse("* * * * *", ZoneInfo("Europe/Berlin"))  # type: ignore[arg-type]


def test_one_job_without_a_name_has_no_run_group_to_say_anything_of() -> None:
    def said(*jobs: dict[str, Any]) -> list[str]:
        made = Definition(
            name="n", expression="* * * * *", time_zone="UTC", jobs=jobs, group={"tolerate_count": 1}
        )
        return [each.trouble for each in troubles_of(made)]

    assert any("one job without a name" in each for each in said({"job_type": tell.key}))
    assert said({"job_type": tell.key, "name": "a"}) == []
    assert said({"job_type": tell.key}, {"job_type": tell.key}) == []


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: redrive(queue=5), "queue is a int. Give a string."),
        (lambda: redrive(error_code=5), "error_code is a int. Give a string."),
        (lambda: pause(queue=5), "queue is a int. Give a string."),
        (lambda: enqueue_many(3), r"calls is a int. Give a list of them: \[task.bind\(...\)\]."),
        (lambda: enqueue_many(None), "calls is a NoneType. Give a list of them"),
        (lambda: operate.save({"name": "nightly"}), r"definition is a dict. Give a Definition\(name=..."),
        (lambda: operate.run_now(5), "schedule is a int. Give its name, or its id."),
        (lambda: operate.next_ticks("s", after=datetime(2027, 1, 1)), "after is naive .2027"),  # noqa: DTZ001
        (lambda: assert_enqueued(tell, tag=["a"]), "tag is no filter. Did you mean 'tags'?"),
        (lambda: all_enqueued(zzz=3), "zzz is no filter. Known: args, group, kwargs"),
        (lambda: tell.using(priority="high"), "priority is 'high'. Give a whole number from -100 to 100."),
    ],
)
def test_what_is_of_a_wrong_type_is_named(call: Callable[[], object], told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        call()


@pytest.mark.parametrize(
    "of", [lambda hours: timedelta(hours=hours), lambda hours: datetime(2400, 1, hours, tzinfo=UTC)]
)
def test_a_job_that_would_expire_before_it_may_start_is_refused(of: Callable[[int], Any]) -> None:
    for deadline in (1, 2):
        with pytest.raises(InvalidOption, match="expire before it may start"):
            tell.using(run_after=of(2)).options(deadline=of(deadline)).enqueue()
    tell.using(run_after=of(2)).options(deadline=of(3)).enqueue()


@pytest.mark.parametrize("given", [print, "shop.charge", 5])
def test_what_is_no_job_is_not_enqueued(given: Any) -> None:
    with pytest.raises(InvalidOption, match=r"task is a .*Decorate the function with @job"):
        enqueue(given, 3)


def test_the_name_of_a_job_is_given_by_its_keyword(apart: None) -> None:
    with pytest.raises(InvalidOption, match=r"function is 'reports'\. Write @job, or @job"):
        job("reports")  # type: ignore[call-overload]


def test_a_zone_may_be_an_object_and_a_list_of_jobs_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declarations, "_known", {})

    made = schedule("zoned", [tell, tell.bind("b")], cron="0 2 * * *", timezone=ZoneInfo("Europe/Berlin"))

    assert made.definition.time_zone == "Europe/Berlin"
    assert [each["args"]["args"] for each in made.definition.jobs] == [[], ["b"]]


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"jitter": "5s"}, InvalidSchedule, "jitter is '5s'. Give seconds, or a timedelta."),
        ({"args": "y"}, InvalidOption, "args is a str. Give a list"),
        ({"kwargs": ["y"]}, InvalidOption, "kwargs is a list. Give a mapping"),
    ],
)
def test_a_schedule_names_what_it_cannot_read(
    given: dict[str, Any], error: type[Exception], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declarations, "_known", {})
    with pytest.raises(error, match=told):
        schedule("odd", tell, cron="0 2 * * *", timezone="UTC", **given)


def test_two_schedules_of_one_name_are_refused_whatever_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declarations, "_known", {})
    when = {"cron": "0 2 * * *", "timezone": "UTC"}
    first = schedule("twice", tell.bind("a"), **when)
    # As a module that is loaded again declares it.
    assert schedule("twice", tell.bind("a"), **when) == first

    one = tell.bind("a")
    for calls, changes in (
        (tell.bind("b"), {}),
        (one, {"jitter": 5}),
        (one, {"overlap": "skip"}),
        (tell.using(priority=3).bind("a"), {}),
        (tell.options(tags=["x"]).bind("a"), {}),
    ):
        with pytest.raises(DuplicateSchedule, match="declared twice, and differently"):
            schedule("twice", calls, **when, **changes)
    assert declarations.all() == [first]

    schedule("group", [tell, tell], group={"on_completed": tell}, **when)
    schedule("group", [tell, tell], group={"on_completed": tell}, **when)
    for group in (
        None,
        {"on_completed": tell.bind("b")},
        {"on_failed": tell},
        {"on_completed": tell, "tolerate": 1},
    ):
        with pytest.raises(DuplicateSchedule):
            schedule("group", [tell, tell], group=group, **when)


def test_a_job_that_has_ended_does_not_run_to_its_end_once_more() -> None:
    done = tell.enqueue("x")
    run_to_end(done)
    with pytest.raises(AssertionError, match="is completed already"):
        run_to_end(done)
    pause(queue="default")
    with pytest.raises(AssertionError, match=r"it did not run\. .*paused"):
        run_to_end(tell.enqueue("x"))


def test_of_several_calls_the_one_is_named_whose_argument_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(declarations, "_known", {})
    when = {"cron": "0 2 * * *", "timezone": "UTC"}

    made = schedule("several", [tell, tell.options(name="second").bind(7)], **when)
    called = schedule("called", [tell, tell], group={"on_completed": tell.bind(7)}, **when)

    assert "argument 'second.word' is of type int" in written(made)[1]
    assert "argument 'on_completed.word' is of type int" in written(called)[1]

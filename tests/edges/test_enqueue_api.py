"""The calls a project makes: enqueue in its many forms, and what each refuses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.utils import timezone

from pgbroker import Backoff, Snooze, enqueue, enqueue_many, get_job, job, redrive, tenant_context
from pgbroker.errors import (
    BodyNotStored,
    BodyUnreadable,
    IdempotencyConflict,
    InvalidArgument,
    InvalidOption,
    InvalidSetting,
    JobNotFound,
    PayloadTooLarge,
    SchemaTooOld,
    UnknownJobType,
    UnknownQueue,
)
from pgbroker.management.exits import unreachable
from pgbroker.models import Job, JobType, Queue
from pgbroker.states import Status
from pgbroker.testing import guards_off

pytestmark = pytest.mark.django_db


@job(name="tests.api.report", queue_name="api-reports", max_attempts=4, backoff=3, timeout=60, priority=7)
def report(customer_id: int, month: date) -> None:
    """Do nothing."""


@job(name="tests.api.note")
async def note(text: str) -> None:
    """Do nothing."""


def test_a_call_stores_what_the_declaration_and_its_options_say() -> None:
    later = timezone.now() + timedelta(hours=1)

    result = (
        report.using(priority=-5, run_after=later)
        .options(
            idempotency_key="7:2026-11",
            deadline=timedelta(hours=2),
            max_attempts=9,
            backoff={"base": 1, "cap": 10},
            timeout=timedelta(minutes=5),
            correlation_id="abc",
        )
        .enqueue(7, month=date(2026, 11, 1))
    )

    stored = get_job(result.id)
    assert (stored.job_type, stored.queue, stored.status) == (
        "tests.api.report",
        "api-reports",
        Status.SCHEDULED,
    )
    assert (stored.priority, stored.max_attempts, stored.available_at) == (-5, 9, later)
    assert stored.args == {"v": 1, "args": [7], "kwargs": {"month": "2026-11-01"}}
    assert stored.options == {"backoff": Backoff(base=1, cap=10).as_json(), "timeout": 300.0}
    assert (stored.idempotency_key, stored.correlation_id) == ("7:2026-11", "abc")
    assert stored.deadline_at == stored.created_at + timedelta(hours=2)


def test_a_plain_call_takes_everything_from_the_declaration() -> None:
    stored = get_job(enqueue(report, customer_id=1, month=date(2026, 1, 1)))

    assert (stored.queue, stored.priority, stored.max_attempts) == ("api-reports", 7, 4)
    assert stored.status == Status.READY
    assert stored.options == {"backoff": Backoff(base=3, factor=1, cap=3, jitter=False).as_json()}


def test_async_code_enqueues_and_reads_results() -> None:
    async def view() -> list[object]:
        result = await note.aenqueue("hello")
        await result.arefresh()
        return result.args

    assert async_to_sync(view)() == ["hello"]


@pytest.mark.django_db(transaction=True)
def test_what_a_transaction_rolls_back_was_never_enqueued() -> None:
    with transaction.atomic():
        note.enqueue("gone")
        transaction.set_rollback(True)

    assert not Job.objects.exists()


def test_a_bulk_call_answers_each_row_and_one_bad_row_sinks_no_other() -> None:
    taken = note.options(idempotency_key="k").enqueue("first")

    outcomes = enqueue_many(
        [
            note.bind("a"),
            note.bind(5),
            note.options(idempotency_key="k").bind("first"),
            note.options(idempotency_key="k").bind("another"),
            note.using(queue_name="no-such-queue").bind("b"),
            note.bind("c"),
        ]
    )

    assert [each.outcome for each in outcomes] == [
        "created",
        "invalid_argument",
        "existing",
        "idempotency_conflict",
        "unknown_queue",
        "created",
    ]
    assert str(outcomes[2].job_id) == taken.id
    assert [type(each.error) for each in outcomes] == [
        type(None),
        InvalidArgument,
        type(None),
        IdempotencyConflict,
        UnknownQueue,
        type(None),
    ]
    assert all(isinstance(outcomes[place].job_id, UUID) for place in (0, 5))
    assert Job.objects.count() == 3


def test_the_same_key_and_body_is_the_same_job_and_another_body_is_refused() -> None:
    keyed = report.options(idempotency_key="x")
    first = keyed.enqueue(1, month=date(2026, 1, 1))

    assert keyed.enqueue(1, month=date(2026, 1, 1)).id == first.id
    with pytest.raises(IdempotencyConflict) as refused:
        keyed.enqueue(2, month=date(2026, 1, 1))
    assert refused.value.code == "idempotency_conflict"
    assert str(refused.value.job_id) == first.id
    with pytest.raises(IdempotencyConflict, match="by position and by name are two bodies"):
        keyed.enqueue(customer_id=1, month=date(2026, 1, 1))


def test_a_held_key_gives_the_stored_job_whatever_else_the_second_call_asks_for() -> None:
    keyed = note.options(idempotency_key="x")
    first = keyed.enqueue("a")

    again = keyed.using(run_after=timedelta(hours=1)).options(timeout=5, deadline=7_200).enqueue("a")
    # A queue of another declaration: one that exists.
    elsewhere = keyed.using(queue_name="api-reports").enqueue("a")

    assert (again.id, elsewhere.id) == (first.id, first.id)
    stored = get_job(first.id)
    assert (stored.queue, stored.status, stored.deadline_at) == ("default", Status.READY, None)


def test_a_refusal_leaves_the_callers_transaction_usable() -> None:
    with pytest.raises(UnknownQueue, match="broker_queues create nowhere"):
        note.using(queue_name="nowhere").enqueue("x")

    note.enqueue("still works")
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("a\x00b", InvalidArgument, "argument 'text'"),
        ("\ud800", InvalidArgument, "surrogate"),
        ("x" * 300_000, PayloadTooLarge, "MAX_PAYLOAD_BYTES"),
    ],
)
def test_b143_what_postgresql_cannot_store_is_refused_before_any_statement(
    text: str, error: type[Exception], says: str, django_assert_num_queries: object
) -> None:
    with django_assert_num_queries(0), pytest.raises(error, match=says):  # type: ignore[operator]
        note.enqueue(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("idempotency_key", "a\x00"),
        ("idempotency_key", "x" * 256),
        ("idempotency_scope", "for ever"),
        ("on_conflict", "ignore"),
        ("window", 0),
        ("deadline", datetime(2030, 1, 1)),  # noqa: DTZ001 - naive on purpose
        ("deadline", -1),
        ("max_attempts", 0),
        ("backoff", "slow"),
        ("timeout", 0),
        ("lane", "customer-7"),  # not before lanes do something
        ("colour", "red"),
    ],
)
def test_a_wrong_option_names_itself_and_the_cure(name: str, value: object) -> None:
    with pytest.raises(InvalidOption) as refused:
        note.options(**{name: value})

    assert refused.value.code == "invalid_option"
    assert name in str(refused.value)
    assert refused.value.cure


def test_b124_no_number_of_queues_or_size_of_payload_is_too_much_for_the_wake_up() -> None:
    for size in (9_000, 200_000):
        note.enqueue("y" * size)

    assert Job.objects.count() == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: note.enqueue(text="x"),
        lambda: note.options(idempotency_key="k").enqueue(text="x"),
        lambda: enqueue_many([note.bind(text="x"), note.bind(text="y")]),
        lambda: get_job(UUID(int=7)),
    ],
    ids=["plain", "with a key", "many", "look"],
)
def test_a_database_without_migrations_is_told_with_the_command_that_makes_them(
    call: Callable[[], object],
) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("alter schema pgbroker rename to elsewhere")
        with pytest.raises(SchemaTooOld) as refused:
            call()
        transaction.set_rollback(True)

    assert "Run: manage.py migrate pgbroker --database default" in str(refused.value)


def test_a_naive_run_after_is_refused() -> None:
    with pytest.raises(Exception, match="aware"):
        note.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001


def test_a_job_of_another_tenant_is_not_found() -> None:
    with tenant_context("acme"):
        theirs = note.enqueue("secret")

    with pytest.raises(JobNotFound):
        get_job(theirs.id)
    assert note.options(tenant="acme").enqueue("more").id
    with tenant_context("acme"):
        assert Job.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_type_that_no_worker_has_declared_yet_is_declared_by_its_first_call() -> None:
    with guards_off():
        JobType.objects.filter(name="tests.api.report").delete()
        Queue.objects.filter(name="api-reports").delete()

    with transaction.atomic():
        result = report.enqueue(1, month=date(2026, 1, 1))

    assert get_job(result.id).queue == "api-reports"


def test_a_run_after_may_be_a_timedelta_by_the_database_s_clock() -> None:
    stored = get_job(note.using(run_after=timedelta(minutes=5)).enqueue("later").id)

    assert stored.available_at == stored.created_at + timedelta(minutes=5)
    with pytest.raises(InvalidOption, match=r"run_after is negative \(-1 s\)"):
        note.using(run_after=timedelta(seconds=-1))


@pytest.mark.parametrize("value", [30, 0.5, "tomorrow", date(2026, 1, 1)])
def test_a_run_after_that_is_no_instant_is_refused_with_the_cure(value: object) -> None:
    with pytest.raises(InvalidOption, match="timezone-aware datetime") as refused:
        note.using(run_after=value)

    assert refused.value.field == "run_after"
    assert repr(value) in refused.value.trouble


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (-1, "timeout is -1 s. Give more than zero and at most 2592000 s."),
        (timedelta(seconds=-0.25), "timeout is -0.25 s. Give more than zero and at most 2592000 s."),
        (timedelta(days=31), "timeout is 2678400 s. Give more than zero and at most 2592000 s."),
    ],
)
def test_a_duration_out_of_its_range_is_told_in_seconds(value: object, says: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        note.options(timeout=value)

    assert str(refused.value) == says


def test_a_verdicts_negative_delay_is_told_in_seconds() -> None:
    with pytest.raises(InvalidOption, match=r"Snooze.delay is negative \(-1 s\)"):
        Snooze(-1)


@pytest.mark.parametrize("wrong", [(note, "x"), note.enqueue, note, "x", None])
def test_what_is_no_call_is_refused_with_the_word_that_makes_one(wrong: object) -> None:
    with pytest.raises(InvalidOption, match=r"calls\[1\] is a \w+\. Give task\.bind\(\.\.\.\)\."):
        enqueue_many([note.bind("a"), wrong])

    assert not Job.objects.exists()


@pytest.mark.parametrize("word", ["delay", "apply_async"])
def test_the_word_of_another_library_is_answered_with_ours(word: str) -> None:
    with pytest.raises(AttributeError, match=f"{word}'. Write task.enqueue"):
        getattr(note, word)("x")
    assert not hasattr(note, "colour")


def test_a_filter_that_names_nothing_is_no_filter_that_matches_nothing() -> None:
    with pytest.raises(UnknownQueue, match="Did you mean 'api-reports'"):
        redrive(queue="api-report")
    with pytest.raises(UnknownJobType, match=r"no\.such"):
        redrive(job_type="no.such")


@pytest.mark.parametrize("end", [".", "?", "!", "…", ""])
def test_a_message_that_quotes_another_ends_its_sentence_once(end: str) -> None:
    trouble = f"is odd{end}"
    told = [
        InvalidOption("x", trouble, "Cure."),
        InvalidSetting("X", trouble, "Cure."),
        InvalidArgument("x", trouble, "Cure."),
        BodyNotStored(trouble),
        BodyUnreadable("x", trouble),
        unreachable("default", OSError(trouble + "\n")),
    ]

    for each in told:
        assert f"is odd{end or '.'} " in each.message


def test_an_option_at_the_wrong_door_is_shown_the_right_one() -> None:
    with pytest.raises(InvalidOption, match=r"\.using\(priority="):
        note.options(priority=5)
    with pytest.raises(InvalidOption, match=r"\.options\(deadline="):
        note.using(deadline=5)


def test_a_parameter_that_cannot_be_stored_is_refused_where_the_job_is_declared() -> None:
    class Order:
        pass

    def send(order: Order) -> None:
        """Never declared."""

    with pytest.raises(InvalidOption, match="order"):
        job(send)


def test_a_past_run_after_is_ready_now() -> None:
    result = note.using(run_after=datetime(2001, 1, 1, tzinfo=UTC)).enqueue("now")

    assert get_job(result.id).status == Status.READY


def test_one_call_in_place_of_a_list_is_told_as_such() -> None:
    with pytest.raises(InvalidOption, match=r"calls is one call\. Give a list of them"):
        enqueue_many(note.bind("x"))  # type: ignore[arg-type]

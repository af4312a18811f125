"""Idempotency keys as a project writes them: a window, and a call that replaces the one before."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pgbroker import cancel, enqueue_many, get_job, job, telemetry
from pgbroker.compat import task_enqueued
from pgbroker.errors import IdempotencyConflict, InvalidOption, NotReplaceable
from pgbroker.models import Idempotency, Job
from pgbroker.states import Status
from pgbroker.testing import guards_off
from tests.support.jobs import age_key, claim_one

pytestmark = pytest.mark.django_db


@job(name="tests.keys.index")
def index(page_id: int, text: str = "") -> None:
    """Do nothing."""


once_a_minute = index.options(idempotency_key="7", idempotency_scope="window", window=timedelta(minutes=1))
newest = index.options(idempotency_key="7", on_conflict="replace")


def test_a_window_makes_one_job_in_its_period() -> None:
    first = once_a_minute.enqueue(7)
    cancel(first.id)
    second = once_a_minute.enqueue(7)
    age_key("7", minutes=1)
    third = once_a_minute.enqueue(7)

    assert second.id == first.id != third.id
    key = Idempotency.objects.get()
    assert key.expires_at - key.created_at == timedelta(minutes=1)


def test_a_window_is_seconds_or_a_timedelta() -> None:
    index.options(idempotency_key="8", idempotency_scope="window", window=90.5).enqueue(8)

    key = Idempotency.objects.get()
    assert key.expires_at - key.created_at == timedelta(seconds=90.5)


@pytest.mark.parametrize("window", [0, -1, "1 day", True, timedelta(days=3661), float("nan")])
def test_a_window_that_is_no_duration_is_refused_where_it_is_written(window: Any) -> None:
    with pytest.raises(InvalidOption, match="window"):
        index.options(window=window)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"idempotency_scope": "window"}, "window is missing"),
        ({"window": 60}, "window was given with idempotency_scope=None"),
        ({"window": 60, "idempotency_scope": "held"}, "window was given with idempotency_scope='held'"),
        (
            {"window": 60, "idempotency_scope": "window", "idempotency_key": None},
            "idempotency_key is missing",
        ),
        ({"on_conflict": "replace", "idempotency_key": None}, "idempotency_key is missing"),
    ],
)
def test_options_that_mean_nothing_together_are_refused_before_any_statement(
    options: dict[str, Any], says: str, django_assert_num_queries: Any
) -> None:
    wrong = index.options(**{"idempotency_key": "7", **options})

    with django_assert_num_queries(0):
        with pytest.raises(InvalidOption, match=says):
            wrong.enqueue(7)
        (outcome,) = enqueue_many([wrong.bind(7)])

    assert outcome.outcome == "invalid_option"


def test_the_options_may_be_given_one_after_the_other() -> None:
    windowed = index.options(window=60).options(idempotency_scope="window").options(idempotency_key="7")

    assert windowed.enqueue(7).id == windowed.enqueue(7).id


def test_a_call_that_replaces_is_a_new_job_and_the_old_one_says_which() -> None:
    old = newest.enqueue(7, "draft")
    new = newest.enqueue(7, "final")

    replaced = get_job(old.id)
    assert (replaced.status, replaced.reason_code) == (Status.CANCELLED, "replaced")
    assert new.id in (replaced.reason or "")
    assert get_job(new.id).call["args"] == [7, "final"]
    old.refresh()
    assert old.errors[-1].exception_class_path == "pgbroker.errors.JobReplaced"


def test_a_job_that_runs_is_not_replaced_and_the_error_names_it() -> None:
    old = newest.enqueue(7)
    claim_one()

    with pytest.raises(NotReplaceable) as refused:
        newest.enqueue(7)

    assert (refused.value.code, str(refused.value.job_id), refused.value.key) == (
        "not_replaceable",
        old.id,
        "7",
    )
    assert "has started or has ended" in str(refused.value)
    assert isinstance(refused.value, IdempotencyConflict)
    assert Job.objects.count() == 1


def test_b049_what_replaces_is_told_as_enqueued_once_and_what_does_not_is_not_told() -> None:
    told: list[Any] = []
    sent: list[str] = []

    def receive(**keys: Any) -> None:
        sent.append(keys["task_result"].id)

    unsubscribe = telemetry.subscribe(
        lambda event, keys: told.append(str(keys["job_id"])), wants=lambda event: event == "job.enqueued"
    )
    task_enqueued.connect(receive)
    try:
        made = [newest.enqueue(7).id, newest.enqueue(7).id]
        claim_one()
        with pytest.raises(NotReplaceable):
            newest.enqueue(7)
    finally:
        unsubscribe()
        task_enqueued.disconnect(receive)

    assert told == sent == made


def test_a_bulk_call_tells_what_was_replaced_and_what_could_not_be() -> None:
    running = index.options(idempotency_key="running").enqueue(1)
    claim_one()
    waiting = newest.enqueue(7)

    outcomes = enqueue_many(
        [
            newest.bind(7, "a"),
            newest.options(idempotency_key="running").bind(1),
            newest.bind(7, "b"),
            newest.options(idempotency_key="new").bind(2),
        ]
    )

    assert [each.outcome for each in outcomes] == ["replaced", "not_replaceable", "replaced", "created"]
    assert isinstance(outcomes[1].error, NotReplaceable)
    assert str(outcomes[1].error.job_id) == running.id
    assert [get_job(each).status for each in (waiting.id, outcomes[0].job_id, outcomes[2].job_id)] == [  # type: ignore[arg-type]
        Status.CANCELLED,
        Status.CANCELLED,
        Status.READY,
    ]


def test_calls_beyond_one_statement_replace_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large call goes in several statements, its keys in order: two calls of one key may be far apart."""
    monkeypatch.setattr("pgbroker.bulk.ROWS_PER_STATEMENT", 3)
    keys = [str(number % 4) for number in range(12)]

    outcomes = enqueue_many(
        [newest.options(idempotency_key=key).bind(number) for number, key in enumerate(keys)]
    )

    assert [each.outcome for each in outcomes] == ["created"] * 4 + ["replaced"] * 8
    live = Job.objects.filter(status=Status.READY).values_list("pk", flat=True)
    assert set(live) == {each.job_id for each in outcomes[8:]}


def test_a_job_whose_row_is_gone_makes_way() -> None:
    old = newest.enqueue(7)
    with guards_off():
        Job.objects.filter(pk=old.id).delete()

    (outcome,) = enqueue_many([newest.bind(7)])

    assert outcome.outcome == "created"

"""enqueue_many of a long list of plain calls: stored while the others are checked, and as the ordinary way would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from psycopg.errors import DeadlockDetected, SerializationFailure

from pgbroker import enqueue_many, get_job, hooks, job, plain_calls, registry, tenant_context
from pgbroker.errors import InvalidArgument, NotPostgreSQL, SchemaTooOld, UnknownQueue
from pgbroker.models import Job, JobPayload
from pgbroker.registry import Call
from tests.support.crash import Crash, crash_after, fault, statements_run
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db


@job(name="tests.plain_calls.add", queue_name="plain-calls")
def add(a: int, b: str = "") -> None:
    """Do nothing."""


def _count(numbers):  # type: ignore[no-untyped-def] # what is annotated is held to its annotation
    """Do nothing."""


# As Django's own decorator declares it: any sequence is stored as a list.
count = registry.JobTask(
    func=_count, priority=0, backend="default", queue_name="plain-calls", run_after=None, takes_context=False
)


class Asking(Sequence[int]):
    """A sequence that asks the database for its numbers, as a lazy one does."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[int]:
        return iter([Job.objects.count()])


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows a statement, in lists of four at least; the queue has had a job of this priority."""
    monkeypatch.setattr(plain_calls, "ROWS_AHEAD", 2)
    monkeypatch.setattr(plain_calls, "FEWEST", 4)
    registry.synchronise(using="default")
    add.enqueue(-1)


def run(statements: list[str]) -> list[str]:
    return [name for name in statements if name != "notify"]


def numbers_of(ids: Sequence[UUID | None]) -> list[int]:
    stored = JobPayload.objects.in_bulk(ids)
    return [stored[each].args["args"][0] for each in ids]


def test_a_long_list_is_stored_part_by_part_and_each_job_has_its_own_arguments() -> None:
    with statements_run() as statements:
        outcomes = enqueue_many([add.bind(number) for number in range(7)])

    assert run(statements) == ["enqueue_plain_many"] * 4
    assert {outcome.outcome for outcome in outcomes} == {"created"}
    assert numbers_of([outcome.job_id for outcome in outcomes]) == list(range(7))
    ready = (
        Job.objects.exclude(pk=None).filter(pk__in=[each.job_id for each in outcomes]).order_by("ready_at")
    )
    assert [each.pk for each in ready] == [outcome.job_id for outcome in outcomes]


@dataclass
class Noted:
    """Notes when its field is read."""

    number: int

    def __getattribute__(self, name: str) -> Any:
        if name == "number":
            events.append("checked")
        return super().__getattribute__(name)


events: list[str] = []


@job(name="tests.plain_calls.note", queue_name="plain-calls")
def note(noted: Noted) -> None:
    """Do nothing."""


def test_a_part_is_stored_before_the_next_is_checked() -> None:
    """Otherwise server and client wait for each other, in turn."""
    calls = [note.bind(Noted(number)) for number in range(4)]
    registry.synchronise(using="default")
    events.clear()

    def sent(moment: str, name: str) -> None:
        if name == "enqueue_plain_many":
            events.append("sent")

    with fault(sent):
        enqueue_many(calls)

    assert events == ["checked"] * 3 + ["sent", "checked", "sent"]


def test_a_call_that_is_refused_does_not_sink_the_others() -> None:
    calls = [add.bind(0), add.bind("no number"), add.bind(2), add.bind(3), add.bind(None), add.bind(5)]

    with statements_run() as statements:
        outcomes = enqueue_many(calls)

    assert run(statements) == ["enqueue_plain_many"] * 2
    assert [outcome.outcome for outcome in outcomes] == [
        "created", "invalid_argument", "created", "created", "invalid_argument", "created"
    ]  # fmt: skip
    assert isinstance(outcomes[1].error, InvalidArgument)
    assert (outcomes[1].job_id, outcomes[0].error) == (None, None)
    assert numbers_of([each.job_id for each in outcomes if each.job_id]) == [0, 2, 3, 5]


def test_a_list_of_which_every_call_is_refused_stores_nothing() -> None:
    outcomes = enqueue_many([add.bind("no number")] * 5)

    assert {outcome.outcome for outcome in outcomes} == {"invalid_argument"}
    assert Job.objects.count() == 1


def at_part(nth: int, act: Callable[[], object]) -> Callable[[str, str], None]:
    """Return a fault that acts, once, before the *nth* part is sent."""
    seen = 0

    def at(moment: str, name: str) -> None:
        nonlocal seen
        if (moment, name) == ("before", "enqueue_plain_many"):
            seen += 1
            if seen == nth:
                act()

    return at


def forget_priorities() -> None:
    with connection.cursor() as cursor:
        cursor.execute("delete from pgbroker.queue_priority")


def test_what_is_not_plain_about_the_last_sends_all_the_ordinary_way_in_their_order() -> None:
    with fault(at_part(3, forget_priorities)):
        outcomes = enqueue_many([add.bind(number) for number in range(6)])

    assert {outcome.outcome for outcome in outcomes} == {"created"}
    assert Job.objects.count() == 7
    ready = Job.objects.filter(pk__in=[each.job_id for each in outcomes]).order_by("ready_at")
    assert [each.pk for each in ready] == [outcome.job_id for outcome in outcomes]


@pytest.mark.parametrize(
    "task",
    [
        add.options(idempotency_key="key"),
        add.options(tags=["a"]),
        add.using(run_after=None, priority=5),
        add.options(deadline=60),
    ],
    ids=["key", "tags", "new priority", "deadline"],
)
def test_jobs_that_are_not_plain_go_the_ordinary_way(task: Any) -> None:
    outcomes = enqueue_many([task.bind(number) for number in range(4)])

    assert {outcome.outcome for outcome in outcomes} <= {"created", "idempotency_conflict"}
    jobs = {outcome.job_id for outcome in outcomes if outcome.outcome == "created"}
    assert Job.objects.filter(pk__in=jobs).count() == len(jobs)
    assert Job.objects.count() == 1 + len(jobs)


def test_calls_of_several_tasks_go_the_ordinary_way() -> None:
    outcomes = enqueue_many([add.bind(0), count.bind([1]), add.bind(2), count.bind([3])])

    assert [get_job(outcome.job_id).job_type.rpartition(".")[2] for outcome in outcomes] == [
        "add", "_count", "add", "_count"
    ]  # fmt: skip


def test_hooks_are_asked_for_each_call_and_told_of_each_job() -> None:
    asked: list[Call] = []
    told: list[UUID] = []

    def ask(call: Call) -> None:
        asked.append(call)

    def tell(stored: hooks.EnqueuedJob) -> None:
        told.append(stored.job_id)

    for register, hook, expected in ((hooks.before_enqueue, ask, asked), (hooks.after_enqueue, tell, told)):
        register(hook)  # type: ignore[operator]
        try:
            enqueue_many([add.bind(number) for number in range(5)])
        finally:
            hooks.remove(hook)
        assert len(expected) == 5


def test_a_queue_that_nobody_knows_is_named_to_each_call() -> None:
    outcomes = enqueue_many([add.using(queue_name="nowhere-at-all").bind(number) for number in range(5)])

    assert {type(outcome.error) for outcome in outcomes} == {UnknownQueue}
    assert Job.objects.count() == 1


def test_jobs_belong_to_the_tenant_of_the_call_or_of_the_task_and_the_scope_is_put_back() -> None:
    with tenant_context("acme"):
        of_context = enqueue_many([add.bind(number) for number in range(5)])
        mine = Job.objects.count()
        of_task = enqueue_many([add.options(tenant="globex").bind(0)] * 2)
        of_task += enqueue_many([each] * 5) if (each := add.options(tenant="globex").bind(1)) else []
        assert Job.objects.count() == mine == 5
    with tenant_context("globex"):
        assert Job.objects.filter(pk__in=[each.job_id for each in of_task]).count() == 7
    assert Job.objects.count() == 1
    assert {each.outcome for each in [*of_context, *of_task]} == {"created"}


def test_arguments_that_may_run_code_of_their_own_are_read_before_anything_is_stored() -> None:
    with tenant_context("acme"):
        outcomes = enqueue_many([count.bind(Asking()) for _ in range(6)])
        stored = JobPayload.objects.in_bulk([outcome.job_id for outcome in outcomes])

    assert [stored[each.job_id].args["args"][0][0] for each in outcomes] == [0] * 6


# ------------------------------------------------------------------ transactions


def test_a_caller_s_transaction_goes_on_after_a_part_that_was_not_plain() -> None:
    with transaction.atomic():
        Job.objects.count()
        outcomes = enqueue_many([add.using(queue_name="nowhere-at-all").bind(number) for number in range(5)])
        add.enqueue(99)

    assert {outcome.outcome for outcome in outcomes} == {"unknown_queue"}
    assert Job.objects.count() == 2


def test_what_is_rolled_back_was_never_there() -> None:
    with transaction.atomic():
        enqueue_many([add.bind(number) for number in range(5)])
        transaction.set_rollback(True)

    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_crash_before_any_statement_leaves_nothing(nth: int) -> None:
    with pytest.raises(Crash), crash_after(nth, moment="before"):
        enqueue_many([add.bind(number) for number in range(6)])

    assert Job.objects.count() == 1
    assert not connection.in_atomic_block


def end_backend(other: psycopg.Connection[Any]) -> None:
    """End the backend of Django's connection, and wait until it is gone."""
    other.execute("select pg_terminate_backend(%s, 5000)", [connection.connection.info.backend_pid])


@pytest.mark.own_session
@pytest.mark.django_db(transaction=True)
def test_a_connection_that_is_lost_is_told_since_what_it_was_set_to_is_lost_with_it() -> None:
    """Its tenant, its role, its locks: on a new connection the jobs might be somebody else's."""
    with (
        second_session() as other,
        pytest.raises(OperationalError),
        fault(at_part(2, lambda: end_backend(other))),
    ):
        enqueue_many([add.bind(number) for number in range(6)])

    assert Job.objects.count() == 1


@pytest.mark.own_session
@pytest.mark.django_db(transaction=True)
def test_a_statement_that_somebody_cancels_is_not_tried_again() -> None:
    with second_session() as other, connection.cursor() as cursor:
        cursor.execute("set statement_timeout = '200ms'")
        other.execute("begin")
        other.execute("lock table pgbroker.job in exclusive mode")
        with pytest.raises(OperationalError, match="timeout"):
            enqueue_many([add.bind(number) for number in range(6)])
        other.execute("rollback")
        cursor.execute("reset statement_timeout")

    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("task", [add, add.options(tags=["a"])], ids=["ahead", "ordinary"])
def test_an_error_after_the_commit_is_the_callers_and_doubles_nothing(task: Any) -> None:
    """However much it looks like one of the commit."""
    called: list[str] = []

    def fail() -> None:
        raise OperationalError from DeadlockDetected()

    def at(moment: str, name: str) -> None:
        if not called and name.startswith("enqueue"):
            called.append(name)
            transaction.on_commit(fail)

    with fault(at), pytest.raises(OperationalError):
        enqueue_many([task.bind(number) for number in range(6)])

    assert called == ["enqueue_plain_many" if task is add else "enqueue_many"]
    assert Job.objects.count() == 7


@pytest.mark.django_db(transaction=True)
def test_a_commit_that_the_server_refuses_stores_the_list_once_by_the_ordinary_way() -> None:
    commit, seen = connection._commit, []

    def refused() -> None:
        seen.append(1)
        if len(seen) == 1:
            connection._rollback()
            raise OperationalError from SerializationFailure()
        commit()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_commit", refused)
        outcomes = enqueue_many([add.bind(number) for number in range(6)])

    assert {outcome.outcome for outcome in outcomes} == {"created"}
    assert (Job.objects.count(), len(seen)) == (7, 2)


def test_another_database_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "vendor", "sqlite")

    with pytest.raises(NotPostgreSQL, match="sqlite"):
        enqueue_many([add.bind(number) for number in range(6)])


@pytest.mark.own_session
@pytest.mark.django_db(transaction=True)
def test_a_connection_that_is_lost_takes_a_caller_s_transaction_with_it_and_says_so() -> None:
    with (
        second_session() as other,
        pytest.raises(OperationalError),
        transaction.atomic(),
        fault(at_part(2, lambda: end_backend(other))),
    ):
        enqueue_many([add.bind(number) for number in range(6)])

    assert Job.objects.count() == 1


@pytest.mark.own_session
@pytest.mark.django_db(transaction=True)
def test_a_commit_of_which_nobody_knows_is_not_done_again() -> None:
    """The jobs may be there: to enqueue them once more would double them."""
    with second_session() as other:
        commit = connection._commit

        def lost() -> None:
            end_backend(other)
            commit()

        with pytest.MonkeyPatch.context() as patch, statements_run() as statements:
            patch.setattr(connection, "_commit", lost)
            with pytest.raises(DatabaseError):
                enqueue_many([add.bind(number) for number in range(6)])

    assert run(statements) == ["enqueue_plain_many"] * 3


@pytest.mark.django_db(transaction=True)
def test_a_database_without_our_tables_is_told_as_such() -> None:
    with connection.cursor() as cursor:
        cursor.execute("alter function pgbroker.enqueue_plain_many_1 rename to enqueue_plain_many_9")
        cursor.execute("alter function pgbroker.enqueue_many_1 rename to enqueue_many_9")
    try:
        with pytest.raises(SchemaTooOld):
            enqueue_many([add.bind(number) for number in range(6)])
    finally:
        with connection.cursor() as cursor:
            cursor.execute("alter function pgbroker.enqueue_plain_many_9 rename to enqueue_plain_many_1")
            cursor.execute("alter function pgbroker.enqueue_many_9 rename to enqueue_many_1")

"""Rows that only SQL callers can make, and calls that collide: nothing of it spoils anybody else's work."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, connection, transaction

from pgbroker import control, enqueue_many, job, tenant_context
from pgbroker.errors import KeyHeldByNewerJob
from pgbroker.models import Job, JobPayload
from pgbroker.runtime.supervisor import Worker, WorkerOptions
from pgbroker.states import Status
from pgbroker.stored_json import Undecodable

pytestmark = pytest.mark.django_db(transaction=True)


@job(name="tests.hostile.echo", queue_name="hostile", max_attempts=1)
def echo(x: int) -> int:
    return x


def sql(statement: str, *parameters: object) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall()


def entries(*rows: dict[str, object]) -> list[tuple[object, ...]]:
    return sql("select * from pgbroker.enqueue_many_1(%s)", json.dumps(rows))


def burst() -> int:
    return Worker(WorkerOptions(queues=("hostile",), concurrency=2, burst=True, poll_interval=0.1)).run()


@pytest.mark.parametrize(
    "call",
    [
        """pgbroker.enqueue('tests.hostile.echo', '{"x": 1e5000}')""",
        "pgbroker.enqueue('tests.hostile.echo', "
        "('{\"x\":' || repeat('[', 3000) || repeat(']', 3000) || '}')::jsonb)",
        """pgbroker.enqueue('tests.hostile.echo', '{"x": "not a number"}')""",
    ],
    ids=["number", "depth", "type"],
)
def test_arguments_that_python_cannot_read_fail_their_own_job_only(call: str) -> None:
    with tenant_context("good"):
        healthy = echo.enqueue(1)
    with tenant_context("evil"):
        ((pill,),) = sql(f"select {call}")

    assert burst() == 0

    with tenant_context("good"):
        assert control.get_job(healthy.id).status == Status.COMPLETED
    with tenant_context("evil"):
        ended = control.get_job(pill)
        assert ended.status == Status.DEAD_LETTER
        assert ended.executions[-1]["error_code"] == "undecodable_argument"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("deadline_at", "infinity"),
        ("available_at", "infinity"),
        ("available_at", "9999-12-31 23:59:59+00"),
        ("deadline_at", "-infinity"),
        ("delay_seconds", 1e300),
        ("deadline_seconds", -1),
        ("options", [1]),
        ("args", [1]),
    ],
)
def test_what_nobody_could_read_is_refused_and_sinks_no_other_row(field: str, value: object) -> None:
    echo.enqueue(0)

    answers = entries({"job_type": "tests.hostile.echo", field: value}, {"job_type": "tests.hostile.echo"})

    assert [row[2] for row in answers][1] == "created"
    assert answers[0][2] in ("invalid_option", "invalid_argument")
    assert field in str(answers[0][3])


def test_an_unreadable_time_is_refused_by_the_table_itself() -> None:
    echo.enqueue(0)

    with pytest.raises(DatabaseError, match="job_times_readable"), transaction.atomic():
        sql("update pgbroker.job set ready_at = 'infinity' returning 1")


def test_a_stored_value_that_cannot_be_read_is_shown_as_such() -> None:
    echo.enqueue(0)
    ((pill,),) = sql("""select pgbroker.enqueue('tests.hostile.echo', '{"x": 1e5000}')""")

    assert isinstance(control.get_job(pill).args, Undecodable)


def test_a_foreign_id_gets_a_new_one_and_keeps_its_key() -> None:
    with tenant_context("a"):
        theirs = UUID(echo.enqueue(1).id)
    row = {"job_type": "tests.hostile.echo", "id": str(theirs), "idempotency_key": "k"}

    with tenant_context("b"):
        first, follower = entries(row, {"job_type": "tests.hostile.echo", "idempotency_key": "k"})
        assert (first[2], follower[2]) == ("created", "existing")
        assert first[1] == follower[1] != theirs
        assert JobPayload.objects.get(job=first[1]).idempotency_key == "k"
        # The key guards: a newer holder refuses the retry of the first.
        control.cancel(str(first[1]))
        ((second, *_),) = [answer[1:] for answer in entries({**row, "id": str(uuid4())})]
        with pytest.raises(KeyHeldByNewerJob):
            control.retry(str(first[1]))
        assert Job.objects.filter(status=Status.READY).count() == 1
        assert second != first[1]


def test_an_own_id_with_another_body_is_refused_and_takes_no_key() -> None:
    mine = echo.enqueue(1).id
    other = {"v": 1, "args": [2], "kwargs": {}}

    (refused,) = entries(
        {"job_type": "tests.hostile.echo", "id": mine, "args": other, "idempotency_key": "k9"}
    )
    (later,) = entries({"job_type": "tests.hostile.echo", "args": other, "idempotency_key": "k9"})

    assert (refused[2], later[2]) == ("invalid_option", "created")
    assert str(later[1]) != mine
    assert (
        entries({"job_type": "tests.hostile.echo", "id": mine, "args": {"v": 1, "args": [1], "kwargs": {}}})[
            0
        ][2]
        == "existing"
    )


def test_two_big_bulk_calls_with_the_same_keys_in_opposite_orders_do_not_deadlock() -> None:
    from tests.support.sessions import InThread

    echo.enqueue(0)

    def call(order: int) -> list[str]:
        keys = range(3000)[::order]
        return [
            each.outcome
            for each in enqueue_many(echo.options(idempotency_key=f"{key:05}").bind(key) for key in keys)
        ]

    threads = [InThread(lambda order=order: call(order)).start() for order in (1, -1)]
    outcomes = [outcome for thread in threads for outcome in thread.result()]

    assert sorted(set(outcomes)) == ["created", "existing"]
    assert outcomes.count("created") == 3000


def test_the_tenant_survives_another_wrapper_around_the_first_connection() -> None:
    with tenant_context("acme"):
        echo.enqueue(1)
    connection.close()
    connection.execute_wrappers.clear()

    with connection.execute_wrapper(lambda execute, *call: execute(*call)):
        sql("select 1")

    with tenant_context("acme"):
        assert sql("select count(*) from pgbroker.job") == [(1,)]
    assert sql("select count(*) from pgbroker.job") == [(0,)]


def test_an_error_inside_a_tenant_context_is_not_hidden_by_what_an_iterator_left() -> None:
    echo.enqueue(1)

    def fails() -> None:
        with transaction.atomic(), tenant_context("acme"):
            list(Job.objects.iterator())
            sql("select 1 / 0")

    with pytest.raises(DatabaseError, match="division by zero"):
        fails()

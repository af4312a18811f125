"""enqueue: one rule book, in the caller's transaction, one answer a row."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import connection, transaction
from django.db.utils import DatabaseError
from django.utils import timezone

from pgbroker.lifecycle.declare import DeclaredType, declare_types
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.models import Job, JobPayload, QueuePriority
from pgbroker.states import Status
from pgbroker.tenancy import tenant_context
from tests.support.jobs import (
    TYPE,
    claim_many,
    enqueue_one,
    queue_id,
    row,
    status,
    type_id,
)
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def declared() -> None:
    type_id()


def test_a_job_without_a_time_is_ready_at_once():
    job = row(enqueue_one())

    assert job.status == Status.READY
    assert (job.ready_at is not None, job.available_at, job.attempt_count, job.lease_token) == (
        True,
        None,
        0,
        0,
    )


def test_a_job_for_later_is_scheduled_and_one_for_the_past_is_ready():
    later = timezone.now() + timedelta(hours=1)

    scheduled = row(enqueue_one(available_at=later))
    by_delay = row(enqueue_one(delay_seconds=3600))
    past = row(enqueue_one(available_at=timezone.now() - timedelta(hours=1)))

    assert (scheduled.status, scheduled.available_at, scheduled.ready_at) == (Status.SCHEDULED, later, None)
    assert abs(by_delay.available_at - later) < timedelta(seconds=30)
    assert (past.status, past.available_at) == (Status.READY, None)


def test_the_payload_is_stored_as_it_was_given():
    job_id = enqueue_one(
        args={"v": 1, "args": [1], "kwargs": {"a": None}}, options={"timeout": 3}, type_version=7,
        principal="me", correlation_id="c-1", traceparent="00-1", tags=["a", "b"], lane="left",
    )  # fmt: skip

    payload = JobPayload.objects.get(pk=job_id)
    assert payload.args == {"v": 1, "args": [1], "kwargs": {"a": None}}
    assert (payload.options, payload.type_version, payload.tags) == ({"timeout": 3}, 7, ["a", "b"])
    assert (payload.principal, payload.correlation_id, payload.traceparent) == ("me", "c-1", "00-1")
    assert row(job_id).lane == "left"


def test_what_is_left_out_comes_from_the_declaration_of_the_type():
    queue_id("reports")
    declare_types([
        DeclaredType(TYPE, 3, (), {"queue": "reports", "priority": 7, "max_attempts": 2}),
    ])  # fmt: skip

    (answer,) = enqueue_rows([{"job_type": TYPE}])

    job = row(answer.job_id)
    assert (job.queue_id, job.priority, job.max_attempts, job.declared_attempts) == (
        queue_id("reports"),
        7,
        2,
        2,
    )
    assert JobPayload.objects.get(pk=job.pk).type_version == 3


def test_a_former_name_finds_its_type():
    number = declare_types([DeclaredType("tests.new", 1, ("tests.old",), {})])["tests.new"]

    (answer,) = enqueue_rows([{"job_type": "tests.old"}])

    assert row(answer.job_id).job_type_id == number


@pytest.mark.parametrize(
    ("wrong", "code", "word"),
    [
        ({"job_type": "tests.nobody"}, "unknown_job_type", "tests.nobody"),
        ({"queue": "nowhere"}, "unknown_queue", "nowhere"),
        ({"priority": 101}, "invalid_option", "101"),
        ({"priority": -101}, "invalid_option", "-101"),
        ({"priority": 40_000}, "invalid_option", "40000"),
        ({"max_attempts": 0}, "invalid_option", "max_attempts"),
        ({"max_attempts": 10_001}, "invalid_option", "max_attempts"),
        ({"idempotency_key": ""}, "invalid_option", "idempotency_key"),
        ({"idempotency_key": "k" * 256}, "invalid_option", "idempotency_key"),
        ({"idempotency_key": "k", "idempotency_scope": "ever"}, "invalid_option", "ever"),
        ({"idempotency_key": "k", "on_conflict": "shrug"}, "invalid_option", "shrug"),
    ],
)
def test_one_bad_row_is_answered_with_its_reason_and_does_not_sink_the_others(wrong, code, word):
    rows = [{"job_type": TYPE}, {"job_type": TYPE, **wrong}, {"job_type": TYPE}]

    first, refused, last = enqueue_rows(rows)

    assert [first.outcome, last.outcome] == ["created", "created"]
    assert (refused.outcome, refused.refused) == (code, True)
    assert word in refused.detail
    assert Job.objects.count() == 2


def test_a_batch_is_answered_in_its_own_order_and_each_row_gets_its_own_instant():
    ids = [uuid4() for _ in range(50)]

    answers = enqueue_rows([{"job_type": TYPE, "id": str(each)} for each in ids])

    assert [answer.job_id for answer in answers] == ids
    assert [answer.ordinal for answer in answers] == list(range(1, 51))
    by_time = [job.pk for job in Job.objects.order_by("ready_at")]
    assert by_time == ids
    assert Job.objects.values("ready_at").distinct().count() == 50


def test_an_empty_batch_asks_the_database_nothing(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert enqueue_rows([]) == []


def test_the_same_id_twice_is_one_job_however_often_it_is_sent():
    job_id = uuid4()
    twice = [{"job_type": TYPE, "id": str(job_id)}] * 2

    first = enqueue_rows(twice)
    again = enqueue_rows(twice)

    assert [answer.outcome for answer in first] == ["created", "existing"]
    assert [answer.outcome for answer in again] == ["existing", "existing"]
    assert {answer.job_id for answer in first + again} == {job_id}
    assert (Job.objects.count(), JobPayload.objects.count()) == (1, 1)


def test_b137_a_foreign_id_never_tells_whether_it_exists():
    with tenant_context("acme"):
        theirs = enqueue_one()
    rows = [{"job_type": TYPE, "id": str(theirs)}, {"job_type": TYPE, "id": str(uuid4())}]

    with tenant_context("bolt"):
        taken, free = enqueue_rows(rows)

    assert (taken.outcome, taken.detail) == (free.outcome, free.detail) == ("created", None)
    assert taken.job_id != theirs
    assert row(theirs).tenant_id == "acme"
    assert row(taken.job_id).tenant_id == "bolt"


def test_b137_a_foreign_id_with_a_key_keeps_the_key_with_the_job_that_was_made():
    with tenant_context("acme"):
        theirs = enqueue_one()
    with tenant_context("bolt"):
        (made,) = enqueue_rows([{"job_type": TYPE, "id": str(theirs), "idempotency_key": "k"}])
        (again,) = enqueue_rows([{"job_type": TYPE, "idempotency_key": "k"}])

    assert (again.outcome, again.job_id) == ("existing", made.job_id)


def test_a_priority_never_used_before_is_known_to_the_next_claim():
    enqueue_one(priority=42)
    enqueue_one(priority=42)

    assert QueuePriority.objects.filter(priority=42).count() == 1
    assert [lease.priority for lease in claim_many()] == [42, 42]


def test_an_id_is_a_uuid_of_version_7_in_order_of_time():
    ids = [enqueue_one() for _ in range(3)]

    assert {each.version for each in ids} == {7}
    stamps = [each.int >> 80 for each in ids]
    assert stamps == sorted(stamps)
    assert abs(stamps[0] / 1000 - timezone.now().timestamp()) < 60


@pytest.mark.django_db(transaction=True)
def test_a_job_is_visible_with_its_callers_commit_and_gone_with_the_rollback():
    queue_id()
    with second_session() as other:
        look = "select count(*) from pgbroker.job"
        with transaction.atomic():
            enqueue_one()
            assert other.execute(look).fetchone() == (0,)
        assert other.execute(look).fetchone() == (1,)

        with transaction.atomic():
            enqueue_one(priority=3)
            transaction.set_rollback(True)
        assert other.execute(look).fetchone() == (1,)

    assert len(claim_many(9)) == 1


@pytest.mark.django_db(transaction=True)
def test_sql_callers_enqueue_with_one_function_and_are_told_what_is_wrong():
    with second_session("acme") as psql:
        (made,) = psql.execute(
            "select pgbroker.enqueue(%s, kwargs => '{\"a\": null}', priority => 5)", (TYPE,)
        ).fetchone()
        with pytest.raises(psycopg.Error) as caught:
            psql.execute("select pgbroker.enqueue('tests.nobody')")

    job = row(made)
    assert (job.tenant_id, job.priority, job.status) == ("acme", 5, Status.READY)
    with tenant_context("acme"):
        assert JobPayload.objects.get(pk=made).args == {"v": 1, "args": [], "kwargs": {"a": None}}
    assert (caught.value.sqlstate, caught.value.diag.message_hint) == ("PB001", "unknown_job_type")


def test_sql_callers_cannot_pass_arguments_that_are_no_object():
    with pytest.raises(DatabaseError) as caught, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("select pgbroker.enqueue(%s, kwargs => '[1]')", [TYPE])

    assert caught.value.__cause__.sqlstate == "PB001"


@pytest.mark.django_db(transaction=True)
def test_b126_a_thousand_jobs_in_one_call_send_no_notification_and_take_one_statement():
    with second_session() as listener:
        listener.execute("listen pgbroker")
        enqueue_rows([{"job_type": TYPE}] * 1000)
        assert list(listener.notifies(timeout=0.05)) == []

    assert Job.objects.count() == 1000


def test_the_id_of_an_enqueued_job_is_a_uuid():
    assert isinstance(enqueue_one(), UUID)
    assert status(enqueue_one()) == Status.READY

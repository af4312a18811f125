"""enqueue of one plain job: the short way stores what the long way would, and leaves everything else to it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from pgbroker.lifecycle.declare import DeclaredType, declare_types
from pgbroker.lifecycle.enqueue import Enqueued, enqueue_rows
from pgbroker.lifecycle.notify import notify
from pgbroker.models import Job, JobPayload, QueuePriority
from pgbroker.tenancy import tenant_context
from tests.support.jobs import QUEUE, TYPE, queue_id, type_id
from tests.support.plain import plain, ways

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def declared() -> None:
    type_id()


def way(row: dict[str, Any]) -> tuple[Enqueued, list[str]]:
    """Enqueue a row; returns the answer and the statements it took."""
    (answer,), statements = ways([row])
    return answer, statements


def stored(job_id: UUID) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is stored of a job, without what differs from job to job."""
    job, payload = (
        Job.objects.filter(pk=job_id).values().get(),
        JobPayload.objects.filter(pk=job_id).values().get(),
    )
    assert job["ready_at"] > job["created_at"]
    for name in ("id", "ready_at", "created_at"):
        del job[name]
    del payload["job_id"]
    return job, payload


@pytest.mark.parametrize(
    "more",
    [{}, {"principal": "ada", "correlation_id": "c-1", "traceparent": "00-ab"}, {"principal": None}],
    ids=["bare", "with a context", "nobody"],
)
def test_the_short_way_stores_what_the_long_way_stores(more):
    short, long = plain(**more), plain(**more)

    with tenant_context("acme"):
        answer, statements = way(short)
        twin = enqueue_rows([long, plain()])[0]
        left, right = stored(answer.job_id), stored(twin.job_id)

    assert statements == ["enqueue_plain"]
    assert (answer.outcome, answer.detail, answer.job_id) == ("created", None, UUID(short["id"]))
    assert left == right
    assert left[0]["tenant_id"] == "acme"
    assert Job.objects.count() == 0  # of this tenant


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"delay_seconds": 60}, "created"),
        ({"idempotency_key": "k"}, "created"),
        ({"id": "absent"}, "created"),
        ({"priority": "absent"}, "created"),
        ({"correlation_id": "Grüße"}, "created"),
        ({"priority": "5"}, "created"),
        ({"id": "no uuid"}, "invalid_option"),
        ({"priority": 2**40}, "invalid_option"),
        ({"principal": 5}, "invalid_option"),
        ({"job_type": 5}, "unknown_job_type"),
    ],
)
def test_a_row_that_is_not_plain_goes_the_long_way_at_once(changes, outcome):
    answer, statements = way(plain(**changes))

    assert statements == ["enqueue_many"]
    assert answer.outcome == outcome


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"job_type": "nobody.knows"}, "unknown_job_type"),
        ({"queue": "nowhere"}, "unknown_queue"),
        ({"priority": 101}, "invalid_option"),
        ({"max_attempts": 0}, "invalid_option"),
        ({"type_version": 0}, "invalid_option"),
        ({"correlation_id": "x" * 256}, "invalid_option"),
        ({"principal": ""}, "invalid_option"),
        ({"traceparent": "x" * 256}, "invalid_option"),
        ({"args": {"v": 2}}, "invalid_argument"),
        ({"args": [1]}, "invalid_argument"),
        ({"args": 5}, "invalid_argument"),
    ],
)
def test_what_breaks_a_rule_stores_nothing_on_the_short_way_and_is_explained_by_the_long_one(
    changes, outcome
):
    answer, statements = way(plain(**changes))

    assert statements == ["enqueue_plain", "enqueue_many"]
    assert answer.outcome == outcome
    assert answer.detail
    assert Job.objects.count() == JobPayload.objects.count() == 0


def test_a_priority_that_the_queue_has_not_seen_is_told_to_claims():
    answer, statements = way(plain(priority=42))

    assert (statements, answer.outcome) == (["enqueue_plain", "enqueue_many"], "created")
    assert QueuePriority.objects.filter(queue_id=queue_id(), priority=42).count() == 1
    assert way(plain(priority=42))[1] == ["enqueue_plain"]


def test_a_name_that_another_type_took_over_means_that_one():
    heir = declare_types([DeclaredType(name="tests.heir", version=1, aliases=(TYPE,), defaults={})])[
        "tests.heir"
    ]

    answer, statements = way(plain())

    assert statements == ["enqueue_plain", "enqueue_many"]
    assert Job.objects.get(pk=answer.job_id).job_type_id == heir


def test_a_repeated_call_with_the_same_id_finds_its_job():
    row = plain()
    first, _ = way(row)

    again, statements = way(row)

    assert (again.outcome, again.job_id) == ("existing", first.job_id)
    assert statements == ["enqueue_plain", "enqueue_many"]
    assert way(plain(id=row["id"], args={"v": 1, "args": [2], "kwargs": {}}))[0].outcome == "invalid_option"


def test_another_tenants_id_is_not_told_of_and_the_job_gets_a_new_one():
    row = plain()
    with tenant_context("other"):
        way(row)

    answer, _ = way(row)

    assert answer.outcome == "created"
    assert str(answer.job_id) != row["id"]


def test_a_notification_does_not_wait_for_the_disk_and_nothing_else_is_spared_the_wait():
    def setting() -> str:
        with connection.cursor() as cursor:
            cursor.execute("show synchronous_commit")
            (value,) = cursor.fetchone()
        return str(value)

    before = setting()
    with transaction.atomic():
        notify([QUEUE])
        inside = setting()
        transaction.set_rollback(True)

    assert (before, inside, setting()) == ("on", "off", "on")


def test_a_type_whose_declaration_has_tags_gives_them_to_a_plain_call_too():
    declare_types([DeclaredType(TYPE, 2, (), {"tags": ["nightly"]})])

    answer, statements = way(plain())

    assert statements == ["enqueue_plain", "enqueue_many"]
    assert JobPayload.objects.get(pk=answer.job_id).tags == ["nightly"]


@pytest.mark.parametrize("lacking", ["version", "rank", "attempts"])
def test_a_number_that_is_not_given_is_left_to_the_long_way(lacking):
    queue_id(), type_id()
    numbers = {"version": 3, "rank": 0, "attempts": 7, lacking: None}
    said = {"type": TYPE, "queue": QUEUE, **numbers}
    for call in (
        "select pgbroker.enqueue_plain_1(gen_random_uuid(), %(type)s, %(queue)s, '{\"v\": 1}', ",
        "select pgbroker.enqueue_plain_many_1(array[gen_random_uuid()], %(type)s, %(queue)s, '[{\"v\": 1}]', ",
    ):
        with connection.cursor() as cursor:
            cursor.execute(f"{call} %(version)s, %(rank)s, %(attempts)s, null, null, null)", said)
            assert cursor.fetchone() == (None,)
    assert Job.objects.count() == 0

"""adopt: what no claim looks at comes into sight, and everything else stays as it is."""

from __future__ import annotations

import pytest
from django.db import connection

from pgbroker.lifecycle.adopt import Adopted, adopt
from pgbroker.lifecycle.declare import declare_queues
from pgbroker.lifecycle.delete_queue import delete_queue
from pgbroker.models import Queue, QueuePriority
from pgbroker.tenancy import scope_all
from tests.support.jobs import claim_one, enqueue_one, queue_id, type_id
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db
NOTHING = Adopted([], 0)


def write(queue: int, *, priority: int = 0, scheduled: bool = False, tenant: str = "acme") -> None:
    """Write a job by hand, as a role with the grants for SQL callers may."""
    column, status = ("available_at", 0) if scheduled else ("ready_at", 2)
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(
            f"insert into pgbroker.job (id, queue_id, job_type_id, tenant_id, priority, status, {column}) "
            "values (gen_random_uuid(), %s, %s, %s, %s, %s, statement_timestamp())",
            [queue, type_id(), tenant, priority, status],
        )


def priorities(queue: int) -> set[int]:
    return set(QueuePriority.objects.filter(queue_id=queue).values_list("priority", flat=True))


def test_where_all_is_in_sight_it_makes_nothing():
    enqueue_one()
    enqueue_one(priority=7)

    assert adopt() == NOTHING


def test_priorities_that_a_queue_is_not_known_to_have_are_added():
    for priority in (5, -3, 5, 90):
        write(queue_id(), priority=priority)
    write(queue_id("other"), priority=5, tenant="globex")

    assert adopt() == Adopted([], 4)

    assert priorities(queue_id()) >= {5, -3, 90}
    assert 5 in priorities(queue_id("other"))
    assert claim_one().priority == 90
    assert adopt() == NOTHING


@pytest.mark.parametrize("scheduled", [False, True], ids=["ready", "scheduled"])
def test_a_queue_without_a_row_is_made_anew(scheduled):
    write(999, scheduled=scheduled)
    write(-7, scheduled=scheduled)
    enqueue_one()

    assert adopt() == Adopted(["lost--7", "lost-999"], 0 if scheduled else 2)

    assert Queue.objects.get(pk=999).name == "lost-999"
    assert adopt() == NOTHING


@pytest.mark.django_db(transaction=True)
def test_a_job_that_a_repeatable_read_caller_put_into_a_deleted_queue_is_found_again():
    type_id()
    with scope_all():
        declare_queues(["mial"])
    number = queue_id("mial")
    with second_session() as caller, caller.transaction():
        caller.execute("set transaction isolation level repeatable read")
        caller.execute("select 1 from pgbroker.uuid7_1()")
        with scope_all():
            assert delete_queue("mial") == "deleted"
        (outcome,) = caller.execute(
            "select outcome from pgbroker.enqueue_many_1(jsonb_build_array(jsonb_build_object("
            "'job_type', (select name from pgbroker.job_type where id = %s), 'queue', 'mial')))",
            [type_id()],
        ).fetchone()
        assert outcome == "created"

    assert adopt() == Adopted([f"lost-{number}"], 1)

"""delete_queue: a queue that was made by mistake goes; one that anything refers to, or may refer to, stays."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from pgbroker import control
from pgbroker.errors import QueueInUse, UnknownQueue
from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.declare import DeclaredType, declare_queues, declare_types
from pgbroker.lifecycle.delete_queue import delete_queue
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.models import Pause, Queue, QueuePriority, QueueSample
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import (
    OTHER_TYPE,
    TYPE,
    claim_one,
    completed,
    enqueue_one,
    guards_off,
    queue_id,
    settle_one,
    type_id,
)
from tests.support.schedules import entry, make, set_row
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def made_by_mistake() -> int:
    type_id()
    return queue_id("mial")


def delete(name: str = "mial") -> None:
    with transaction.atomic():
        control.delete_queue(name)


def test_a_queue_that_nothing_refers_to_goes_with_what_was_made_for_it(made_by_mistake):
    control.pause(queue="mial")
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into pgbroker.queue_priority (queue_id, priority) values (%s, 0)", [made_by_mistake]
        )
        cursor.execute(
            "insert into pgbroker.queue_sample (queue_id, sampled_at, ready, scheduled, running) "
            "values (%s, now(), 0, 0, 0)",
            [made_by_mistake],
        )

    delete()

    assert not Queue.objects.filter(name="mial").exists()
    for model in (QueuePriority, Pause, QueueSample):
        assert not model.objects.filter(queue_id=made_by_mistake).exists()
    assert enqueue_rows([{"job_type": TYPE, "queue": "mial"}])[0].outcome == "unknown_queue"


@pytest.mark.parametrize(
    "template",
    [
        {"jobs": [entry(), entry(queue="mial")]},
        {"jobs": [entry(name="a")], "group": {"on_completed": entry(queue="mial")}},
        {"jobs": [entry(name="a")], "group": {"on_failed": entry(queue="mial")}},
    ],
    ids=["job", "on_completed", "on_failed"],
)
def test_one_that_a_schedule_of_any_tenant_enqueues_into_stays(template):
    with tenant_context("acme"):
        line = make("nightly", template=template)
    make("elsewhere")

    with pytest.raises(QueueInUse, match="the schedule 'nightly' enqueues into it"):
        delete()

    with tenant_context("acme"):
        set_row(line.pk, template={"jobs": [entry()]})
    delete()
    assert not Queue.objects.filter(name="mial").exists()


def test_its_name_may_be_used_again_under_another_number(made_by_mistake):
    delete()

    (again,) = declare_queues(["mial"])

    assert again.id != made_by_mistake
    assert enqueue_rows([{"job_type": TYPE, "queue": "mial"}])[0].outcome == "created"


def a_job() -> None:
    enqueue_one(queue="mial")


def a_job_of_another_tenant() -> None:
    with tenant_context("acme"):
        enqueue_one(queue="mial")


def an_ended_job() -> None:
    cancel_many([enqueue_one(queue="mial")])


def history() -> None:
    job_id = enqueue_one(queue="mial")
    settle_one(completed(claim_one(queue="mial")))
    with guards_off(), connection.cursor() as cursor:
        cursor.execute("delete from pgbroker.job where id = %s", [job_id])


def a_declaration() -> None:
    declare_types([DeclaredType(OTHER_TYPE, 1, (), {"queue": "mial"})])


@pytest.mark.parametrize(
    ("refer", "why"),
    [
        (a_job, "it has jobs"),
        (a_job_of_another_tenant, "it has jobs, of this or another tenant"),
        (an_ended_job, "it has jobs"),
        (history, "jobs have run in it"),
        (a_declaration, "a job type is declared with it"),
    ],
)
def test_a_queue_that_is_referred_to_stays_and_it_is_said_by_what(refer, why):
    refer()

    with pytest.raises(QueueInUse, match=why) as refused:
        delete()

    assert (refused.value.code, refused.value.name) == ("queue_in_use", "mial")
    assert Queue.objects.filter(name="mial").exists()


def test_the_default_queue_stays():
    with pytest.raises(QueueInUse, match="by default"):
        delete("default")


def test_a_queue_that_is_not_there_is_told_with_the_one_that_was_meant():
    with pytest.raises(UnknownQueue, match="Did you mean 'mial'"):
        delete("mail")


@pytest.mark.parametrize("statement", ["delete from pgbroker.queue", "delete from pgbroker.queue_priority"])
def test_no_other_way_deletes_a_queue_or_its_priorities(statement):
    with scope_all(), pytest.raises(DatabaseError, match="pgbroker: "):  # noqa: SIM117 - one statement
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)


def test_a_tenant_deletes_none():
    """It would not see the jobs of the others."""
    with (
        pytest.raises(DatabaseError, match="scope of all tenants"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute("select pgbroker.delete_queue_1('mial')")


# ------------------------------------------------------------------ beside others


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["enqueue_many_1", "enqueue_plain_1", "enqueue_plain_many_1"])
def test_an_enqueue_that_is_not_committed_is_waited_for_a_second_and_then_the_queue_stays(how):
    calls = {
        "enqueue_many_1": f"""select * from pgbroker.enqueue_many_1('[{{"job_type": "{TYPE}", "queue": "mial"}}]')""",
        "enqueue_plain_1": "select pgbroker.enqueue_plain_1(gen_random_uuid(), "
        f"""'{TYPE}', 'mial', '{{"v": 1, "args": [], "kwargs": {{}}}}', 1, 0, 5, null, null, null)""",
        "enqueue_plain_many_1": "select pgbroker.enqueue_plain_many_1(array[gen_random_uuid()], "
        f"""'{TYPE}', 'mial', '[{{"v": 1, "args": [], "kwargs": {{}}}}]', 1, 0, 5, null, null, null)""",
    }
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into pgbroker.queue_priority (queue_id, priority) values (%s, 0)", [queue_id("mial")]
        )
    with second_session() as enqueuing:
        enqueuing.execute("begin")
        enqueuing.execute(calls[how])
        with pytest.raises(QueueInUse, match="still open"):
            control.delete_queue("mial")
        enqueuing.execute("commit")

    with pytest.raises(QueueInUse, match="it has jobs"):
        control.delete_queue("mial")


@pytest.mark.django_db(transaction=True)
def test_an_enqueue_that_commits_while_the_delete_waits_keeps_the_queue():
    with second_session() as enqueuing:
        enqueuing.execute("begin")
        enqueuing.execute(
            f"""select * from pgbroker.enqueue_many_1('[{{"job_type": "{TYPE}", "queue": "mial"}}]')"""
        )
        deleting = InThread(lambda: delete_queue("mial")).start()
        wait_until_blocked(deleting, enqueuing)
        enqueuing.execute("commit")

    assert deleting.result() == "has_jobs"
    with scope_all():
        assert Queue.objects.filter(name="mial").exists()


@pytest.mark.django_db(transaction=True)
def test_an_enqueue_that_comes_behind_the_delete_finds_no_queue():
    """It waits for the table, and looks the queue up after that: no job is left without one."""
    with transaction.atomic():
        assert delete_queue("mial") == "deleted"
        enqueuing = InThread(lambda: enqueue_rows([{"job_type": TYPE, "queue": "mial"}])).start()
        wait_until_blocked(enqueuing)

    assert [answer.outcome for answer in enqueuing.result()] == ["unknown_queue"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("count", [1, 2])
def test_a_plain_enqueue_that_comes_behind_the_delete_finds_no_queue(count):
    plain = {
        "job_type": TYPE, "queue": "mial", "type_version": 1,
        "args": {"v": 1, "args": [], "kwargs": {}}, "priority": 0, "max_attempts": 5,
    }  # fmt: skip
    with transaction.atomic():
        assert delete_queue("mial") == "deleted"
        enqueuing = InThread(
            lambda: enqueue_rows([{**plain, "id": str(uuid4())} for _ in range(count)])
        ).start()
        wait_until_blocked(enqueuing)

    assert [answer.outcome for answer in enqueuing.result()] == ["unknown_queue"] * count


# ------------------------------------------------------------------ on the command line


def run(*typed: Any) -> str:
    said = StringIO()
    call_command("broker_queues", "delete", *typed, stdout=said, stderr=StringIO())
    return said.getvalue()


def test_the_command_deletes_and_says_so():
    queue_id("other")

    assert run("mial") == "Deleted queue mial.\n"
    assert json.loads(run("other", "--format", "json")) == {"deleted": ["other"]}


def test_the_command_is_refused_with_the_reason_and_exit_code_1():
    enqueue_one(queue="mial")

    with pytest.raises(CommandError, match="queue 'mial' was not deleted: it has jobs") as refused:
        run("mial")

    assert refused.value.returncode == 1

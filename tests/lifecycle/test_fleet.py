"""declare, beat, probe, notify, unknown: the verbs that change no job."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection

from pgbroker.lifecycle.beat import WorkerState, beat
from pgbroker.lifecycle.declare import DeclaredType, declare_queues, declare_types, list_queues
from pgbroker.lifecycle.notify import notify
from pgbroker.lifecycle.probe import probe
from pgbroker.lifecycle.release import release
from pgbroker.lifecycle.unknown import unknown_since
from pgbroker.models import JobType, Queue, QueuePriority, Worker
from pgbroker.tenancy import tenant_context
from tests.support.jobs import LEASE, age, claim_one, enqueue_one, guards_off, queue_id
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db


# ------------------------------------------------------------------ declare


def test_queues_are_made_once_with_the_priority_that_jobs_have_by_default():
    first = declare_queues(["b", "a", "b"])
    again = declare_queues(["a", "b"])

    assert sorted(queue.name for queue in first) == ["a", "b"]
    assert sorted(first) == sorted(again)
    for queue in first:
        assert QueuePriority.objects.filter(queue=queue.id, priority=0).count() == 1
    assert {queue.name for queue in list_queues()} >= {"default", "a", "b"}


@pytest.mark.django_db(transaction=True)
def test_a_queue_that_another_session_is_just_making_is_waited_for():
    name = f"fresh-{uuid4().hex[:8]}"
    with second_session() as other:
        other.execute("begin")
        other.execute("insert into pgbroker.queue (name) values (%s)", (name,))
        declaring = InThread(lambda: declare_queues([name])).start()
        wait_until_blocked(declaring, other)
        other.execute("commit")
        (queue,) = declaring.result()

    assert queue.id == Queue.objects.get(name=name).pk


def test_a_type_keeps_its_number_and_takes_on_what_its_code_declares():
    number = declare_types([DeclaredType("tests.t", 1, (), {"priority": 1})])["tests.t"]

    again = declare_types([DeclaredType("tests.t", 2, ("tests.was",), {"priority": 2})])

    stored = JobType.objects.get(name="tests.t")
    assert again == {"tests.t": number}
    assert (stored.pk, stored.version, stored.aliases, stored.defaults) == (
        number,
        2,
        ["tests.was"],
        {"priority": 2},
    )


def test_an_older_release_that_starts_again_takes_nothing_back():
    declare_types([DeclaredType("tests.t", 2, ("tests.was",), {"priority": 2})])

    assert "tests.t" in declare_types([DeclaredType("tests.t", 1, (), {"priority": 1})])

    stored = JobType.objects.get(name="tests.t")
    assert (stored.version, stored.aliases, stored.defaults) == (2, ["tests.was"], {"priority": 2})


def test_a_type_that_says_the_same_again_is_not_written():
    declared = [DeclaredType("tests.t", 1, (), {})]
    declare_types(declared)
    version = "select xmin::text, ctid::text from pgbroker.job_type where name = 'tests.t'"
    with connection.cursor() as cursor:
        cursor.execute(version)
        before = cursor.fetchone()
        declare_types(declared)
        cursor.execute(version)
        assert cursor.fetchone() == before


def test_nothing_to_declare_is_nothing():
    assert declare_types([]) == {}


# ------------------------------------------------------------------ beat


def state(**changes):
    given = {
        "worker_id": uuid4(),
        "name": "w",
        "host": "h",
        "pid": 7,
        "version": "1",
        "queues": ["default"],
        "slots": 4,
    }
    return WorkerState(**{**given, **changes})


def test_the_first_beat_makes_the_row_and_the_next_renew_it():
    first = state()
    beat(first, lease=LEASE)
    made = Worker.objects.get(pk=first.worker_id)
    with connection.cursor() as cursor:
        cursor.execute("update pgbroker.worker set expires_at = expires_at - interval '1 h'")
    beat(first._replace(running=3, held=2), lease=LEASE)

    renewed = Worker.objects.get(pk=first.worker_id)
    assert (made.name, made.pid, made.queues, made.slots) == ("w", 7, ["default"], 4)
    assert (renewed.running, renewed.held, renewed.started_at) == (3, 2, made.started_at)
    assert renewed.expires_at > made.expires_at


def test_a_draining_worker_keeps_the_instant_it_began_and_a_stopped_one_is_not_alive():
    worker = state()
    beat(worker._replace(draining=True), lease=LEASE)
    began = Worker.objects.get(pk=worker.worker_id).draining_at
    beat(worker._replace(draining=True), lease=LEASE)
    beat(worker._replace(draining=True, stopped=True), lease=LEASE)

    last = Worker.objects.get(pk=worker.worker_id)
    assert (last.draining_at, last.stopped_at is not None) == (began, True)
    with connection.cursor() as cursor:
        cursor.execute("select expires_at <= statement_timestamp() from pgbroker.worker")
        assert cursor.fetchone() == (True,)


# ------------------------------------------------------------------ probe


def test_a_probe_tells_what_is_ready_and_when_the_next_job_is_due():
    busy, later, idle = queue_id(), queue_id("later"), queue_id("idle")
    with tenant_context("acme"):
        enqueue_one()
        enqueue_one(queue="later", delay_seconds=100)
        enqueue_one(queue="later", delay_seconds=200)

    prospects = {each.queue_id: each for each in probe([busy, later, idle])}

    assert (prospects[busy].ready, prospects[busy].due_in_seconds) == (True, None)
    assert prospects[later].ready is False
    assert 60 < prospects[later].due_in_seconds <= 100
    assert (prospects[idle].ready, prospects[idle].due_in_seconds) == (False, None)


def test_a_job_that_is_overdue_is_due_in_less_than_no_time():
    job_id = enqueue_one(delay_seconds=10)
    age(job_id, seconds=20)

    (prospect,) = probe([queue_id()])

    assert prospect.due_in_seconds < 0


# ------------------------------------------------------------------ notify, unknown


@pytest.mark.django_db(transaction=True)
def test_a_notification_reaches_a_listener_once_a_queue():
    with second_session() as listener:
        listener.execute("listen pgbroker")
        notify(["default", "other"])
        heard = [each.payload for each in listener.notifies(timeout=5, stop_after=2)]

    assert sorted(heard) == ["default", "other"]


def test_unknown_tells_since_when_and_how_often_a_job_was_put_back_for_its_type():
    with tenant_context("acme"):
        job_id = enqueue_one()
    other = enqueue_one()
    for _ in range(2):
        release([(claim_one(), None)], code="unknown_job_type")
        age(job_id, only=["ready_at"], days=1)
    lease = claim_one()
    release([(lease, timedelta(seconds=1))], code="drain")
    with guards_off(), connection.cursor() as cursor:
        cursor.execute("update pgbroker.execution set completed_at = completed_at - interval '100 s'")

    answers = unknown_since([job_id, other, uuid4()])

    assert set(answers) == {job_id}
    seconds, times = answers[job_id]
    assert times == 2
    assert 100 <= seconds < 160

"""What somebody's open transaction holds keeps no process from starting: it is left, told, and written later."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from pgbroker import db, declared_rows, registry, schedule, telemetry
from pgbroker.conf import project, settings
from pgbroker.ids import new_id
from pgbroker.lifecycle.declare import DeclaredType, declare_types
from pgbroker.models import JobType, Queue
from pgbroker.runtime.declaring import DeclaringNames
from pgbroker.runtime.scheduling import Scheduling
from pgbroker.schedules import operate
from pgbroker.schedules import sync as sync_module
from pgbroker.schedules.declare import declarations
from pgbroker.schedules.sync import Drift, sync, sync_if_newest
from tests.support.handlers import attentive, nothing
from tests.support.jobs import guards_off
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)

SHORT = 0.02


@pytest.fixture(autouse=True)
def fresh(monkeypatch, transactional_db) -> None:
    monkeypatch.setattr(declarations, "_known", {})
    monkeypatch.setattr(sync_module, "BY_HAND", SHORT)
    registry.synchronise(using="default")


@pytest.fixture
def told() -> Iterator[list[tuple[str, str]]]:
    heard: list[tuple[str, str]] = []
    unsubscribe = telemetry.subscribe(
        lambda event, keys: heard.append((keys["what"], keys["name"])),
        wants={"declaration.held"}.__contains__,
    )
    yield heard
    unsubscribe()


@contextmanager
def holding(statement: str, *values: object) -> Iterator[psycopg.Connection]:
    """Have somebody do that, and keep the transaction open."""
    with second_session() as somebody, somebody.transaction():
        somebody.execute("set local pgbroker.scope = 'all'")
        somebody.execute(statement, values)
        yield somebody


def declare(**crons: str) -> None:
    """Be the code that declares these schedules: name=cron."""
    declarations._known = {}
    for name, cron in crons.items():
        schedule(name, nothing, cron=cron, timezone="UTC")


def stored() -> dict[str, tuple[str, str]]:
    return {each.name: (each.state, each.expression) for each in operate.list_schedules()}


def loop_of() -> Scheduling:
    session = db.Session("default", purpose="schedule")
    return Scheduling(holder=new_id(), name="a", settings=settings(), session=session)


def age_types() -> None:
    """Let it be long ago that any type was declared: then each row is to be written."""
    with guards_off(), connection.cursor() as cursor:
        cursor.execute("update pgbroker.job_type set last_seen_at = last_seen_at - interval '2 hours'")


# ------------------------------------------------------------------ schedules


def test_a_process_starts_beside_a_held_row_writes_the_others_and_that_one_later(told):
    declare(held="0 2 * * *", gone="0 2 * * *", other="0 2 * * *")
    sync(using="default")
    declare(held="0 3 * * *", other="0 3 * * *", new="0 3 * * *")
    loop = loop_of()

    with holding("select from pgbroker.schedule where name in ('held', 'gone') for update"):
        loop.declaring.begin()

        assert stored() == {
            "gone": ("active", "0 2 * * *"),
            "held": ("active", "0 2 * * *"),
            "new": ("active", "0 3 * * *"),
            "other": ("active", "0 3 * * *"),
        }
        loop.declaring.speak_at = 0.0
        loop.step()
        # It is told once, however often it is tried, and tried again soon.
        assert told == [("schedule", "gone"), ("schedule", "held")]
        assert loop.declaring.speak_at - time.monotonic() < 10

    loop.declaring.speak_at = 0.0
    loop.step()
    loop.session.drop()
    assert stored()["held"] == ("active", "0 3 * * *")
    assert stored()["gone"] == ("disabled", "0 2 * * *")
    assert loop.declaring.speak_at - time.monotonic() > 10
    assert len(told) == 2


def test_however_many_are_held_the_wait_is_as_long_and_nothing_else_waits():
    declare(**{f"s{number:02}": "0 2 * * *" for number in range(60)})
    sync(using="default")
    declare(**{f"s{number:02}": "0 3 * * *" for number in range(60)}, new="0 3 * * *")

    with holding("select from pgbroker.schedule for no key update"):
        began = time.monotonic()
        done = sync_if_newest(patience=0.3, using="default")
        took = time.monotonic() - began

    assert done.created == ["new"]
    assert done.left == [Drift(f"s{number:02}", "default", "held") for number in range(60)]
    assert 0.3 <= took < 3
    assert sync(using="default").updated == [f"s{number:02}" for number in range(60)]


def test_whoever_holds_it_for_a_moment_is_waited_for(told):
    declare(held="0 2 * * *")
    sync(using="default")
    declare(held="0 3 * * *")

    with second_session() as somebody:
        somebody.execute("begin")
        somebody.execute("select from pgbroker.schedule for update")
        starting = InThread(lambda: sync_if_newest(patience=20, using="default")).start()
        wait_until_blocked(starting, somebody)
        somebody.execute("commit")

    assert starting.result().updated == ["held"]


def test_a_schedule_that_somebody_is_just_making_is_left_and_the_others_are_made():
    declare(being_made="0 2 * * *", other="0 2 * * *")
    with holding(
        "insert into pgbroker.schedule (id, tenant_id, name, expression, time_zone, template) "
        "values (pgbroker.uuid7_1(), 'default', 'being_made', '0 0 * * *', 'UTC', '{\"jobs\": []}')"
    ) as somebody:
        done = sync_if_newest(patience=SHORT, using="default")
        assert (done.created, done.left) == (["other"], [Drift("being_made", "default", "held")])
        raise_away(somebody)

    assert sync(using="default").created == ["being_made"]


def raise_away(somebody: psycopg.Connection) -> None:
    """Undo what somebody did."""
    somebody.execute("delete from pgbroker.schedule where name = 'being_made'")


def test_a_held_row_of_the_project_lets_a_process_start_which_writes_all_later(told, monkeypatch):
    declare(nightly="0 2 * * *")
    sync(using="default")
    declare(nightly="0 3 * * *")
    monkeypatch.setattr("pgbroker.runtime.declaring.AT_START", SHORT)
    monkeypatch.setattr("pgbroker.runtime.declaring.MEANWHILE", SHORT)
    loop = loop_of()

    with holding("select from pgbroker.schedule_declarer for update"):
        loop.declaring.begin()
        assert stored() == {"nightly": ("active", "0 2 * * *")}
        assert told == [("project", project())]

    loop.declaring.speak_at = 0.0
    loop.step()
    loop.session.drop()
    assert stored() == {"nightly": ("active", "0 3 * * *")}


# ------------------------------------------------------------------ job types and queues


def test_a_held_type_keeps_its_row_and_its_id_is_known_and_the_others_are_written(told):
    age_types()
    names = DeclaringNames("default")
    before = {each.name: each.last_seen_at for each in JobType.objects.all()}

    with holding("select from pgbroker.job_type where name = %s for update", nothing.key):
        ids = names.begin()
        names._again_at = 0.0
        names.again_if_due()

        after = {each.name: each.last_seen_at for each in JobType.objects.all()}
        assert after[nothing.key] == before[nothing.key]
        assert after[attentive.key] > before[attentive.key]
        assert ids[nothing.key] == JobType.objects.get(name=nothing.key).pk
        assert told == [("job type", nothing.key)]

    names._again_at = 0.0
    names.again_if_due()
    assert JobType.objects.get(name=nothing.key).last_seen_at > before[nothing.key]
    assert told == [("job type", nothing.key)]


def test_what_nobody_holds_is_not_asked_for_again(django_assert_num_queries):
    names = DeclaringNames("default")
    names.begin()
    names._again_at = 0.0

    with django_assert_num_queries(0):
        names.again_if_due()


def test_a_row_that_was_held_is_not_taken_back_to_an_older_version():
    declare_types([DeclaredType("tests.versioned", 1, (), {})])
    with holding("update pgbroker.job_type set version = 3 where name = 'tests.versioned'"):
        declare_types([DeclaredType("tests.versioned", 2, (), {})])

    declare_types([DeclaredType("tests.versioned", 2, (), {})])

    assert JobType.objects.get(name="tests.versioned").version == 3


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_type_and_a_queue_that_somebody_is_just_making_are_left_until_that_is_over(told, ends):
    with guards_off(), connection.cursor() as cursor:
        cursor.execute("delete from pgbroker.job_type where name = %s", [nothing.key])
        cursor.execute("delete from pgbroker.queue where name = 'handlers'")
    age_types()
    names = DeclaringNames("default", queues=["asked-for"])
    with second_session() as somebody:
        somebody.execute("begin")
        somebody.execute("insert into pgbroker.job_type (name) values (%s)", (nothing.key,))
        somebody.execute("insert into pgbroker.queue (name) values ('handlers')")

        ids = names.begin()

        assert nothing.key not in ids
        assert attentive.key in ids
        assert told == [("job type", nothing.key), ("queue", "handlers")]
        assert Queue.objects.filter(name="asked-for").exists()
        somebody.execute(ends)
    names._again_at = 0.0
    names.again_if_due()

    assert JobType.objects.filter(name=nothing.key).count() == 1
    assert Queue.objects.filter(name="handlers").count() == 1


# ------------------------------------------------------------------ by hand, and after a migration


def test_a_synchronisation_by_hand_names_what_is_held_and_ends_with_1():
    declare(held="0 2 * * *", other="0 2 * * *")
    sync(using="default")
    declare(held="0 3 * * *", other="0 3 * * *")
    said = StringIO()

    with (
        holding("select from pgbroker.schedule where name = 'held' for update"),
        pytest.raises(CommandError) as refused,
    ):
        call_command("broker_schedules", "sync", "--format", "json", stdout=said)

    assert "not written: schedule 'held'." in str(refused.value)
    assert refused.value.returncode == 1
    document = json.loads(said.getvalue())
    assert document["updated"] == ["other"]
    assert [(each["name"], each["what"]) for each in document["drift"]] == [("held", "held")]


def test_a_migration_that_comes_to_an_end_waits_for_nobody_who_holds_a_type(told):
    age_types()
    with holding("select from pgbroker.job_type where name = %s for update", nothing.key):
        declared_rows.declare_after_migrate(using="default")

    assert told == [("job type", nothing.key)]

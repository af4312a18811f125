"""Projects that share a database, and releases that run beside each other, leave each other's schedules alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection

from pgbroker import conf, db, schedule, telemetry
from pgbroker.conf import settings
from pgbroker.ids import new_id
from pgbroker.lifecycle.announce import announce
from pgbroker.models import ScheduleDeclarer
from pgbroker.registry import synchronise
from pgbroker.runtime.scheduling import Scheduling
from pgbroker.schedules import operate
from pgbroker.schedules.declare import declarations
from pgbroker.schedules.sync import QUIET, Drift, drift, drift_of, sync, sync_if_newest
from tests.support.handlers import nothing
from tests.support.jobs import guards_off
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh(monkeypatch, db) -> None:
    monkeypatch.setattr(declarations, "_known", {})
    synchronise(using="default")


@pytest.fixture
def told() -> Iterator[list[str]]:
    heard: list[str] = []
    unsubscribe = telemetry.subscribe(
        lambda event, keys: heard.append(event), wants=lambda event: event.startswith("schedule.")
    )
    yield heard
    unsubscribe()


@pytest.fixture
def of_project(settings):
    """Be the code of that project, with those schedules: name=cron."""

    @contextmanager
    def be(project: str | None, **crons: str) -> Iterator[None]:
        settings.PGBROKER = {**settings.PGBROKER, "PROJECT": project}
        declarations._known = {}
        for name, cron in crons.items():
            schedule(name, nothing, cron=cron, timezone="UTC")
        yield

    return be


def say(of_project, project: str | None, **crons: str):
    """Start a process of that code."""
    with of_project(project, **crons):
        return sync_if_newest(using="default")


def stored() -> dict[str, tuple[str, str]]:
    return {each.name: (each.state, each.expression) for each in operate.list_schedules()}


def unseen(**ago: float) -> None:
    """Let the newest code of every project be unseen for so long."""
    with guards_off(), connection.cursor() as cursor:
        cursor.execute(
            "update pgbroker.schedule_declarer set seen_at = seen_at - %s::interval", [timedelta(**ago)]
        )


OLD = {"nightly": "0 2 * * *", "dropped": "0 3 * * *"}
NEW = {"nightly": "0 4 * * *", "added": "0 5 * * *"}
AS_NEW_SAYS = {
    "added": ("active", "0 5 * * *"),
    "dropped": ("disabled", "0 3 * * *"),
    "nightly": ("active", "0 4 * * *"),
}
AS_OLD_SAYS = {"dropped": ("active", "0 3 * * *"), "nightly": ("active", "0 2 * * *")}


# ------------------------------------------------------------------ two projects


def test_projects_that_share_a_database_disable_nothing_of_each_other(of_project):
    for _ in range(2):
        say(of_project, "shop", orders="0 2 * * *")
        say(of_project, "warehouse", stock="0 3 * * *")

    assert stored() == {"orders": ("active", "0 2 * * *"), "stock": ("active", "0 3 * * *")}
    assert operate.get_schedule("stock").declared_by == "warehouse"
    with of_project("shop"):
        assert [(each.name, each.what) for each in drift(using="default")] == [("orders", "gone")]
        assert set(drift_of([operate.get_schedule("stock")], using="default")) == set()


def test_a_name_that_another_project_declared_is_taken(of_project):
    say(of_project, "shop", nightly="0 2 * * *")

    with of_project("warehouse", nightly="0 3 * * *"):
        done = sync(using="default")

    assert done.left == [Drift("nightly", "default", "taken")]
    assert stored() == {"nightly": ("active", "0 2 * * *")}


def test_a_project_is_called_as_the_package_of_its_settings_unless_it_has_a_name(of_project):
    with of_project(None):
        assert conf.project() == "testproject"
    with of_project("shop"):
        assert conf.project() == "shop"


# ------------------------------------------------------------------ two releases


def test_old_and_new_code_that_start_in_turn_do_not_undo_each_other(of_project, told):
    say(of_project, "shop", **OLD)
    assert stored() == AS_OLD_SAYS
    say(of_project, "shop", **NEW)
    revisions = {each.name: each.revision for each in operate.list_schedules()}
    told.clear()

    for _ in range(3):
        assert say(of_project, "shop", **OLD) is None
        assert say(of_project, "shop", **NEW) == ([], [], [], [])

    assert stored() == {**AS_NEW_SAYS}
    assert {each.name: each.revision for each in operate.list_schedules()} == revisions
    assert told == ["schedule.superseded"] * 3


def test_a_release_that_was_gone_back_to_has_the_word_once_the_newer_is_no_longer_seen(of_project):
    say(of_project, "shop", **OLD)
    say(of_project, "shop", **NEW)
    unseen(seconds=QUIET.total_seconds() - 5)
    assert say(of_project, "shop", **OLD) is None

    unseen(seconds=10)
    done = say(of_project, "shop", **OLD)

    assert done is not None
    assert done.disabled == ["added"]
    assert stored() == {**AS_OLD_SAYS, "added": ("disabled", "0 5 * * *")}
    # And now the other one is the one of before.
    assert say(of_project, "shop", **NEW) is None


@pytest.mark.django_db(transaction=True)
def test_a_running_process_of_the_newest_code_keeps_the_word(of_project):
    say(of_project, "shop", **OLD)
    say(of_project, "shop", **NEW)
    unseen(minutes=30)
    with of_project("shop", **NEW):
        loop = loop_of()
        loop.declaring.speak_at = 0.0
        loop.declaring.speak_if_due()
        loop.session.drop()

    assert say(of_project, "shop", **OLD) is None
    assert stored() == AS_NEW_SAYS


@pytest.mark.django_db(transaction=True)
def test_a_running_process_of_older_code_takes_over_when_the_newest_is_gone(of_project):
    say(of_project, "shop", **OLD)
    say(of_project, "shop", **NEW)
    with of_project("shop", **OLD):
        loop = loop_of()
        loop.declaring.speak_at = 0.0
        loop.step()
        assert stored() == AS_NEW_SAYS
        unseen(minutes=30)
        loop.step()
        assert stored() == AS_NEW_SAYS, "it is asked now and then"
        loop.declaring.speak_at = 0.0
        loop.step()
        loop.session.drop()

    assert stored() == {**AS_OLD_SAYS, "added": ("disabled", "0 5 * * *")}


@pytest.mark.django_db(transaction=True)
def test_a_row_that_somebody_holds_is_written_later_and_keeps_nobody_waiting(of_project):
    say(of_project, "shop", **OLD)
    say(of_project, "shop", **NEW)
    unseen(minutes=30)
    with of_project("shop", **OLD):
        loop = loop_of()
        with second_session() as somebody, somebody.transaction():
            somebody.execute("select from pgbroker.schedule for update")
            loop.declaring.speak_at = 0.0
            loop.step()
            assert stored() == AS_NEW_SAYS
        loop.declaring.speak_at = 0.0
        loop.step()
        loop.session.drop()

    assert stored() == {**AS_OLD_SAYS, "added": ("disabled", "0 5 * * *")}


def test_whoever_synchronises_by_hand_has_the_word(of_project):
    say(of_project, "shop", **OLD)
    say(of_project, "shop", **NEW)

    with of_project("shop", **OLD):
        assert sync(using="default").updated == ["dropped", "nightly"]

    assert say(of_project, "shop", **NEW) is None


def test_of_many_releases_a_number_is_remembered():
    for number in range(200):
        assert announce("shop", f"release {number}", quiet=QUIET) is True

    row = ScheduleDeclarer.objects.get()
    assert row.digest == "release 199"
    assert row.former[-1] == "release 198"
    assert 40 <= len(row.former) <= 50
    assert announce("shop", "release 198", quiet=QUIET) is None
    assert announce("shop", "release 199", quiet=QUIET) is False
    assert announce("shop", "release 198", quiet=QUIET, insist=True) is True
    assert ScheduleDeclarer.objects.get().former.count("release 198") == 0


@pytest.mark.django_db(transaction=True)
def test_two_that_write_for_one_project_do_so_in_turn(of_project):
    say(of_project, "shop", **OLD)
    with second_session() as newer, newer.transaction():
        newer.execute(
            "update pgbroker.schedule_declarer set digest = 'newer', former = array[digest], "
            "seen_at = statement_timestamp()"
        )
        starting = InThread(lambda: say(of_project, "shop", **OLD))
        starting.start()
        wait_until_blocked(starting, newer)

    assert starting.result() is None


def loop_of() -> Scheduling:
    session = db.Session("default", purpose="schedule")
    return Scheduling(holder=new_id(), name="a", settings=settings(), session=session)

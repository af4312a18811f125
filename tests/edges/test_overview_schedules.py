"""Schedules in trouble: which are told, of whom, and what broker_status says to do."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import call_command

from pgbroker import overview, sql, tenant_context
from pgbroker.models import Schedule
from pgbroker.overview import Overview, TroubledSchedule
from pgbroker.policy.misfire import GRACE
from pgbroker.runtime.scheduling import SCHEDULER
from pgbroker.schedules import operate
from pgbroker.tenancy import scope_all
from tests.support.leaders import ADA, ask
from tests.support.schedules import entry, make, now, row, set_row, tick_all

pytestmark = pytest.mark.django_db


def look(tenant: str | None = None) -> Overview:
    if tenant is None:
        with scope_all():
            return overview.look(tenant=None, minutes=5, using="default")
    with tenant_context(tenant):
        return overview.look(tenant=tenant, minutes=5, using="default")


def told(tenant: str | None = None) -> list[tuple[str, str]]:
    return [(each.name, each.trouble) for each in look(tenant).troubled_schedules]


def overdue(name: str, *, minutes: float = 5) -> Schedule:
    late = now() - timedelta(minutes=minutes)
    return make(name, watermark=late - timedelta(seconds=1), next_run_at=late)


def failing(name: str) -> Schedule:
    made = make(name, jobs=[entry(queue="nowhere")])
    tick_all()
    return made


def unreadable(name: str) -> Schedule:
    made = make(name, expression="never at all")
    tick_all()
    assert not row(made).enabled
    return made


def test_a_tick_that_is_late_an_error_and_one_that_cannot_be_read_are_told() -> None:
    failing("fails")
    unreadable("odd")
    overdue("late", minutes=5)
    overdue("later", minutes=9)
    make("fine", due=False)

    found = {each.name: each for each in look().troubled_schedules}

    assert list(found) == ["later", "late", "fails", "odd"]
    assert [each.trouble for each in found.values()] == ["overdue", "overdue", "failing", "disabled"]
    assert found["later"].seconds is not None
    assert 540 <= found["later"].seconds < 600
    assert found["fails"][2:3] + found["fails"][4:] == ("failing", 1, "unknown_queue")
    assert found["odd"].seconds is None
    assert found["odd"].error.startswith("[invalid_")


def test_what_a_person_has_stopped_and_what_is_due_by_now_is_no_trouble() -> None:
    failing("paused")
    operate.pause("paused")
    failing("disabled")
    operate.disable("disabled", reason="[OPS-12] for maintenance")
    moment = now() - GRACE / 2
    make("just due", watermark=moment - timedelta(seconds=1), next_run_at=moment)

    assert told() == []


def test_one_that_fails_and_is_late_is_told_once() -> None:
    set_row(overdue("both"), failure_count=3, failed_at=now(), error_code="quota_exceeded")

    (found,) = look().troubled_schedules

    assert (found.trouble, found.times, found.error) == ("overdue", 3, "quota_exceeded")


def test_a_tenant_is_told_of_its_own() -> None:
    with tenant_context("acme"):
        overdue("theirs", minutes=9)
    overdue("ours")

    assert told("default") == [("ours", "overdue")]
    assert told("acme") == [("theirs", "overdue")]
    assert told() == [("theirs", "overdue"), ("ours", "overdue")]
    assert look("acme").ticks_come is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", [overdue, failing, unreadable])
def test_a_bound_counts_what_the_tenant_has_and_not_what_others_have_before_it(
    kind: Any, superuser: psycopg.Connection
) -> None:
    """A superuser sees the rows of all: no policy has narrowed them before the bound does."""
    for tenant in ("acme", "default"):
        with tenant_context(tenant):
            kind(f"of-{tenant}")

    asked = {"tenant": "default", "grace": GRACE, "bound": 1}
    found = superuser.execute(sql.load("schedule_troubles").text, asked).fetchall()

    assert [TroubledSchedule._make(each).name for each in found] == ["of-default"]


def test_there_is_something_to_come_unless_all_stand_still() -> None:
    assert look().ticks_come is False
    make("nightly", due=False)
    assert look().ticks_come is True
    operate.pause("nightly")
    assert look().ticks_come is False
    operate.pause("nightly", until=timedelta(hours=1))
    assert look().ticks_come is True


def status(*typed: str) -> str:
    said = StringIO()
    call_command("broker_status", *typed, stdout=said)
    return said.getvalue()


def test_the_status_tells_them_with_their_cures_and_who_the_scheduler_is() -> None:
    overdue("late one")
    missing = json.loads(status("--format", "json"))

    assert (missing["scheduler"], missing["lacks_scheduler"]) == (None, True)
    assert [each["cure"] for each in missing["troubled_schedules"]] == ["broker_scheduler"]
    assert "scheduler: none runs" in status()
    assert "scheduler: none runs" in status("--tenant", "default")

    ask(ADA, duty=SCHEDULER)
    led = json.loads(status("--format", "json"))

    assert (led["scheduler"], led["lacks_scheduler"]) == ("candidate a1", False)
    cure = "broker_schedules show 'late one' --tenant default"
    assert [each["cure"] for each in led["troubled_schedules"]] == [cure]
    assert cure in status()
    assert "scheduler: candidate a1" in status()
    call_command(*shlex.split(cure), stdout=StringIO())
    tick_all()
    assert json.loads(status("--format", "json"))["troubled_schedules"] == []

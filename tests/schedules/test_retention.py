"""What became of ticks is let go of when it is old, but for what lives, and nothing is created twice for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest
from django.db import connection

from pgbroker.conf import settings
from pgbroker.db import Session
from pgbroker.errors import InvalidOption
from pgbroker.lifecycle.trim_schedule_runs import Trimmed, trim_schedule_runs
from pgbroker.models import Schedule, ScheduleRun
from pgbroker.runtime import upkeep as upkeeps
from pgbroker.runtime.upkeep import Upkeep, limits
from pgbroker.schedules import operate
from pgbroker.schedules.remove import delete
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import claim_one, completed, guards_off, settle_one
from tests.support.leaders import ADA
from tests.support.schedules import (
    EVERY_MINUTE,
    entry,
    jobs,
    make,
    minute,
    row,
    runs,
    set_row,
    stopped,
    tick_all,
)
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db

KEPT = timedelta(days=30)


def ran(name: str = "minutely", minutes: int = 5, **changes) -> Schedule:
    """Make a schedule whose last minutes were created, and whose jobs are over."""
    made = make(name, expression=EVERY_MINUTE, misfire="catch_up", **changes)
    stopped(made, minutes=minutes)
    tick_all()
    set_row(made, next_run_at=minute(-60))
    return made


def over() -> None:
    """Bring all jobs to an end."""
    with guards_off(), connection.cursor() as cursor:
        cursor.execute("set local pgbroker.scope = 'all'")
        cursor.execute("update pgbroker.job set status = 10, finished_at = statement_timestamp()")


def aged(*which: ScheduleRun, **ago: float) -> None:
    """Let runs be so much older."""
    with scope_all(), guards_off():
        for each in which:
            ScheduleRun.objects.filter(schedule_id=each.schedule_id, scheduled_for=each.scheduled_for).update(
                created_at=each.created_at - timedelta(**ago)
            )


def instants(schedule: Schedule) -> list[datetime]:
    return [each.scheduled_for for each in runs(schedule)]


def trim(limit: int = 100, **options) -> Trimmed:
    return trim_schedule_runs(age=KEPT, limit=limit, **options)


def test_what_is_old_goes_and_the_rest_stays():
    made = ran()
    over()
    found = runs(made)
    aged(*found[:3], days=31)

    assert trim() == (3, 3)

    assert instants(made) == [each.scheduled_for for each in found[3:]]
    assert row(made).forgotten_until == found[2].scheduled_for
    assert trim() == (0, 0)


def test_a_page_takes_the_oldest_of_all_tenants_and_no_more_than_its_limit():
    with tenant_context("acme"):
        first = ran("first")
    second = ran("second")
    over()
    aged(*runs(first), days=90)
    aged(*runs(second), days=60)
    count = len(runs(first))

    assert trim(limit=count - 1) == (count - 1, count - 1)

    assert len(runs(first)) == 1
    assert row(second).forgotten_until is None


def test_what_lives_stays_and_its_schedule_knows_of_it():
    made = make(overlap="skip")
    tick_all()
    aged(*runs(made), days=400)

    assert trim() == (1, 0)
    set_row(made, watermark=minute(1), next_run_at=minute(), expression=EVERY_MINUTE)
    settle_one(completed(claim_one()))
    assert trim() == (1, 1)

    assert runs(made) == []


def test_a_run_group_that_lives_stays():
    made = make(jobs=[entry(name="a"), entry(name="b", depends_on=["a"])])
    tick_all()
    aged(*runs(made), days=400)

    assert trim() == (1, 0)
    with guards_off(), connection.cursor() as cursor:
        cursor.execute("update pgbroker.run_group set state = 10, finished_at = statement_timestamp()")
    assert trim() == (1, 1)


def test_a_tick_that_waits_for_its_turn_stays():
    made = make(overlap="buffer_one")
    tick_all()
    set_row(made, watermark=minute() + timedelta(seconds=1), next_run_at=minute() + timedelta(seconds=2))
    ScheduleRun.objects.create(
        schedule_id=made.pk,
        scheduled_for=minute() + timedelta(seconds=2),
        tenant_id="default",
        state="buffered",
    )
    set_row(made, buffered_for=minute() + timedelta(seconds=2))
    over()
    aged(*runs(made), days=400)

    assert trim() == (2, 1)

    assert [each.state for each in runs(made)] == ["buffered"]


@pytest.mark.django_db(transaction=True)
def test_a_schedule_that_somebody_holds_is_left_for_later_and_nobody_waits(upkeep_of):
    held, other = ran("held"), ran("other")
    over()
    aged(*runs(held), days=90)
    aged(*runs(other), days=60)
    count = len(runs(held))
    with second_session() as holder, holder.transaction():
        holder.execute("set local pgbroker.scope = 'all'")
        holder.execute("select from pgbroker.schedule where id = %s for no key update", [held.pk])
        # Pages as large as what is held: it goes on behind it.
        upkeep = upkeep_of(limit=count, KEEP_SCHEDULE_RUNS_SECONDS=KEPT.total_seconds())
        work_off(upkeep)
        assert (len(runs(held)), len(runs(other))) == (count, 0)
    upkeep.turns[0].next_at = 0.0
    work_off(upkeep)

    assert runs(held) == []


@pytest.mark.django_db(transaction=True)
def test_the_upkeep_lets_go_of_what_is_older_than_the_setting_page_by_page(upkeep_of):
    made = ran(minutes=30)
    over()
    found = runs(made)
    aged(*found[:20], seconds=2 * 3600)

    forever = upkeep_of(KEEP_SCHEDULE_RUNS_SECONDS=None)
    work_off(forever)
    assert len(runs(made)) == len(found)
    short = upkeep_of(limit=7, KEEP_SCHEDULE_RUNS_SECONDS=3600.0)
    work_off(short)

    assert instants(made) == [each.scheduled_for for each in found[20:]]


def test_what_a_deleted_schedule_left_goes_by_its_age():
    made = ran()
    over()
    delete(made.pk)
    aged(*runs(made)[:2], days=31)

    assert trim() == (2, 2)

    assert len(runs(made)) > 0


def test_a_backfill_does_not_create_what_is_no_longer_known_to_have_been_created():
    made = ran(minutes=10)
    over()
    found = runs(made)
    aged(*found[:4], days=31)
    trim()
    forgotten = found[3].scheduled_for

    with pytest.raises(InvalidOption, match="no longer known") as caught:
        operate.backfill(made.pk, start=found[1].scheduled_for, end=found[6].scheduled_for, dry_run=True)
    assert caught.value.field == "start"
    assert forgotten.isoformat() in str(caught.value)

    after = forgotten + timedelta(seconds=1)
    assert operate.backfill(made.pk, start=after, end=found[6].scheduled_for, dry_run=False).create == []


@pytest.mark.django_db(transaction=True)
def test_a_backfill_does_not_create_what_was_let_go_of_while_it_looked():
    made = ran(minutes=10)
    over()
    found = runs(made)
    instants_before = [each.scheduled_for for each in found]
    with scope_all(), guards_off():
        ScheduleRun.objects.filter(scheduled_for__lte=instants_before[3]).delete()
    with second_session() as trimming, trimming.transaction():
        trimming.execute("set local pgbroker.scope = 'all'")
        trimming.execute(
            "update pgbroker.schedule set forgotten_until = %s where id = %s", [instants_before[3], made.pk]
        )
        filling = InThread(
            lambda: operate.backfill(made.pk, start=instants_before[0], end=instants_before[9], dry_run=False)
        )
        filling.start()
        wait_until_blocked(filling, trimming)

    with pytest.raises(InvalidOption, match="no longer known"):
        filling.result()
    assert len(jobs()) == len(found)


@pytest.fixture
def upkeep_of(monkeypatch) -> Iterator[Callable[..., Upkeep]]:
    """Make upkeeps that have but this duty."""
    session = Session("default", purpose="upkeep")

    def make_one(limit: int = upkeeps.PAGE, **changes) -> Upkeep:
        monkeypatch.setattr(upkeeps, "PAGE", limit)
        chosen = dataclasses.replace(settings(), **changes)
        session.limits = tuple(limits(chosen).items())
        made = Upkeep(holder=ADA, name="ada", settings=chosen, session=session)
        made.turns = [each for each in made.turns if each.duty.name == "trim_schedule_runs"]
        assert len(made.turns) == 1
        return made

    yield make_one
    session.drop()


def work_off(upkeep: Upkeep) -> None:
    for _ in range(20):
        upkeep.step()
        if upkeep.turns[0].next_at > 0:
            return
    raise AssertionError("it does not come to an end")

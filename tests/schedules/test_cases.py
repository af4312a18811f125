"""What has gone wrong in other schedulers, as small cases that meet several parts of this one."""

from __future__ import annotations

import gc
import time
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse

from pgbroker import schedule
from pgbroker.errors import InvalidSchedule
from pgbroker.ids import new_id
from pgbroker.lifecycle.pause import Target, pause
from pgbroker.lifecycle.take_due import Due
from pgbroker.lifecycle.trim_schedule_runs import trim_schedule_runs
from pgbroker.metrics.depths import Depths
from pgbroker.models import Job, Schedule, ScheduleRun
from pgbroker.policy.cron import parse, zones
from pgbroker.runtime.scheduler import run_once
from pgbroker.schedules import operate
from pgbroker.schedules.decide import decide
from pgbroker.schedules.declare import declarations
from pgbroker.schedules.tick import tick
from pgbroker.states import Status
from pgbroker.tenancy import scope_all
from tests.edges.test_admin_schedules import ADD, filled
from tests.support.handlers import nothing
from tests.support.jobs import claim_many, guards_off, queue_id, type_id
from tests.support.schedules import (
    EVERY_MINUTE,
    jobs,
    make,
    minute,
    row,
    runs,
    set_row,
    states,
    stopped,
    tick_all,
)
from tests.support.sessions import InThread

pytestmark = pytest.mark.django_db


@pytest.fixture
def root(db: None) -> Client:
    queue_id(), type_id()
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.mark.django_db(transaction=True)
def test_b078_pages_commands_and_metrics_postpone_nothing(root):
    overdue = make("overdue", expression="0 2 * * *")
    set_row(overdue, watermark=minute() - timedelta(days=2), next_run_at=minute() - timedelta(hours=30))
    before = {name: value for name, value in vars(row(overdue)).items() if name != "_state"}
    page = reverse("admin:pgbroker_schedule_change", args=[overdue.pk])

    for _ in range(20):
        assert root.get(reverse("admin:pgbroker_schedule_changelist")).status_code == 200
        assert root.get(page).status_code == 200
    call_command("broker_schedules", "list", stdout=StringIO())
    call_command("broker_schedules", "show", "overdue", stdout=StringIO())
    call_command("broker_schedules", "next", "overdue", stdout=StringIO())
    list(Depths(lambda: ["default"]).collect())

    assert {name: value for name, value in vars(row(overdue)).items() if name != "_state"} == before
    tick_all()
    assert states(overdue) == ["missed", "created"]


@pytest.mark.parametrize(
    ("zone", "days"),
    [
        ("America/New_York", ((3, 10), (11, 3))),
        ("Australia/Lord_Howe", ((4, 7), (10, 6))),
        ("Europe/Berlin", ((3, 31), (10, 27))),
    ],
)
@pytest.mark.parametrize("expression", ["*/5 * * * *", "30 2 * * *", "0 * * * *", "15 2,3 * * *"])
@pytest.mark.parametrize(
    ("nonexistent", "ambiguous"), [("auto", "auto"), ("skip", "once"), ("next_valid", "twice")]
)
def test_b086_a_scheduler_goes_through_a_change_of_the_clock_without_turning_on_the_spot(
    zone, days, expression, nonexistent, ambiguous
):
    """Every look at a schedule that is due moves it on, and it fires again after the change."""
    for month, day in days:
        change = datetime(2024, month, day, tzinfo=UTC)
        begin, end = change - timedelta(days=1), change + timedelta(days=2)
        due = due_from(begin, zone, expression, nonexistent, ambiguous)
        looks, created = 0, []
        while due.next_run_at < end:
            # A moment after the tick, as a loop comes that slept until then.
            now = due.next_run_at + timedelta(milliseconds=20)
            decision = decide(due._replace(now=now), limit=100)
            assert decision.next_run_at > now
            created += [each for each, _ in decision.create]
            due = due._replace(next_run_at=decision.next_run_at, watermark=decision.watermark)
            looks += 1

        cron = parse(expression, zone, nonexistent=nonexistent, ambiguous=ambiguous)
        assert created == [each.instant for each in cron.between(begin, created[-1])]
        assert looks == len(created)
        assert (end - created[-1]) < timedelta(days=1, hours=1)


def due_from(begin: datetime, zone: str, expression: str, nonexistent: str, ambiguous: str) -> Due:
    cron = parse(expression, zone, nonexistent=nonexistent, ambiguous=ambiguous)
    values = {
        **dict.fromkeys(Due._fields),
        "id": new_id(), "tenant_id": "default", "name": "s", "expression": expression, "time_zone": zone,
        "nonexistent": nonexistent, "ambiguous": ambiguous, "misfire": "run_once", "misfire_count": 1,
        "misfire_window_seconds": 60.0, "overlap": "allow", "jitter_seconds": 0.0, "enabled": True,
        "watermark": begin, "next_run_at": cron.first_after(begin).instant,
        "zone_rules": zones.load(zone).fingerprint, "revision": 0, "live": 0, "in_turn": True,
    }  # fmt: skip
    return Due(**values)


def test_b096_code_that_asks_for_a_day_that_never_comes_is_refused_and_mondays_of_february_are_not(
    monkeypatch,
):
    monkeypatch.setattr(declarations, "_known", {})

    with pytest.raises(InvalidSchedule, match="cron asks for days that none of these months has"):
        schedule("never", nothing, cron="0 0 31 2 *", timezone="UTC")
    schedule("mondays", nothing, cron="0 0 30 2 1", timezone="UTC")

    assert [each.name for each in declarations.all()] == ["mondays"]


@pytest.mark.parametrize(
    "hostile",
    [",".join(["0-59"] * 8_000) + " * * * *", "0-99999999 * * * *", "*" * 1_000_000],
    ids=["groups", "range", "long"],
)
def test_b100_a_hostile_expression_costs_the_form_of_the_admin_little(root, hostile):
    root.post(ADD, filled(expression="* * *"))  # whatever is loaded at the first time
    # It goes through all that a process of thousands of tests has ever made.
    gc.disable()
    try:
        began = time.thread_time()
        response = root.post(ADD, filled(expression=hostile))
        took = time.thread_time() - began
    finally:
        gc.enable()

    assert took < 0.4
    assert list(response.context["adminform"].form.errors) == ["expression"]
    assert operate.list_schedules() == []


def test_b035_what_fires_into_a_paused_queue_waits_there_and_is_no_misfire():
    made = make(expression=EVERY_MINUTE, misfire="catch_up")
    stopped(made, minutes=3)
    pause(Target(queue="default"))

    tick()

    assert set(states(made)) == {"created"}
    assert claim_many(10) == []
    assert len(jobs()) == len(runs(made))


@pytest.mark.django_db(transaction=True)
def test_b174_three_that_trim_at_once_neither_deadlock_nor_leave_anything():
    made = [make(f"s{place}", expression=EVERY_MINUTE, misfire="catch_up") for place in range(4)]
    for each in made:
        stopped(each, minutes=60)
    tick_all()
    finish_and_age(days=31)

    def work() -> int:
        deleted = 0
        while (page := trim_schedule_runs(age=timedelta(days=30), limit=25)).seen:
            deleted += page.deleted
        return deleted

    three = [InThread(work) for _ in range(3)]
    for each in three:
        each.start()

    assert sum(each.result() for each in three) >= 4 * 60
    assert sum(len(runs(each)) for each in made) == 0
    assert Schedule.objects.count() == 4


def finish_and_age(*, days: int) -> None:
    """Bring all jobs to an end, and let what became of ticks be so old."""
    with scope_all(), guards_off():
        Job.objects.update(status=Status.COMPLETED, finished_at=Now())
        ScheduleRun.objects.update(created_at=Now() - timedelta(days=days))


@pytest.mark.django_db(transaction=True)
def test_once_from_cron_goes_on_without_the_row_that_breaks_its_page(superuser):
    """Something that no rule foresees: here a trigger of the project that raises."""
    bad, good, other = make("bad"), make("good"), make("other")
    superuser.execute(
        "create function public.no_run() returns trigger language plpgsql as "
        "$$ begin raise exception 'not this one' using errcode = 'data_exception'; end $$"
    )
    superuser.execute(
        "create trigger no_run before insert on pgbroker.schedule_run for each row "
        f"when (new.schedule_id = '{bad.id}') execute function public.no_run()"
    )
    try:
        assert run_once("default") == 2
        assert (states(good), states(other), states(bad)) == (["created"], ["created"], [])
    finally:
        superuser.execute("drop function public.no_run() cascade")

    assert run_once("default") == 1


@pytest.mark.django_db(transaction=True)
def test_b156_several_who_run_it_now_at_once_have_a_run_each():
    made = make(due=False)
    four = [InThread(lambda: operate.run_now("nightly")) for _ in range(4)]
    for each in four:
        each.start()

    found = [each.result() for each in four]

    assert [each.state for each in found] == ["created"] * 4
    assert len({each.scheduled_for for each in found}) == len({each.job_id for each in found}) == 4
    assert [each.kind for each in runs(made)] == ["run_now"] * 4

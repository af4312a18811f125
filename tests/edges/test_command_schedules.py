"""broker_schedules: what an operator types and what comes back."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from typing import Any

import pytest
from django.core.management import load_command_class

from pgbroker import schedule
from pgbroker.errors import InvalidOption
from pgbroker.models import Job, RunGroup
from pgbroker.registry import synchronise
from pgbroker.schedules import operate
from pgbroker.schedules.declare import declarations
from pgbroker.schedules.operate import Definition
from pgbroker.schedules.shown import read_moment
from pgbroker.tenancy import scope_all, tenant_context
from tests.support import commands
from tests.support.handlers import nothing
from tests.support.jobs import queue_id, type_id
from tests.support.schedules import entry, jobs, make, minute, now, row, runs, set_row, states, tick_all

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh(monkeypatch, db) -> None:
    monkeypatch.setattr(declarations, "_known", {})
    synchronise(using="default")
    queue_id(), type_id()


run = partial(commands.run, "broker_schedules")
read = partial(commands.read, "broker_schedules")
refused = partial(commands.refused, "broker_schedules")


def save(name: str = "nightly", **changes: Any) -> operate.ScheduleLine:
    said = {"expression": "30 2 * * *", "time_zone": "Europe/Berlin", "jobs": [entry()], **changes}
    return operate.save(Definition(name=name, **said)).schedule


def of_tenant(tenant: str, name: str = "nightly") -> operate.ScheduleLine:
    with tenant_context(tenant):
        return save(name)


# ------------------------------------------------------------------ list


def test_schedules_of_all_tenants_are_listed_by_name_with_what_comes_there_and_in_utc():
    save("second")
    of_tenant("acme", "first")

    listed = read("list")["schedules"]
    lines = run("list").splitlines()

    assert [(each["name"], each["tenant_id"], each["state"]) for each in listed] == [
        ("first", "acme", "active"),
        ("second", "default", "active"),
    ]
    coming = datetime.fromisoformat(listed[0]["next_run_at"])
    assert listed[0]["next_run_local"][11:16] == "02:30"
    assert f"{coming.astimezone(UTC):%Y-%m-%d %H:%M:%S}" in lines[1]
    assert listed[0]["next_run_local"] in lines[1]
    assert "02:30:00 +0" in lines[2]


def test_a_tick_that_should_have_come_is_told_in_the_list():
    late, fine = save("late"), save("fine")
    for line, seconds in ((late, 300), (fine, 5)):
        due = now() - timedelta(seconds=seconds)
        set_row(line.id, next_run_at=due, watermark=due - timedelta(hours=1))

    lines = {line.split()[0]: line for line in run("list").splitlines()[1:3]}
    assert " overdue " in lines["late"]
    assert " active " in lines["fine"]


def test_a_tenant_narrows_the_list_and_what_can_be_done():
    save("ours")
    theirs = of_tenant("acme", "theirs")

    assert [each["name"] for each in read("list", "--tenant", "acme")["schedules"]] == ["theirs"]
    assert refused("pause", "theirs", "--tenant", "default").returncode == 1
    assert row(theirs.id).paused_at is None


def test_a_name_of_several_tenants_needs_one_of_them():
    save()
    other = of_tenant("acme")

    error = refused("pause", "nightly")
    run("pause", "nightly", "--tenant", "acme")

    assert "Say which tenant" in str(error)
    assert [row(each).paused_at is None for each in (other.id, operate.get_schedule("nightly").id)] == [
        False,
        True,
    ]


def test_pages_show_every_schedule_once_also_those_of_one_name():
    made = {str(of_tenant(tenant).id) for tenant in ("a", "b", "c", "d", "e")}
    seen, after = [], None

    while True:
        page = read("list", "--limit", 2, *(["--after", after] if after else []))
        seen += [each["id"] for each in page["schedules"]]
        after = page["next"]
        if after is None:
            break

    assert len(seen) == 5
    assert set(seen) == made


def test_a_row_whose_zone_nobody_knows_is_listed_in_utc():
    line = save()
    set_row(line.id, time_zone="Mars/Olympus")

    (listed,) = read("list")["schedules"]

    assert listed["next_run_local"].endswith("+00:00")


def test_text_of_others_cannot_move_the_cursor():
    line = save()
    set_row(line.id, error="bad\x1b[2Jtext\r", error_code="x", failed_at=now(), pause_reason="\x1b[1A")

    shown = run("list") + run("show", "nightly")

    assert "\x1b" not in shown
    assert "\r" not in shown


# ------------------------------------------------------------------ show, next


def test_a_schedule_is_shown_with_what_comes_and_what_became_of_its_ticks():
    schedule = make("nightly", overlap="skip")
    tick_all()

    facts = read("show", "nightly")
    shown = run("show", "nightly")

    (was,) = runs(schedule)
    assert facts["template"]["jobs"][0]["job_type"] == entry()["job_type"]
    assert len(facts["next_ticks"]) == 5
    assert [(each["state"], each["job_id"]) for each in facts["history"]] == [("created", str(was.job_id))]
    assert str(was.job_id) in shown
    assert "overlap" in shown
    assert "skip" in shown
    assert "run group" not in shown


def test_a_schedule_is_shown_with_what_its_run_groups_are_like():
    make("nightly", template={"group": {"tolerate_count": 2}, "jobs": [entry(name="a"), entry(name="b")]})

    shown = run("show", "nightly")

    assert re.search(r"^creates +2 jobs in a run group$", shown, re.M)
    assert re.search(r'^run group +\{"tolerate_count": 2\}$', shown, re.M)


def at(moment: str) -> Any:
    """Let a schedule stand in a pause that ends then: its ticks are shown from there on."""
    line = save()
    set_row(line.id, paused_at=now(), paused_until=datetime.fromisoformat(moment), next_run_at=None)
    return line


@pytest.mark.parametrize(
    ("moment", "place", "local", "utc", "note"),
    [
        ("2031-03-29T12:00Z", 0, "2031-03-30 03:00:00 +02:00", "2031-03-30T01:00", "never shows 02:30"),
        ("2031-03-29T12:00Z", 1, "2031-03-31 02:30:00 +02:00", "2031-03-31T00:30", ""),
        ("2031-10-25T12:00Z", 0, "2031-10-26 02:30:00 +02:00", "2031-10-26T00:30", "the first of two"),
        ("2031-10-25T12:00Z", 1, "2031-10-27 02:30:00 +01:00", "2031-10-27T01:30", "UTC+02:00 to UTC+01:00"),
    ],
)
def test_the_next_ticks_tell_what_a_change_of_the_clock_does(moment, place, local, utc, note):
    at(moment)

    tick = read("next", "nightly", "-n", 3)["ticks"][place]

    assert tick["local"] == local
    assert tick["utc"].startswith(utc)
    assert note in tick["note"]
    assert bool(note) == bool(tick["note"])
    assert local in run("next", "nightly")


def test_the_second_of_two_times_is_told():
    line = at("2031-10-25T12:00Z")
    set_row(line.id, ambiguous="twice")

    notes = [each["note"] for each in read("next", "nightly", "-n", 2)["ticks"]]

    assert notes[0].startswith("the first of two")
    assert notes[1].startswith("the second of two")


def test_a_row_that_cannot_be_read_is_shown_with_the_reason():
    line = save()
    tick_all()
    set_row(line.id, time_zone="Mars/Base", next_run_at=minute(), watermark=minute(1))
    tick_all()

    shown = run("show", "nightly")

    assert "there is no time zone 'Mars/Base'" in shown.split("next ticks")[1]
    assert "disabled" in shown
    found = read("show", "nightly")
    assert (found["next_ticks"], found["state"]) == ([], "disabled")
    assert "Mars/Base" in found["unreadable"]


def test_a_stopped_schedule_says_that_its_ticks_would_come_only_then():
    save()
    run("disable", "nightly", "--reason", "month end")

    assert "if it were enabled" in run("next", "nightly")
    assert read("next", "nightly")["state"] == "disabled"
    assert "month end" in run("show", "nightly")


# ------------------------------------------------------------------ run now, pause, resume, disable, enable


def test_run_now_creates_an_occurrence_at_once():
    save()

    made = read("run-now", "nightly")

    (job,) = jobs()
    assert (made["state"], made["job_id"]) == ("created", str(job.pk))
    assert f"job {job.pk}" not in run("run-now", "nightly")
    assert Job.objects.count() == 2


def test_run_now_of_a_workflow_tells_its_run_group():
    save(jobs=[entry(name="a"), entry(name="b", depends_on=["a"])])

    made = read("run-now", "nightly")

    assert made["run_group_id"] == str(RunGroup.objects.get().pk)


def test_an_occurrence_that_cannot_be_created_ends_with_1_and_why():
    line = save()
    set_row(line.id, template={"jobs": [entry(job_type="nobody.knows")]})

    error = refused("run-now", "nightly")

    assert error.returncode == 1
    assert "[unknown_job_type]" in str(error)
    assert states(line.id) == ["failed"]


def test_a_pause_has_an_end_and_a_reason_and_can_be_ended_before():
    line = save()

    said = run("pause", "nightly", "--for", "2h", "--reason", "month end")

    paused = row(line.id)
    assert "Paused 'nightly', until" in said
    assert timedelta(hours=1, minutes=59) < paused.paused_until - now() <= timedelta(hours=2)
    assert paused.pause_reason == "month end"
    assert "fires next at" in run("resume", "nightly")
    assert row(line.id).paused_at is None
    assert refused("resume", "nightly").returncode == 1


def test_a_disabled_schedule_is_enabled_again():
    save()

    assert read("disable", "nightly")["state"] == "disabled"
    assert read("enable", "nightly")["state"] == "active"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("pause", "nightly", "--for", "soon"), "--for"),
        (("pause", "nightly", "--for", "0"), "--for"),
        (("next", "nightly", "-n", "0"), "--count"),
        (("next", "nightly", "-n", "1e3"), "--count"),
        (("list", "--limit", "2000"), "--limit"),
        (("list", "--after", "nightly"), "--after"),
        (("show", "nightly", "--history", "-1"), "--history"),
        (("list", "--tenant", "not a tenant"), "tenant"),
        (("list", "--database", "other"), "--database"),
        (("backfill", "nightly", "--from", "yesterday"), "--from"),
        (("backfill", "nightly", "--from", "2026-01-01", "--to", "x"), "--to"),
        (("backfill", "nightly", "--from", "2026-02-01", "--to", "2026-01-01"), "--to"),
        (("backfill", "nightly", "--from", "2026-01-01", "--to", "2199-01-01"), "--to"),
        (("backfill", "nightly", "--from", "1900-01-01"), "--from"),
    ],
)
def test_a_flag_that_cannot_be_used_ends_with_2_and_says_which(typed, told):
    save()

    error = refused(*typed)

    assert error.returncode == 2
    assert told in str(error)


def test_a_schedule_that_is_not_there_ends_with_1():
    assert refused("show", "nightly").returncode == 1


# ------------------------------------------------------------------ backfill


def by_the_minute() -> operate.ScheduleLine:
    return save(expression="* * * * *", time_zone="UTC")


def ago(minutes: int) -> str:
    return minute(minutes).isoformat()


def test_a_dry_run_counts_and_changes_nothing():
    line = by_the_minute()

    told = read("backfill", "nightly", "--from", ago(30), "--to", ago(1), "--dry-run")
    said = run("backfill", "nightly", "--from", ago(30), "--to", ago(1), "--dry-run")

    assert (told["ticks"], told["to_create"]) == (30, 30)
    assert told["first"][0]["utc"] == ago(30)
    assert "30 of 30 ticks" in said
    assert "and 10 more" in said
    assert runs(line.id) == []


def test_a_backfill_creates_what_was_not_created_and_nothing_twice(monkeypatch):
    monkeypatch.setattr("pgbroker.management.commands.broker_schedules.BACKFILL_PAGE", 4)
    line = by_the_minute()
    run("backfill", "nightly", "--from", ago(5), "--to", ago(4))

    told = read("backfill", "nightly", "--from", ago(10), "--to", ago(1))

    assert (told["ticks"], told["to_create"], told["created"], told["failed"]) == (10, 8, 8, 0)
    assert [each.scheduled_for for each in runs(line.id)] == [minute(back) for back in range(10, 0, -1)]
    assert len(jobs()) == 10
    assert "0 of 10 ticks" in run("backfill", "nightly", "--from", ago(10), "--to", ago(1))


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_how_far_a_backfill_is(monkeypatch):
    monkeypatch.setattr("pgbroker.management.commands.broker_schedules.BACKFILL_PAGE", 4)
    by_the_minute()
    screen = Terminal()

    run("backfill", "nightly", "--from", ago(10), "--to", ago(1), stderr=screen)

    assert [part.split("] ")[1].strip() for part in screen.getvalue().split("\r")[1:]] == [
        "4 occurrences", "8 occurrences", "10 occurrences",
    ]  # fmt: skip


def test_a_backfill_that_fails_ends_with_1_and_what_could_be_created_stays():
    line = by_the_minute()
    set_row(line.id, template={"jobs": [entry(job_type="nobody.knows")]})

    error = refused("backfill", "nightly", "--from", ago(3), "--to", ago(1))

    assert error.returncode == 1
    assert "3 could not be created" in str(error)
    assert "[unknown_job_type]" in str(error)


def test_a_date_means_the_whole_day_on_the_clock_of_the_zone():
    """The day on which the clock of Berlin goes back has 25 hours."""
    first = read_moment("--from", "2025-10-26", "Europe/Berlin", is_end=False)
    last = read_moment("--to", "2025-10-26", "Europe/Berlin", is_end=True)

    assert first == datetime(2025, 10, 25, 22, tzinfo=UTC)
    assert last == datetime(2025, 10, 26, 22, 59, 59, 999999, tzinfo=UTC)


@pytest.mark.parametrize(("is_end", "hour"), [(False, 0), (True, 1)])
def test_a_time_that_the_clock_shows_twice_takes_both_into_the_range(is_end, hour):
    read = read_moment("--from", "2025-10-26T02:30", "Europe/Berlin", is_end=is_end)

    assert read == datetime(2025, 10, 26, hour, 30, tzinfo=UTC)


def test_a_time_beyond_all_calendars_is_refused():
    with pytest.raises(InvalidOption, match="too far away"):
        read_moment("--from", "0001-01-01T00:00+14:00", "UTC", is_end=False)


# ------------------------------------------------------------------ sync and drift


def declare(name: str = "declared", **changes: Any) -> None:
    schedule(name, nothing, **{"cron": "0 2 * * *", "timezone": "UTC", **changes})


def test_sync_stores_what_the_code_declares_and_a_dry_run_only_tells():
    declare()

    dry = read("sync", "--dry-run")
    assert dry == {"drift": [{"name": "declared", "tenant": "default", "what": "missing", "detail": ""}]}
    assert "not stored yet" in run("sync", "--dry-run")
    assert read("list")["missing"] == [{"name": "declared", "tenant_id": "default", "detail": ""}]
    assert "declared of tenant default" in run("list")
    assert read("list", "--tenant", "acme")["missing"] == []

    assert read("sync")["created"] == ["declared"]
    assert run("sync").strip() == "Code and rows agree."
    assert read("list")["missing"] == []


def drift_of_the_row(*typed: str) -> list[str | None]:
    return [each["drift"] for each in read("list")["schedules"]] + [read("show", "declared")["drift"]]


def test_list_and_show_tell_how_a_row_differs_from_the_code():
    declare()
    run("sync")
    assert drift_of_the_row() == [None, None]

    set_row(operate.get_schedule("declared").id, expression="0 5 * * *")
    assert drift_of_the_row() == ["edited", "edited"]
    assert "somebody changed it" in run("show", "declared")

    declarations.forget("declared")
    declare(cron="0 3 * * *")
    assert drift_of_the_row() == ["changed", "changed"]

    declarations.forget("declared")
    assert drift_of_the_row() == ["gone", "gone"]
    assert read("sync")["disabled"] == ["declared"]
    assert drift_of_the_row() == [None, None]


def test_what_cannot_be_stored_ends_with_1_and_keeps_no_other_from_it():
    schedule("broken", nothing, cron="0 2 * * *", timezone="UTC", args=["one too many"])
    declare()

    error = refused("sync")

    assert error.returncode == 1
    assert "'broken'" in str(error)
    assert operate.get_schedule("declared").enabled


def test_every_action_teaches():
    parser = load_command_class("pgbroker", "broker_schedules").create_parser("manage.py", "broker_schedules")

    told = parser.format_help()

    assert "backfill nightly --from 2026-03-01 --to 2026-03-07 --dry-run" in told
    with scope_all():
        assert operate.list_schedules() == []


@pytest.mark.parametrize("verb", ["pause", "disable"])
def test_a_reason_that_no_column_takes_is_refused_with_its_flag(verb):
    line = save()

    error = refused(verb, "nightly", "--reason", "x" * 100_000)

    assert error.returncode == 2
    assert "--reason has 100000 characters" in str(error)
    assert (row(line.id).paused_at, row(line.id).enabled) == (None, True)

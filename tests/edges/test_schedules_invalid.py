"""A declaration that cannot be stored is told with its reason wherever somebody looks, and fires nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import StringIO

import pytest
from django.core.checks import WARNING
from django.core.management import CommandError, call_command

from pgbroker import checks, registry, schedule, telemetry
from pgbroker.errors import InvalidOption, ScheduleNotFound
from pgbroker.models import JobType
from pgbroker.references import GroupRef
from pgbroker.schedules import operate
from pgbroker.schedules.declare import declarations, schedule_job
from pgbroker.testing import guards_off
from tests.support.handlers import deaf, nothing
from tests.support.schedules import set_row

pytestmark = pytest.mark.django_db

WAITS = nothing.options(depends_on=["elsewhere"]).bind()
# What is declared, and what is told of it.
WRONG = {
    "type": (deaf.bind("soon"), "argument 'seconds' is of type str"),
    "missing": (deaf.bind(), "seconds"),
    "twice": (deaf.bind(1.0, seconds=2.0), "seconds"),
    "waits": ([nothing.bind(), WAITS], "has 'elsewhere', which is none of this schedule's jobs"),
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch) -> None:
    monkeypatch.setattr(declarations, "_known", {})
    registry.synchronise(using="default")


def declare(name: str, job=nothing, **changes) -> None:
    schedule(name, job, **{"cron": "0 2 * * *", "timezone": "UTC", **changes})


def command(*typed: str) -> tuple[str, str]:
    """Return what it printed, and why it ended otherwise than well."""
    said, refused, code = StringIO(), "", 0
    try:
        call_command("broker_schedules", *typed, stdout=said, stderr=StringIO())
    except CommandError as error:
        refused, code = str(error), error.returncode
    assert code in (0, 1)
    return said.getvalue(), refused


@pytest.mark.parametrize("wrong", WRONG)
def test_a_check_tells_what_can_be_seen_without_a_database(wrong, django_db_blocker):
    job, why = WRONG[wrong]
    declare("broken", job)
    declare("good", deaf.bind(1.5))

    with django_db_blocker.block():
        (message,) = checks.check_schedules(None)

    assert (message.id, message.level) == ("pgbroker.W015", WARNING)
    assert "schedule 'broken' cannot be stored" in message.msg
    assert why in message.msg


@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry", "in earnest"])
def test_sync_tells_every_reason_and_ends_with_1(dry):
    for name, (job, _) in WRONG.items():
        declare(name, job)
    declare("good")

    said, refused = command("sync", *dry)

    for name, (_, why) in WRONG.items():
        (told,) = [line for line in said.splitlines() if line.startswith(f"{name} of tenant default: ")]
        assert why in told
        assert repr(name) in refused
    assert "'good'" not in refused
    assert [line.name for line in operate.list_schedules()] == ([] if dry else ["good"])


def test_a_dry_run_and_the_list_tell_what_the_database_would_refuse():
    group = {"depends_on": [GroupRef("never-opened")]}
    declare("lonely", [nothing.bind(), nothing.bind()], group=group)
    declare("good")

    said, refused = command("sync", "--dry-run")

    assert "never-opened" in said
    assert "'lonely'" in refused
    assert "'good'" not in refused
    assert "never-opened" in command("list")[0]


def test_a_type_that_is_stored_with_the_schedule_is_no_trouble():
    declare("new")
    with guards_off():
        JobType.objects.filter(name=nothing.key).update(name="scratch.renamed")

    (told,) = json.loads(command("sync", "--dry-run", "--format", "json")[0])["drift"]

    assert (told["name"], told["what"]) == ("new", "missing")


def test_the_list_tells_of_invalid_ones_with_the_reason():
    declare("stored")
    command("sync")
    declarations.forget("stored")
    declare("stored", deaf.bind("soon"))
    declare("broken", WRONG["waits"][0])

    said, _ = command("list")
    listed = json.loads(command("list", "--format", "json")[0])

    assert "none of this schedule's jobs" in said
    assert "argument 'seconds' is of type str" in said
    assert [each["name"] for each in listed["invalid"]] == ["broken"]
    assert "none of this" in listed["invalid"][0]["detail"]
    assert (listed["missing"], listed["schedules"][0]["drift"]) == ([], "invalid")
    assert "argument 'seconds' is of type str" in listed["schedules"][0]["drift_detail"]
    assert "argument 'seconds' is of type str" in command("show", "stored")[0]


def test_show_tells_of_what_is_declared_and_has_no_row():
    declare("broken", WRONG["waits"][0])
    declare("new")

    for verb in ("show", "next", "run-now"):
        assert "'broken', and it cannot be stored: depends_on has 'elsewhere'" in command(verb, "broken")[1]
        assert "is not stored yet. Run manage.py broker_schedules sync, or start" in command(verb, "new")[1]
        assert "broker_schedules list" in command(verb, "nobody")[1]
    with pytest.raises(ScheduleNotFound, match="Look at the tenant"):
        operate.get_schedule("other")
    command("sync")
    set_row(operate.get_schedule("new").id, expression="0 3 * * *")
    assert command("show", "new")[1] == ""


def test_a_note_about_the_clock_is_not_cut():
    # Two notes at once: the clock changes, and shows the time a second time.
    declare("often", cron="30 2 * * *", timezone="Europe/Berlin", ambiguous="twice")
    command("sync")

    said, _ = command("next", "often", "-n", "400")

    assert (
        "the second of two: the clock has shown this time before; the clock has changed from UTC+02:00"
        in said
    )
    assert "…" not in said


def test_a_backfill_of_the_future_names_where_it_begins():
    declare("new")
    command("sync")

    with pytest.raises(InvalidOption, match=r"start is 2100-01-01T00:00:00\+00:00, in the future"):
        operate.backfill(
            "new", start=datetime(2100, 1, 1, tzinfo=UTC), end=datetime(2099, 1, 1, tzinfo=UTC), dry_run=True
        )
    with pytest.raises(CommandError, match="--from is 2100-01-01"):
        call_command("broker_schedules", "backfill", "new", "--from", "2100-01-01", "--dry-run")


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ("shop.tick", "job is the text 'shop.tick'. Give the task itself, or calls"),
        ([print], "job has one that is a builtin_function_or_method. Give the task itself, or calls"),
        (7, "job is a int."),
    ],
)
def test_what_is_no_job_is_told_first(job, told):
    with pytest.raises(InvalidOption) as raised:
        declare("wrong", job, args=["a"])

    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("* * * * *", "schedule is '* * * * *'. Give a mapping"),
        (7, "schedule is 7. Give a mapping"),
        ({"cron": "* * * * *"}, "schedule lacks timezone. Say both"),
        ({"timezone": "UTC"}, "schedule lacks cron. Say both"),
        ({}, "schedule lacks cron and timezone. Say both"),
        ({"crom": "* * * * *", "zone": "UTC"}, "schedule says 'crom', 'zone'. It takes"),
    ],
)
def test_what_a_decorator_says_wrong_is_named(said, told):
    with pytest.raises(InvalidOption) as raised:
        schedule_job(nothing, said)

    assert told in str(raised.value)


def test_the_list_tells_until_when_a_pause_lasts():
    declare("for-a-while", timezone="Europe/Berlin")
    declare("for-good")
    command("sync")
    operate.pause("for-a-while", until=datetime(2100, 1, 1, tzinfo=UTC))
    operate.pause("for-good")

    first, second = command("list")[0].splitlines()[1:]

    assert "paused until 2100-01-01 01:00:00 +01:00" in first
    assert "paused  " in second


def test_what_newer_code_keeps_from_being_written_has_a_cure():
    assert "run broker_schedules sync with it" in telemetry.EVENTS["schedule.superseded"][1]

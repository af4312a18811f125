"""What people do with schedules: each verb, and what a mistake is told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pgbroker.errors import InvalidOption, InvalidSchedule, ScheduleNotFound
from pgbroker.lifecycle.dispatch import dispatch
from pgbroker.lifecycle.take_due import take_due
from pgbroker.models import Job
from pgbroker.policy.cron import Repeat
from pgbroker.schedules import operate
from pgbroker.schedules.decide import decide
from pgbroker.schedules.operate import Definition
from pgbroker.schedules.tick import tick
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import queue_id, type_id
from tests.support.schedules import (
    EVERY_MINUTE,
    entry,
    jobs,
    make,
    minute,
    now,
    row,
    runs,
    set_row,
    states,
    stopped,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def known(db):
    queue_id(), type_id()


def defined(name: str = "nightly", **changes) -> Definition:
    said = {"expression": "0 2 * * *", "time_zone": "Africa/Johannesburg", "jobs": [entry()], **changes}
    return Definition(name=name, **said)


# ------------------------------------------------------------------ save


def test_a_new_schedule_is_planned_from_now_on():
    saved = operate.save(defined())

    assert saved.is_new
    line = saved.schedule
    assert line.state == "active"
    assert line.next_run_at > now()
    assert line.next_run_at.astimezone(UTC).time().isoformat() == "00:00:00"
    assert line.watermark < line.next_run_at
    assert not line.declared
    assert Definition.of(line) == defined()
    assert tick().seen == 0


def test_saving_again_changes_what_it_says_and_keeps_its_id():
    first = operate.save(defined()).schedule
    second = operate.save(defined(expression="0 3 * * *", overlap="skip"))

    assert not second.is_new
    assert (second.schedule.id, second.schedule.overlap) == (first.id, "skip")
    assert second.schedule.revision == first.revision + 1
    assert second.schedule.next_run_at == operate.next_ticks("nightly", 1)[0].instant


def test_what_was_due_before_an_edit_is_created_as_it_was_then():
    """An edit while due: the tick belongs to what the schedule said when it came."""
    schedule = make("nightly", jobs=[entry(priority=3)])
    due = schedule.next_run_at

    operate.save(defined(jobs=[entry(priority=9)]))

    (run,) = runs(schedule)
    assert (run.scheduled_for, run.state) == (due, "created")
    assert [job.priority for job in jobs()] == [3]
    assert row(schedule).next_run_at > now()
    assert tick().seen == 0


def test_what_was_missed_before_an_edit_is_decided_by_the_policy_of_then():
    schedule = make("nightly", expression=EVERY_MINUTE, misfire="catch_up", misfire_count=7)
    stopped(schedule, hours=5)

    operate.save(defined(misfire="skip"))

    assert states(schedule) == ["missed", *["created"] * 7]


def test_a_pause_outlives_an_edit():
    operate.save(defined())
    operate.pause("nightly", reason="month end")

    line = operate.save(defined(expression="0 4 * * *")).schedule

    assert (line.state, line.next_run_at, line.pause_reason) == ("paused", None, "month end")
    assert operate.resume("nightly").next_run_at is not None


def test_a_disabled_one_plans_nothing():
    line = operate.save(defined(enabled=False)).schedule

    assert (line.state, line.next_run_at) == ("disabled", None)


WRONG = [
    ({"expression": "61 * * * *"}, "expression", "61"),
    ({"expression": "* * * * * *"}, "expression", "five fields but 6"),
    ({"expression": "0 0 31 2 *"}, "expression", "none of these months"),
    ({"expression": "0" * 300}, "expression", "300 characters"),
    ({"time_zone": "Africa/Johanesburg"}, "time_zone", "Africa/Johanesburg"),
    ({"misfire": "sometimes"}, "misfire", "sometimes"),
    ({"overlap": "maybe"}, "overlap", "maybe"),
    ({"ambiguous": "thrice"}, "ambiguous", "thrice"),
    ({"misfire_count": 0}, "misfire_count", "0"),
    ({"misfire_window": timedelta(0)}, "misfire_window_seconds", "0:00:00"),
    ({"jitter": timedelta(days=2)}, "jitter_seconds", "2 days"),
    ({"starts_at": datetime(2030, 1, 1)}, "starts_at", "naive"),  # noqa: DTZ001 - that is the mistake
    (
        {"starts_at": datetime(2031, 1, 1, tzinfo=UTC), "ends_at": datetime(2030, 1, 1, tzinfo=UTC)},
        "ends_at",
        "before the start",
    ),
    ({"ends_at": datetime(2020, 1, 1, tzinfo=UTC)}, "ends_at", "never fires"),
    ({"jobs": []}, "template", "no job"),
    ({"jobs": ["text"]}, "template", "is a str"),
    ({"jobs": [entry(idempotency_key="k")]}, "template", "idempotency_key"),
    ({"jobs": [entry(id="x")]}, "template", "says id"),
    ({"jobs": [entry(delay_seconds=5)]}, "template", "delay_seconds"),
    ({"jobs": [entry(priority=float("nan"))]}, "template", "number"),
    ({"jobs": [entry(job_type="os.system")]}, "template", "os.system"),
    ({"jobs": [entry(queue="nowhere")]}, "template", "nowhere"),
    ({"jobs": [entry(name="a"), entry(name="b", depends_on=["z"])]}, "template", "z"),
    ({"group": {"tolerate": 1}, "jobs": [entry(name="a"), entry(name="b")]}, "template", "tolerate"),
    ({"name": ""}, "name", "empty"),
    ({"name": " x"}, "name", "space"),
]


@pytest.mark.parametrize(("wrong", "field", "words"), WRONG, ids=[f"{f}-{w[:12]}" for _, f, w in WRONG])
def test_b096_what_is_wrong_is_told_with_its_field_and_its_cure_and_nothing_is_stored(wrong, field, words):
    with pytest.raises(InvalidSchedule) as caught:
        operate.save(replace(defined(), **wrong))

    (trouble,) = caught.value.troubles
    assert trouble.field == field
    assert words in trouble.trouble
    assert trouble.cure
    assert operate.list_schedules() == []
    assert jobs() == []


def test_everything_wrong_is_told_at_once():
    with pytest.raises(InvalidSchedule) as caught:
        operate.save(defined(expression="x", time_zone="y", misfire="z", jobs=[]))

    assert {each.field for each in caught.value.troubles} == {
        "expression",
        "time_zone",
        "misfire",
        "template",
    }


def test_b096_mondays_of_february_are_taken():
    assert operate.save(defined(expression="0 0 30 2 1")).is_new


def test_trying_a_template_leaves_nothing():
    assert operate.check(defined(jobs=[entry(name="a"), entry(name="b", depends_on=["a"])])) == []
    assert jobs() == []


# ------------------------------------------------------------------ run now


def test_b156_two_runs_now_and_the_tick_are_three_jobs_and_the_next_tick_stays():
    schedule = make(due=False)
    set_row(schedule, watermark=minute(60))
    before = row(schedule).next_run_at

    one, two = operate.run_now("nightly"), operate.run_now(schedule.id)

    assert one.state == two.state == "created"
    assert timedelta(0) <= now() - one.scheduled_for < timedelta(minutes=1)
    assert [run.kind for run in runs(schedule)] == ["run_now", "run_now"]
    assert row(schedule).next_run_at == before
    set_row(schedule, watermark=minute(1), next_run_at=minute())
    tick()
    assert [run.kind for run in runs(schedule)] == ["tick", "run_now", "run_now"]
    assert len(jobs()) == 3


def test_a_run_now_of_a_template_that_cannot_be_enqueued_says_why():
    make(due=False, jobs=[entry(queue="nowhere")])

    answer = operate.run_now("nightly")

    assert (answer.state, answer.error_code, answer.job_id) == ("failed", "unknown_queue", None)


def test_one_that_is_paused_or_disabled_can_be_run_now():
    schedule = make(due=False)
    operate.pause("nightly")
    assert operate.run_now("nightly").state == "created"
    operate.resume("nightly")
    operate.disable("nightly", reason="not needed")
    assert operate.run_now("nightly").state == "created"
    assert row(schedule).next_run_at is None


def test_a_decision_that_a_run_now_overtook_is_not_done():
    """It was made when nothing ran."""
    schedule = make(overlap="skip")
    (due,) = take_due(limit=10)
    operate.run_now("nightly")

    (answer,) = dispatch([decide(due, limit=10)])
    assert answer.state == "stale"
    tick()
    assert sorted(states(schedule)) == ["created", "skipped"]


# ------------------------------------------------------------------ pause, resume, enable


def test_a_paused_schedule_creates_nothing_and_misses_nothing():
    schedule = make(expression=EVERY_MINUTE)
    line = operate.pause("nightly", by="ada", reason="audit")
    assert (line.state, line.paused_by, line.pause_reason, line.next_run_at) == (
        "paused",
        "ada",
        "audit",
        None,
    )
    set_row(schedule, watermark=minute(60), paused_at=minute(60))

    assert tick().seen == 0
    line = operate.resume("nightly")

    assert (line.state, line.paused_at, line.paused_by) == ("active", None, "")
    assert timedelta(0) < line.next_run_at - line.now <= timedelta(minutes=1)
    assert line.watermark > line.now - timedelta(minutes=1), "what came meanwhile would be missed"
    assert (tick().seen, runs(schedule)) == (0, [])


def test_a_pause_ends_by_itself_and_what_came_after_its_end_is_due():
    schedule = make(expression=EVERY_MINUTE, misfire="catch_up")
    operate.pause("nightly", until=timedelta(hours=1))
    set_row(
        schedule, paused_at=minute(60), watermark=minute(60), paused_until=minute(3) + timedelta(seconds=1)
    )

    tick()

    after = row(schedule)
    assert (after.paused_at, after.paused_until) == (None, None)
    created = [run.scheduled_for for run in runs(schedule)]
    assert len(created) in (3, 4)
    assert created[0] == minute(len(created) - 1)
    assert after.next_run_at > after.watermark


def test_an_end_of_a_pause_that_has_passed_is_refused():
    make(due=False)

    with pytest.raises(InvalidOption, match="has passed"):
        operate.pause("nightly", until=now() - timedelta(seconds=1))


def test_resuming_what_is_not_paused_changes_nothing():
    make(due=False)
    before = operate.get_schedule("nightly")

    assert operate.resume("nightly").revision == before.revision


def test_disabled_and_enabled_again():
    schedule = make(expression=EVERY_MINUTE)
    line = operate.disable("nightly", reason="broken")
    assert (line.state, line.disabled_reason) == ("disabled", "broken")
    set_row(schedule, watermark=minute(600))
    assert tick().seen == 0

    line = operate.enable("nightly")

    assert (line.state, line.disabled_reason) == ("active", "")
    assert line.next_run_at > line.now
    assert runs(schedule) == []


# ------------------------------------------------------------------ backfill


def test_a_dry_run_tells_and_changes_nothing():
    schedule = make(due=False, expression="*/15 * * * *")
    start, end = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 1, tzinfo=UTC)

    plan = operate.backfill("nightly", start=start, end=end, dry_run=True)

    assert [each.tick.instant.minute for each in plan.ticks] == [0, 15, 30, 45, 0]
    assert len(plan.create) == 5
    assert (plan.created, runs(schedule), jobs()) == ((), [], [])


def test_a_backfill_creates_what_was_not_created_and_only_that(monkeypatch):
    monkeypatch.setattr("pgbroker.schedules.backfill.BACKFILL_PAGE", 2)
    schedule = make(due=False, expression="*/15 * * * *")
    start, end = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 1, tzinfo=UTC)
    first = operate.backfill("nightly", start=start, end=start + timedelta(minutes=20), dry_run=False)
    assert len(first.created) == 2

    second = operate.backfill("nightly", start=start, end=end, dry_run=False)
    third = operate.backfill("nightly", start=start, end=end, dry_run=False)

    assert [each.known for each in second.ticks] == ["created", "created", None, None, None]
    assert (len(second.created), len(third.created)) == (3, 0)
    assert [(run.kind, run.state) for run in runs(schedule)] == [("backfill", "created")] * 5
    assert len(jobs()) == 5
    assert row(schedule).next_run_at > now()


def test_a_backfill_makes_up_for_what_was_skipped_or_failed():
    schedule = make(jobs=[entry(queue="nowhere")])
    tick()
    assert states(schedule) == ["failed"]
    set_row(schedule, template={"jobs": [entry()]})

    done = operate.backfill("nightly", start=minute(), end=now(), dry_run=False)

    assert len(done.created) == 1
    assert [(run.kind, run.state) for run in runs(schedule)] == [("backfill", "created")]


def test_a_backfill_of_a_template_that_cannot_be_enqueued_says_so():
    make(due=False, expression="0 * * * *", jobs=[entry(queue="nowhere")])
    start = datetime(2024, 1, 1, tzinfo=UTC)

    done = operate.backfill("nightly", start=start, end=start + timedelta(hours=2), dry_run=False)

    assert (len(done.created), len(done.failed)) == (0, 3)


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (timedelta(hours=1), timedelta(hours=2), "before the start"),
        (timedelta(0), -timedelta(hours=1), "in the future"),
        (timedelta(days=3000), timedelta(0), "more than 10,000"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(start, end, words):
    make(due=False, expression=EVERY_MINUTE)

    with pytest.raises(InvalidOption, match=words):
        operate.backfill("nightly", start=now() - start, end=now() - end, dry_run=True)


def test_a_backfill_counts_for_no_overlap():
    schedule = make(due=False, overlap="skip", expression=EVERY_MINUTE)
    operate.backfill("nightly", start=minute(20), end=minute(10), dry_run=False)
    set_row(schedule, watermark=minute(1), next_run_at=minute())

    tick()

    assert runs(schedule)[-1].state == "created"


# ------------------------------------------------------------------ look


def test_next_ticks_show_what_a_change_of_the_clock_makes_of_them():
    operate.save(defined(expression="30 1 * * *", time_zone="America/New_York", ambiguous="twice"))
    operate.save(defined("gap", expression="30 2 * * *", time_zone="America/New_York"))

    twice = operate.next_ticks("nightly", 3, after=datetime(2030, 11, 2, 12, tzinfo=UTC))
    gap = operate.next_ticks("gap", 1, after=datetime(2030, 3, 9, 12, tzinfo=UTC))

    assert [each.repeat for each in twice[:2]] != [Repeat.NONE, Repeat.NONE]
    assert twice[1].instant - twice[0].instant == timedelta(hours=1)
    assert gap[0].skipped is not None


def test_b078_looking_changes_nothing():
    schedule = make()
    before = row(schedule).__dict__

    (
        operate.list_schedules(),
        operate.get_schedule("nightly"),
        operate.next_ticks("nightly"),
        operate.history("nightly"),
    )

    assert {k: v for k, v in row(schedule).__dict__.items() if k != "_state"} == {
        k: v for k, v in before.items() if k != "_state"
    }
    tick()
    assert states(schedule) == ["created"]


def test_the_history_has_the_latest_first_and_goes_on():
    make(due=False, expression="0 * * * *")
    start = datetime(2024, 1, 1, tzinfo=UTC)
    operate.backfill("nightly", start=start, end=start + timedelta(hours=9), dry_run=False)

    page = operate.history("nightly", limit=4)
    rest = operate.history("nightly", before=page[-1].scheduled_for)

    assert [run.scheduled_for.hour for run in page + rest] == list(range(9, -1, -1))


def test_lists_go_on_by_name():
    for name in "cab":
        make(name)

    page = operate.list_schedules(limit=2)
    rest = operate.list_schedules(after=(page[-1].name, page[-1].id))

    assert [line.name for line in page + rest] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "verb",
    [
        operate.run_now,
        operate.pause,
        operate.resume,
        operate.enable,
        operate.get_schedule,
        operate.next_ticks,
        operate.history,
    ],
)
def test_b137_another_tenants_schedule_is_not_there_by_name_or_by_id(verb):
    with tenant_context("acme"):
        other = make("secret")

    for key in ("secret", other.id, "nobody's"):
        with pytest.raises(ScheduleNotFound):
            verb(key)
    assert runs(other) == []


def test_b137_two_tenants_may_have_schedules_of_one_name():
    for tenant in ("acme", "bolt"):
        with tenant_context(tenant):
            operate.save(defined())
            operate.run_now("nightly")
            assert Job.objects.get().tenant_id == tenant
    with scope_all():
        assert len(operate.list_schedules()) == 2
        with pytest.raises(ScheduleNotFound, match="several tenants"):
            operate.get_schedule("nightly")
        acme = next(line for line in operate.list_schedules() if line.tenant_id == "acme")
        operate.run_now(acme.id)
    assert [job.tenant_id for job in jobs()] == ["acme", "bolt", "acme"]


@pytest.mark.parametrize(
    "said", ["a\x00b", "\ud800", "x" * 100_000, 5], ids=["nul", "surrogate", "long", "number"]
)
def test_what_no_column_takes_is_refused_before_anything_is_done(said):
    line = make()

    for attempted in (
        lambda: operate.pause(line.id, reason=said),
        lambda: operate.pause(line.id, by=said),
        lambda: operate.disable(line.id, reason=said),
    ):
        with pytest.raises(InvalidOption, match=r"^(reason|by) "):
            attempted()

    assert (row(line.id).paused_at, row(line.id).enabled) == (None, True)

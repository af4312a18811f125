"""Misfire, overlap, changes of the clock and of the zone data: what becomes of ticks, as rows."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pgbroker import db, telemetry
from pgbroker.conf import settings
from pgbroker.control import retry
from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.dispatch import dispatch
from pgbroker.lifecycle.resolve import resolve
from pgbroker.lifecycle.take_due import next_schedule, take_due
from pgbroker.models import Job, RunGroup
from pgbroker.policy.cron import zones
from pgbroker.runtime.scheduling import Scheduling
from pgbroker.schedules import operate
from pgbroker.schedules.decide import decide
from pgbroker.schedules.tick import replan, tick
from pgbroker.states import GroupState, Status
from pgbroker.tenancy import scope_all
from tests.support.held import at_once, held
from tests.support.jobs import claim_many, claim_one, completed, reason, settle_one, status
from tests.support.leaders import ADA
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
    tick_all,
)
from tests.support.sessions import InThread, wait_until_blocked

pytestmark = pytest.mark.django_db


@pytest.fixture
def told():
    """What was told of schedules."""
    heard: list[tuple[str, dict]] = []
    unsubscribe = telemetry.subscribe(
        lambda event, keys: heard.append((event, keys)), wants=lambda event: event.startswith("schedule.")
    )
    yield heard
    unsubscribe()


# ------------------------------------------------------------------ misfire

DAYS_90 = timedelta(days=90)
MINUTES_90 = 90 * 24 * 60


def in_90_days(**policy) -> tuple[object, list[datetime]]:
    """Let a schedule by the minute see nothing for 90 days, then pass; returns it and the ticks it created."""
    schedule = make(expression=EVERY_MINUTE, **policy)
    stopped(schedule, days=90)
    tick_all()
    return schedule, [run.scheduled_for for run in runs(schedule, state="created")]


def test_b076_by_default_the_latest_tick_alone_is_created(told):
    schedule, created = in_90_days()

    assert len(created) == 1
    assert now() - created[0] < timedelta(seconds=70)
    (misfired,) = [keys for event, keys in told if event == "schedule.misfired"]
    assert MINUTES_90 - 2 <= misfired["missed"] <= MINUTES_90
    assert row(schedule).next_run_at > created[0]


def test_skip_creates_none_that_came_too_late(told):
    schedule, created = in_90_days(misfire="skip")

    assert all(now() - each < timedelta(seconds=40) for each in created)
    assert len(created) <= 1
    assert row(schedule).next_run_at > row(schedule).watermark
    (misfired,) = [keys for event, keys in told if event == "schedule.misfired"]
    assert misfired["missed"] >= MINUTES_90 - 2


@pytest.mark.parametrize("misfire", ["skip", "run_once", "catch_up"])
def test_what_was_missed_is_one_row_of_the_history_however_much_it_is(misfire):
    schedule = make("minutely", expression=EVERY_MINUTE, misfire=misfire, misfire_count=3)
    since = stopped(schedule, days=90)
    began = time.monotonic()

    tick_all()

    took = time.monotonic() - began
    (gap,) = runs(schedule, state="missed")
    created = runs(schedule, state="created")
    assert len(runs(schedule)) <= 4
    missed = round((gap.scheduled_for - since) / timedelta(minutes=1))
    assert missed >= MINUTES_90 - 4
    assert gap.error == f"{missed} ticks from {since + timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ} to this one"
    assert (gap.kind, gap.error_code, gap.job_id) == ("tick", None, None)
    if created:
        assert gap.scheduled_for == created[0].scheduled_for - timedelta(minutes=1)
    assert took < 1


def test_one_tick_that_was_missed_is_told_by_its_row_alone_and_can_be_made_up_for():
    schedule = make("minutely", expression=EVERY_MINUTE, misfire="skip")
    tick_at = minute(2)
    set_row(
        schedule,
        expression=f"{tick_at.minute} {tick_at.hour} * * *",
        watermark=tick_at - timedelta(seconds=1),
        next_run_at=tick_at,
    )
    tick_all()
    ((state, error),) = [(run.state, run.error) for run in runs(schedule)]
    assert (state, error) == ("missed", None)

    assert len(operate.backfill(schedule.id, start=tick_at, end=tick_at, dry_run=False).created) == 1

    assert [(run.state, run.kind, run.error) for run in runs(schedule)] == [("created", "backfill", None)]


def test_a_gap_that_ends_with_a_tick_that_was_made_up_for_leaves_that_as_it_is():
    schedule = make("minutely", expression=EVERY_MINUTE, misfire="skip")
    since = stopped(schedule, minutes=10)
    operate.backfill(schedule.id, start=since, end=minute(1), dry_run=False)

    tick_all()

    assert {run.state for run in runs(schedule)} <= {"created", "missed"}
    assert len(runs(schedule, kind="backfill", state="created")) >= 9


def test_a_decision_about_an_older_row_tells_of_nothing_missed():
    schedule = make("minutely", expression=EVERY_MINUTE, misfire="skip")
    stopped(schedule, minutes=10)
    (due,) = take_due(limit=1)
    operate.pause(schedule.id)

    dispatch([decide(due, limit=10)])

    assert runs(schedule) == []


def test_catch_up_creates_the_latest_within_count_and_window():
    _, by_count = in_90_days(misfire="catch_up", misfire_count=50)
    schedule = make("window", expression=EVERY_MINUTE, misfire="catch_up", misfire_window_seconds=600.0)
    stopped(schedule, days=90)

    tick_all()

    by_window = [run.scheduled_for for run in runs(schedule, state="created")]
    assert len(by_count) == 50
    assert len(by_window) in (10, 11)
    for created in (by_count, by_window):
        assert created == [created[0] + timedelta(minutes=n) for n in range(len(created))]
        assert now() - created[-1] < timedelta(seconds=70)


def test_catching_up_with_all_of_90_days_keeps_memory_flat_and_others_on_time():
    other = make("other")
    began = now()
    tracemalloc.start()
    _, created = in_90_days(
        misfire="catch_up", misfire_count=3_000, misfire_window_seconds=DAYS_90.total_seconds()
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    # Another minute may have come meanwhile.
    assert len([each for each in created if each <= began]) == 3_000
    assert len(set(created)) == len(created)
    assert states(other) == ["created"]
    assert peak < 20 * 1024**2


def test_b074_a_look_that_comes_late_skips_no_tick():
    """Within the grace, whatever the policy is: a scheduler that stood still for five seconds, say."""
    rules = zones.load("UTC").fingerprint
    schedule = make(due=False, expression="0 0 29 2 *", misfire="skip", zone_rules=rules)
    due = now() - timedelta(seconds=5)
    set_row(schedule, watermark=due - timedelta(seconds=1), next_run_at=due)

    tick()

    assert [(run.scheduled_for, run.state) for run in runs(schedule)] == [(due, "created")]


def test_b076_overdue_schedules_do_not_hold_up_what_is_on_time():
    for number in range(300):
        stopped(make(f"old{number:03}", expression=EVERY_MINUTE), days=3)
    fresh = make("fresh")
    began = time.monotonic()

    tick_all()

    assert states(fresh) == ["created"]
    assert len(jobs()) == 301
    assert time.monotonic() - began < 30


# ------------------------------------------------------------------ overlap


def again(schedule) -> datetime:
    """Let the next tick of a schedule come, a minute after the last; returns it."""
    last = row(schedule).last_dispatched_for or minute(30)
    latest = max([last, *(run.scheduled_for for run in runs(schedule, kind="tick"))])
    due = latest + timedelta(minutes=1)
    # A tick that its expression has, whenever that is.
    set_row(
        schedule,
        expression=f"{due.minute} {due.hour} {due.day} {due.month} *",
        watermark=due - timedelta(seconds=1),
        next_run_at=due,
        misfire="run_once",
        zone_rules="",
    )
    tick()
    return due


def first(overlap: str, **changes):
    """Make a schedule with one occurrence that is not over, half an hour ago."""
    schedule = make(overlap=overlap, due=False, **changes)
    again(schedule)
    assert states(schedule) == ["created"]
    return schedule


def test_allow_lets_them_run_beside_each_other():
    schedule = first("allow")

    again(schedule)

    assert states(schedule) == ["created", "created"]


def test_skip_leaves_a_tick_out_while_one_is_live_and_not_after_it(told):
    schedule = first("skip")

    again(schedule)
    settle_one(completed(claim_one()))
    again(schedule)

    assert states(schedule) == ["created", "skipped", "created"]
    assert runs(schedule)[1].error_code == "overlap"
    assert [event for event, _ in told].count("schedule.skipped") == 1


def test_however_many_are_run_by_hand_a_tick_that_still_runs_is_seen(told):
    schedule = first("skip")
    lasting = claim_one()
    for _ in range(30):
        operate.run_now(schedule.id)
    for lease in claim_many(30):
        settle_one(completed(lease))

    again(schedule)
    settle_one(completed(lasting))
    again(schedule)

    assert [run.state for run in runs(schedule, kind="tick")] == ["created", "skipped", "created"]


@pytest.mark.parametrize(
    "template", [[entry()], [entry(name="a"), entry(name="b", depends_on=["a"])]], ids=["job", "group"]
)
def test_an_occurrence_that_was_seen_to_be_over_counts_again_once_it_is_retried(template):
    schedule = first("skip", jobs=template)
    members = [job.id for job in jobs()]
    cancel_many(members)
    resolve(limit=100)
    operate.run_now(schedule.id)
    assert [run.seen_over for run in runs(schedule, kind="tick")] == [True]
    cancel_many([job.id for job in jobs() if job.id not in members])
    resolve(limit=100)

    # The first of them: the other one waits for it.
    retry(next(job.id for job in jobs() if job.id in members and job.name in (None, "a")))

    assert [run.seen_over for run in runs(schedule, kind="tick")] == [False]
    again(schedule)
    assert [run.state for run in runs(schedule, kind="tick")] == ["created", "skipped"]


def test_what_was_created_while_all_were_allowed_counts_under_another_policy():
    schedule = first("allow")
    operate.run_now(schedule.id)
    done = claim_one()
    settle_one(completed(done))
    operate.save(replace(operate.Definition.of(operate.get_schedule(schedule.id)), overlap="skip"))
    assert sorted(run.seen_over for run in runs(schedule)) == [False, True]

    again(schedule)

    assert [run.state for run in runs(schedule, kind="tick")] == ["created", "skipped"]


@pytest.mark.django_db(transaction=True)
def test_a_retry_that_is_not_committed_yet_is_seen_once_it_is():
    schedule = first("skip")
    (job,) = jobs()
    cancel_many([job.id])

    with held(lambda: retry(job.id)):
        at_once(lambda: operate.run_now(schedule.id))

    assert [run.seen_over for run in runs(schedule, kind="tick")] == [False]


@pytest.mark.django_db(transaction=True)
def test_a_retry_while_somebody_notes_that_it_was_over_takes_that_back():
    schedule = first("skip")
    (job,) = jobs()
    cancel_many([job.id])

    with held(lambda: operate.run_now(schedule.id)) as noting:
        retrying = InThread(lambda: retry(job.id)).start()
        wait_until_blocked(retrying, noting.thread)

    retrying.result()
    assert [run.seen_over for run in runs(schedule, kind="tick")] == [False]


def test_a_retried_occurrence_counts_again():
    schedule = first("skip")
    (job,) = jobs()
    cancel_many([job.id])
    retry(job.id)

    again(schedule)

    assert states(schedule) == ["created", "skipped"]


def test_a_tick_waits_for_the_one_before_it_and_only_one_does():
    schedule = first("buffer_one")

    second = again(schedule)
    again(schedule)
    assert states(schedule) == ["created", "buffered", "skipped"]
    assert row(schedule).buffered_for == second
    assert next_schedule().waits
    assert tick().created == 0
    settle_one(completed(claim_one()))
    tick()

    assert states(schedule) == ["created", "created", "skipped"]
    after = row(schedule)
    assert (after.buffered_for, next_schedule().waits) == (None, False)
    assert runs(schedule)[1].lateness_seconds > 0
    assert len(jobs()) == 2


def test_a_buffered_tick_waits_for_the_end_of_a_pause_too():
    schedule = first("buffer_one")
    again(schedule)
    operate.pause(schedule.id)
    settle_one(completed(claim_one()))
    tick()
    assert states(schedule) == ["created", "buffered"]

    operate.resume(schedule.id)
    tick()

    assert states(schedule) == ["created", "created"]


def test_cancel_other_cancels_what_lives_and_takes_its_place():
    schedule = first("cancel_other")
    (old,) = jobs()

    again(schedule)

    assert states(schedule) == ["created", "created"]
    assert status(old.id) == Status.CANCELLED
    assert reason(old.id) == "cancelled"
    assert sorted(Status(job.status) for job in jobs()) == [Status.READY, Status.CANCELLED]


def test_cancel_other_cancels_what_waited_by_another_policy():
    schedule = first("buffer_one")
    waiting = again(schedule)
    assert row(schedule).buffered_for == waiting
    operate.save(replace(operate.Definition.of(operate.get_schedule(schedule.id)), overlap="cancel_other"))

    again(schedule)
    settle_one(completed(claim_one()))
    tick()

    assert states(schedule) == ["created", "skipped", "created"]
    assert row(schedule).buffered_for is None


def test_cancel_other_asks_a_running_one_to_stop():
    schedule = first("cancel_other")
    lease = claim_one()

    again(schedule)

    with scope_all():
        assert Job.objects.get(pk=lease.job_id).cancel_requested_at is not None
    assert len(jobs()) == 2


def test_a_run_group_overlaps_as_a_whole():
    schedule = first("skip", jobs=[entry(name="a"), entry(name="b", depends_on=["a"])])
    settle_one(completed(claim_one()))
    again(schedule)
    assert states(schedule) == ["created", "skipped"]
    settle_one(completed(claim_one()))

    again(schedule)

    assert states(schedule) == ["created", "skipped", "created"]


def test_cancel_other_cancels_a_whole_run_group():
    schedule = first("cancel_other", jobs=[entry(name="a"), entry(name="b", depends_on=["a"])])

    again(schedule)

    with scope_all():
        assert sorted(RunGroup.objects.values_list("state", flat=True)) == [
            GroupState.SEALED, GroupState.CANCELLED,
        ]  # fmt: skip
    assert len(claim_many()) == 1


def test_of_many_missed_ticks_that_must_not_overlap_one_runs():
    for overlap, wanted in (
        ("skip", ["missed", "created", *["skipped"] * 9]),
        ("buffer_one", ["missed", "created", "buffered", *["skipped"] * 8]),
        ("cancel_other", ["missed", *["skipped"] * 9, "created"]),
    ):
        schedule = make(
            overlap, expression=EVERY_MINUTE, overlap=overlap, misfire="catch_up", misfire_count=10
        )
        stopped(schedule, hours=1)

        tick_all()

        assert states(schedule) == wanted, overlap


# ------------------------------------------------------------------ changes of the clock


@pytest.mark.parametrize(
    ("policies", "ticks"),
    [
        # On 2024-11-03 New York's clock showed 01:30 twice.
        ({"expression": "30 1 * * *"}, ["2024-11-03T05:30Z"]),
        ({"expression": "30 1 * * *", "ambiguous": "twice"}, ["2024-11-03T05:30Z", "2024-11-03T06:30Z"]),
        ({"expression": "*/30 1 * * *", "ambiguous": "once"}, ["2024-11-03T05:00Z", "2024-11-03T05:30Z"]),
        # On 2024-03-10 it did not show 02:30.
        ({"expression": "30 2 * * *", "day": datetime(2024, 3, 10, tzinfo=UTC)}, ["2024-03-10T07:00Z"]),
        (
            {"expression": "30 2 * * *", "day": datetime(2024, 3, 10, tzinfo=UTC), "nonexistent": "skip"},
            [],
        ),
    ],
)
def test_a_day_on_which_the_clock_is_changed_has_the_ticks_that_the_policies_say(policies, ticks):
    said = dict(policies)
    day = said.pop("day", datetime(2024, 11, 3, tzinfo=UTC))
    schedule = make(
        due=False, time_zone="America/New_York", misfire="catch_up", misfire_window_seconds=316_000_000.0,
        ends_at=day + timedelta(hours=20), **said,
    )  # fmt: skip
    set_row(schedule, watermark=day + timedelta(hours=4), next_run_at=day + timedelta(hours=5))

    tick_all()

    assert [f"{run.scheduled_for:%Y-%m-%dT%H:%MZ}" for run in runs(schedule)] == ticks
    assert row(schedule).next_run_at is None, "its end has passed"


# ------------------------------------------------------------------ zone data


def test_a_tick_that_was_planned_by_other_rules_is_planned_anew():
    """A government moves the clock: the row has an instant that is not two o'clock any more."""
    schedule = make(due=False, expression="0 2 * * *", time_zone="Africa/Johannesburg")
    wrong = now().replace(hour=1, minute=0, second=0, microsecond=0) + timedelta(days=1)
    set_row(schedule, next_run_at=wrong, zone_rules="of last year")
    same = make("same", due=False, time_zone="UTC", zone_rules=zones.load("UTC").fingerprint)
    before = row(same).next_run_at

    assert replan() == 1
    assert replan() == 0

    after = row(schedule)
    assert after.next_run_at.astimezone(UTC).hour == 0
    assert after.zone_rules == zones.load("Africa/Johannesburg").fingerprint
    assert row(same).next_run_at == before
    assert runs(schedule) == []


def test_a_tick_that_the_new_rules_put_into_the_past_is_due_at_once():
    schedule = make(expression=EVERY_MINUTE)
    stopped(schedule, minutes=5)
    set_row(schedule, next_run_at=now() + timedelta(hours=1), zone_rules="of last year")
    assert tick().seen == 0

    replan()
    tick()

    assert states(schedule) == ["missed", "created"]


def test_an_instant_that_the_rules_of_today_do_not_have_is_no_tick():
    """It came due before anybody had planned it anew."""
    schedule = make(due=False, expression="0 0 29 2 *", zone_rules="of last year")
    set_row(schedule, watermark=now() - timedelta(hours=1), next_run_at=now() - timedelta(seconds=5))

    tick()

    assert runs(schedule) == []
    after = row(schedule)
    assert (after.next_run_at.month, after.next_run_at.day) == (2, 29)
    assert after.zone_rules == zones.load("UTC").fingerprint


def test_a_zone_that_there_is_no_more_is_left_for_its_tick():
    schedule = make(due=False, time_zone="Mars/Base", zone_rules="x")

    assert replan() == 0
    assert row(schedule).enabled


# ------------------------------------------------------------------ the loop


@pytest.fixture
def loop(transactional_db):
    session = db.Session("default", purpose="schedule", statement_timeout="5s")
    yield Scheduling(holder=ADA, name="a", settings=settings(), session=session)
    session.drop()


def test_the_loop_waits_until_the_next_tick_and_not_longer(loop):
    schedule = make(due=False, zone_rules=zones.load("UTC").fingerprint)
    set_row(schedule, next_run_at=now() + timedelta(seconds=2))

    assert 1 < loop.step() < 2

    set_row(schedule, next_run_at=now() + timedelta(hours=3))
    loop._look_at = 0.0
    loop.leader.ask_at += 100
    assert 2.4 < loop.step() <= 2.5


def test_an_idle_loop_asks_little(loop):
    make(due=False)
    asked: list[str] = []
    loop.step()
    db.fault = lambda moment, name: asked.append(name) if moment == "before" else None
    try:
        wait = loop.step()
    finally:
        db.fault = None

    # It has looked already; the lease is renewed every LEADER_SECONDS / 4 at most.
    assert asked == []
    assert wait > 1
    loop._look_at = 0.0
    db.fault = lambda moment, name: asked.append(name) if moment == "before" else None
    try:
        loop.step()
    finally:
        db.fault = None
    assert asked == ["next_schedule"]


def test_a_row_that_breaks_its_page_is_told_and_avoided_and_the_others_are_created(loop, superuser, told):
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
        loop.step()
        assert (states(good), states(other), states(bad)) == (["created"], ["created"], [])
        failures = [keys for event, keys in told if event == "schedule.failed"]
        assert [keys["schedule"] for keys in failures] == ["bad"]
        loop._look_at = 0.0
        loop.step()
        assert len([event for event, _ in told if event == "schedule.failed"]) == 1, (
            "it is avoided for a while"
        )
        assert len(jobs()) == 2
    finally:
        superuser.execute("drop function public.no_run() cascade")
    loop._avoided.clear()
    loop._look_at = 0.0

    loop.step()

    assert states(bad) == ["created"]

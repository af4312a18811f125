"""What is created and what is missed of a schedule that was not looked at for a while."""

from __future__ import annotations

import time
import tracemalloc
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgbroker.errors import InvalidOption
from pgbroker.policy.cron import Cron, parse
from pgbroker.policy.misfire import GRACE, LONGEST_STOP, MOST_MAX, Misfire, Policy, Recovery, recover

SKIP, RUN_ONCE = Misfire(Policy.SKIP), Misfire(Policy.RUN_ONCE)
ALL = Misfire(Policy.CATCH_UP, most=MOST_MAX, window=LONGEST_STOP)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def created(recovery: Recovery) -> list[datetime]:
    return [tick.instant for tick in recovery.create]


def after_stop(cron: Cron, misfire: Misfire, last: str, now: str, *, limit: int = 1_000) -> Recovery:
    return recover(cron, misfire, watermark=at(last), now=at(now), limit=limit)


EVERY_5 = parse("*/5 * * * *", "UTC")


def test_skip_creates_nothing_that_is_late():
    recovery = after_stop(EVERY_5, SKIP, "2025-06-02T10:00Z", "2025-06-02T10:31Z")

    assert recovery == Recovery((), 6, at("2025-06-02T10:31Z"))


def test_run_once_creates_the_latest():
    recovery = after_stop(EVERY_5, RUN_ONCE, "2025-06-02T10:00Z", "2025-06-02T10:31Z")

    assert created(recovery) == [at("2025-06-02T10:30Z")]
    assert recovery.missed == 5


def test_run_once_is_the_default():
    assert Misfire() == RUN_ONCE


def test_catch_up_creates_all_oldest_first():
    recovery = after_stop(EVERY_5, ALL, "2025-06-02T10:00Z", "2025-06-02T10:31Z")

    assert created(recovery) == [at(f"2025-06-02T10:{minute:02}Z") for minute in (5, 10, 15, 20, 25, 30)]
    assert recovery.missed == 0


@pytest.mark.parametrize(
    ("misfire", "minutes"),
    [
        (Misfire(Policy.CATCH_UP, most=2), [25, 30]),
        (Misfire(Policy.CATCH_UP, most=1), [30]),
        (Misfire(Policy.CATCH_UP, window=timedelta(minutes=11)), [20, 25, 30]),
        (Misfire(Policy.CATCH_UP, window=timedelta(minutes=1)), [30]),
        (Misfire(Policy.CATCH_UP, window=timedelta(seconds=59)), []),
        (Misfire(Policy.CATCH_UP, most=2, window=timedelta(minutes=16)), [25, 30]),
    ],
)
def test_catch_up_keeps_to_its_count_and_its_window(misfire, minutes):
    recovery = after_stop(EVERY_5, misfire, "2025-06-02T10:00Z", "2025-06-02T10:31Z")

    assert created(recovery) == [at(f"2025-06-02T10:{minute}Z") for minute in minutes]
    assert recovery.missed == 6 - len(minutes)


@pytest.mark.parametrize(
    "misfire", [SKIP, RUN_ONCE, ALL, Misfire(Policy.CATCH_UP, window=timedelta(seconds=1))], ids=str
)
@pytest.mark.parametrize("late", [timedelta(0), timedelta(seconds=5), GRACE])
def test_what_is_on_time_is_created_by_every_policy(misfire, late):
    tick = at("2025-06-02T10:05Z")

    recovery = recover(EVERY_5, misfire, watermark=tick - timedelta(minutes=5), now=tick + late, limit=1_000)

    assert created(recovery) == [tick]
    assert recovery.missed == 0


def test_a_moment_after_the_grace_it_is_late():
    tick = at("2025-06-02T10:05Z")
    now = tick + GRACE + timedelta(microseconds=1)

    recovery = recover(EVERY_5, SKIP, watermark=tick - timedelta(minutes=5), now=now, limit=1)

    assert recovery == Recovery((), 1, now)


def test_before_the_first_tick_nothing_is_due_and_the_watermark_stays():
    recovery = after_stop(EVERY_5, RUN_ONCE, "2025-06-02T10:00Z", "2025-06-02T10:04:59.999999Z")

    assert recovery == Recovery((), 0, at("2025-06-02T10:00Z"))


def test_a_tick_is_created_once_whichever_process_asks():
    first = after_stop(EVERY_5, ALL, "2025-06-02T10:00Z", "2025-06-02T10:05Z")
    again = recover(EVERY_5, ALL, watermark=first.watermark, now=at("2025-06-02T10:05Z"), limit=1_000)

    assert created(first) == [at("2025-06-02T10:05Z")]
    assert again == Recovery((), 0, first.watermark)


def test_a_clock_that_was_set_back_creates_nothing_twice():
    recovery = after_stop(EVERY_5, ALL, "2025-06-02T10:30Z", "2025-06-02T10:06Z")

    assert recovery == Recovery((), 0, at("2025-06-02T10:30Z"))


def test_a_stop_over_a_gap_misses_no_hour_that_never_was():
    cron = parse("0 * * * *", "America/New_York")

    recovery = after_stop(cron, ALL, "2024-03-10T06:30Z", "2024-03-10T08:30Z")

    assert created(recovery) == [at("2024-03-10T07:00Z"), at("2024-03-10T08:00Z")]


def test_a_stop_over_a_repeated_hour_misses_one_run():
    cron = parse("30 1 * * *", "America/New_York")

    recovery = after_stop(cron, ALL, "2024-11-03T05:00Z", "2024-11-03T07:00Z")

    assert created(recovery) == [at("2024-11-03T05:30Z")]
    assert cron.first_after(recovery.watermark).instant == at("2024-11-04T06:30Z")


def test_ticks_of_a_pause_are_not_missed_when_its_end_is_the_watermark():
    recovery = after_stop(EVERY_5, ALL, "2025-06-02T10:31Z", "2025-06-02T10:34Z")

    assert recovery == Recovery((), 0, at("2025-06-02T10:31Z"))
    assert EVERY_5.first_after(recovery.watermark).instant == at("2025-06-02T10:35Z")


def test_a_schedule_moved_to_another_zone_goes_on_from_its_change():
    cron = parse("0 9 * * *", "America/New_York")

    recovery = after_stop(cron, RUN_ONCE, "2025-06-02T10:02Z", "2025-06-02T10:02Z")

    assert created(recovery) == []
    assert cron.first_after(recovery.watermark).instant == at("2025-06-02T13:00Z")


def test_ticks_outside_start_and_end_are_neither_created_nor_missed():
    cron = parse("*/5 * * * *", "UTC", start=at("2025-06-02T10:10Z"), end=at("2025-06-02T10:20Z"))

    recovery = after_stop(cron, RUN_ONCE, "2025-06-02T10:00Z", "2025-06-02T12:00Z")

    assert created(recovery) == [at("2025-06-02T10:20Z")]
    assert recovery.missed == 2


def test_what_is_older_than_ten_years_is_not_counted():
    recovery = after_stop(EVERY_5, RUN_ONCE, "1900-01-01T00:00Z", "2025-06-02T10:31Z")

    assert recovery.missed == LONGEST_STOP.days * 288 - 1


def test_a_limit_cuts_the_work_and_loses_nothing():
    now = at("2025-06-02T10:31Z")
    watermark, found, missed = at("2025-06-02T09:00Z"), [], 0
    misfire = Misfire(Policy.CATCH_UP, most=14)
    for more in (True, True, False):
        recovery = recover(EVERY_5, misfire, watermark=watermark, now=now, limit=5)
        assert recovery.more is more
        assert len(recovery.create) == (5 if more else 4)
        watermark = recovery.watermark
        found += created(recovery)
        missed += recovery.missed

    assert found == created(recover(EVERY_5, misfire, watermark=at("2025-06-02T09:00Z"), now=now, limit=14))
    assert missed == 18 - 14
    assert watermark == now


EXPRESSIONS = ["* * * * *", "*/5 * * * *", "30 1 * * *", "0 0-23 * * *", "0,30 1,2 * * 0"]


@given(
    text=st.sampled_from(EXPRESSIONS),
    zone=st.sampled_from(["America/New_York", "Australia/Lord_Howe", "UTC"]),
    misfire=st.builds(
        Misfire,
        st.sampled_from(list(Policy)),
        st.integers(1, 50),
        st.timedeltas(timedelta(seconds=1), timedelta(days=3)),
    ),
    stops=st.lists(st.timedeltas(timedelta(0), timedelta(days=1)), min_size=1, max_size=8),
    limit=st.integers(1, 20),
)
@settings(max_examples=60, deadline=None)
def test_over_any_stops_every_tick_is_created_or_missed_and_none_twice(text, zone, misfire, stops, limit):
    cron = parse(text, zone)
    start = now = watermark = at("2024-11-02T12:00Z")
    found, missed = [], 0
    for stop in stops:
        now += stop
        more = True
        while more:
            recovery = recover(cron, misfire, watermark=watermark, now=now, limit=limit)
            assert len(recovery.create) <= limit
            assert watermark <= recovery.watermark <= now
            found += created(recovery)
            missed += recovery.missed
            watermark, more = recovery.watermark, recovery.more

    every = [tick.instant for tick in cron.between(start, now)]
    assert found == sorted(set(found))
    assert set(found) <= set(every)
    assert len(found) + missed == len(every)
    if misfire.policy is Policy.RUN_ONCE:
        assert len(found) <= len(stops)
        assert not every or found[-1] == every[-1]


@pytest.mark.parametrize(
    ("misfire", "number"),
    [(SKIP, 1), (RUN_ONCE, 1), (Misfire(Policy.CATCH_UP), 100), (ALL, MOST_MAX)],
    ids=["skip", "run_once", "catch_up", "catch_up all"],
)
def test_ninety_days_of_minutes_are_decided_upon_soon_and_in_little_memory(misfire, number):
    cron = parse("* * * * *", "America/New_York")
    now = at("2025-06-02T00:00:30Z")
    asked = {"watermark": now - timedelta(days=90), "now": now, "limit": 500}
    started = time.process_time()
    recovery = recover(cron, misfire, **asked)
    took = time.process_time() - started
    tracemalloc.start()
    try:
        recover(cron, misfire, **asked)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(recovery.create) == min(number, 500)
    assert recovery.missed == 129_600 - number
    assert took < 0.2
    assert peak < 300_000  # five hundred ticks take a third of that, all of them thirty times as much


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"most": 0}, "misfire.most"),
        ({"most": MOST_MAX + 1}, "misfire.most"),
        ({"window": timedelta(0)}, "misfire.window"),
        ({"window": LONGEST_STOP + timedelta(seconds=1)}, "misfire.window"),
    ],
)
def test_a_bound_that_is_none_is_refused(options, field):
    with pytest.raises(InvalidOption) as caught:
        Misfire(Policy.CATCH_UP, **options)

    assert caught.value.field == field

"""Ticks and refusals that are known, most of them because a scheduler somewhere had them wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest

from pgbroker.errors import CronNeverFires, InvalidCron, InvalidOption
from pgbroker.policy.cron import Repeat, parse


def lines(name: str) -> list[list]:
    return [json.loads(line) for line in (Path(__file__).parent / name).read_text().splitlines()]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


TICKS = lines("known_ticks.jsonl")
REFUSALS = lines("known_refusals.jsonl")


@pytest.mark.parametrize(
    ("text", "zone", "after", "ticks"), TICKS, ids=[f"{t[0]} {t[1]} {t[2]}" for t in TICKS]
)
def test_the_next_ticks_are_the_known_ones(text, zone, after, ticks):
    cron = parse(text, zone)
    expected = [at(each) for each in ticks]

    assert [tick.instant for tick in islice(cron.after(at(after)), len(ticks))] == expected
    # One by one, each asked for with the answer before, as a scheduler does.
    asked = at(after)
    for each in expected:
        asked = cron.first_after(asked).instant
        assert asked == each
    # And back again.
    back = cron.before(expected[-1] + timedelta(seconds=1))
    assert [tick.instant for tick in islice(back, len(ticks))] == expected[::-1]


@pytest.mark.parametrize(
    ("text", "code", "field", "position"), REFUSALS, ids=[ascii(refusal[0]) for refusal in REFUSALS]
)
def test_a_refusal_tells_what_is_wrong_where_and_what_to_do(text, code, field, position):
    with pytest.raises(InvalidCron) as caught:
        parse(text, "UTC")

    error = caught.value
    assert (error.code, error.field, error.position) == (code, field, position)
    assert error.trouble in error.message
    assert error.message.endswith(error.cure)
    assert f"(column {position})" in error.message
    assert error.cure.endswith(".")


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("0 22-2 * * *", "Write it as two: 22-23,0-2."),
        ("0 0 * * fri-mon", "Write it as two: 5-6,0-1."),
        ("0 0 * * fri-sun", "Write 5-7: 7 is Sunday too."),
        ("0 0 * * monday", "Write mon."),
        ("0 24 * * *", "Hours are 0 to 23, and midnight is 0."),
        ("0 0 * * 5L", "Write it in front: L5 is the last Friday, and 0 or 7 is Sunday."),
        ("0 * * * * *", "There are no fields for seconds or years: leave them out."),
    ],
)
def test_a_cure_can_be_followed(text, cure):
    with pytest.raises(InvalidCron) as caught:
        parse(text, "UTC")

    assert caught.value.cure == cure


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        (" @Daily ", "0 0 * * *"),
        ("0 0 * * 6-7", "0 0 * * 0,6"),
        ("0 0 * * 0-7", "0 0 * * 0-6"),
        ("0 0 * * 1-7/2", "0 0 * * 0,1,3,5"),
        ("0 0 * * 1/2", "0 0 * * 1,3,5"),
        ("0 0 * * 7/2", "0 0 * * 0"),
        ("0 0 * * 7#2", "0 0 * * sun#2"),
        ("0 0 * * Lfri", "0 0 * * l5"),
        ("000 00 01 01 *", "0 0 1 jan *"),
        ("59/15 * * * *", "59 * * * *"),
        ("*/1 * * * *", "* * * * *"),
    ],
)
def test_two_spellings_mean_the_same(one, other):
    one, other = parse(one, "UTC").expression, parse(other, "UTC").expression

    assert (one.times, one.days, one.starred) == (other.times, other.days, other.starred)


def test_days_that_no_month_has_are_never_a_schedule():
    with pytest.raises(CronNeverFires) as caught:
        parse("0 0 31 2 *", "UTC")

    assert caught.value.code == "cron_never_fires"


# On every second Sunday of March New York's clock skips 02:30.
ALWAYS_IN_THE_GAP = [
    ("30 2 * 3 0#2", {"nonexistent": "skip"}),
    ("30 2 8-14 3 */7", {"nonexistent": "skip"}),
    ("*/30 2 * 3 0#2", {}),
]


@pytest.mark.parametrize(("text", "policies"), ALWAYS_IN_THE_GAP)
def test_times_that_the_clock_always_skips_are_no_schedule_from_now_on(text, policies):
    cron = parse(text, "America/New_York", **policies)
    now = at("2026-11-29T00:00Z")

    assert cron.first_after(now) is None
    with pytest.raises(CronNeverFires, match="never fires in America/New_York after 2026-11-29"):
        cron.must_fire_after(now)
    # It did, while the clocks were changed in April.
    assert cron.last_before(now).wall == datetime(2006, 3, 12, 2, 30)  # noqa: DTZ001 - a wall has no zone


def test_what_fires_again_is_a_schedule():
    tick = parse("0 0 29 2 *", "UTC").must_fire_after(at("2096-03-01T00:00Z"))

    assert tick.instant == at("2104-02-29T00:00Z")


def test_a_moved_tick_tells_the_time_that_was_skipped():
    before, moved, after = islice(
        parse("45,30 2 * * *", "America/New_York").after(at("2024-03-09T07:40Z")), 3
    )

    assert before == (at("2024-03-09T07:45Z"), naive("2024-03-09T02:45"), Repeat.NONE, None)
    assert moved == (
        at("2024-03-10T07:00Z"),
        naive("2024-03-10T03:00"),
        Repeat.NONE,
        naive("2024-03-10T02:30"),
    )
    assert after == (at("2024-03-11T06:30Z"), naive("2024-03-11T02:30"), Repeat.NONE, None)


def test_a_repeated_hour_is_told_from_its_repetition():
    ticks = parse("30 1 * * *", "America/New_York", ambiguous="twice").after(at("2024-11-02T12:00Z"))

    assert [(tick.instant, tick.repeat) for tick in islice(ticks, 3)] == [
        (at("2024-11-03T05:30Z"), Repeat.FIRST),
        (at("2024-11-03T06:30Z"), Repeat.AGAIN),
        (at("2024-11-04T06:30Z"), Repeat.NONE),
    ]


def test_ticks_lie_between_start_and_end_both_included():
    start, end = at("2026-11-29T10:05Z"), at("2026-11-29T10:15Z")
    cron = parse("*/5 * * * *", "UTC", start=start, end=end)

    inside = [start, at("2026-11-29T10:10Z"), end]
    assert [tick.instant for tick in cron.after(at("2020-01-01T00:00Z"))] == inside
    assert [tick.instant for tick in cron.before(at("2030-01-01T00:00Z"))] == inside[::-1]
    assert cron.count(at("2020-01-01T00:00Z"), at("2030-01-01T00:00Z")) == 3
    assert cron.first_after(end) is None
    assert cron.last_before(start) is None
    with pytest.raises(CronNeverFires):
        cron.must_fire_after(end)


def test_bounds_need_not_be_whole_minutes():
    start, end = at("2026-11-29T10:05:00.000001Z"), at("2026-11-29T10:14:59.999999Z")

    ticks = parse("*/5 * * * *", "UTC", start=start, end=end).after(at("2020-01-01T00:00Z"))

    assert [tick.instant for tick in ticks] == [at("2026-11-29T10:10Z")]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"ambiguous": "never"}, "ambiguous"),
        ({"nonexistent": "once"}, "nonexistent"),
        ({"start": datetime(2026, 1, 1)}, "start"),  # noqa: DTZ001
        ({"end": datetime(2026, 1, 1)}, "end"),  # noqa: DTZ001
        ({"start": datetime(2026, 1, 2, tzinfo=UTC), "end": datetime(2026, 1, 1, tzinfo=UTC)}, "end"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(options, field):
    with pytest.raises(InvalidOption) as caught:
        parse("* * * * *", "UTC", **options)

    assert caught.value.field == field


def test_microseconds_before_and_after_a_tick_decide():
    cron = parse("*/5 * * * *", "UTC")
    tick, moment = at("2026-11-29T10:05Z"), timedelta(microseconds=1)

    assert cron.first_after(tick - moment).instant == tick
    assert cron.first_after(tick).instant == at("2026-11-29T10:10Z")
    assert cron.last_before(tick + moment).instant == tick
    assert cron.last_before(tick).instant == at("2026-11-29T10:00Z")
    assert [each.instant for each in cron.between(tick - moment, tick)] == [tick]
    assert list(cron.between(tick, tick)) == []


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"])
def test_the_calendar_has_ends_and_no_error_lies_beyond_them(zone):
    cron = parse("0 0 29 2 *", zone)
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

    assert cron.first_after(last) is None
    assert cron.last_before(first) is None
    assert cron.last_before(last).wall.year == 9996
    assert cron.first_after(first).wall.year == 4
    assert parse("* * * * *", zone).last_before(last).wall.year >= 9998


def naive(text: str) -> datetime:
    return datetime.fromisoformat(text)

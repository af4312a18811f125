"""The ticks are those that a look at every single minute finds, wherever and however clocks were changed."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pgbroker.errors import CronNeverFires
from pgbroker.policy.cron import Ambiguous, Cron, Nonexistent, Repeat, Tick, parse, zones
from tests.policy.cron import brute
from tests.policy.cron.brute import MINUTE, Meaning
from tests.policy.cron.expressions import expressions

# Where clocks were changed, and how: within that day of UTC.
QUIET = [("Africa/Johannesburg", "2026-11-29"), ("UTC", "2024-02-28")]
CHANGES = [
    ("America/New_York", "2024-03-10"),
    ("America/New_York", "2024-11-03"),
    ("Europe/Berlin", "2025-03-30"),
    ("Europe/London", "2024-10-27"),
    ("Europe/Dublin", "2025-10-26"),  # to its winter time, which the zone data calls negative
    ("Europe/Dublin", "2026-03-29"),
    ("Australia/Lord_Howe", "2024-10-05"),  # half an hour
    ("Australia/Lord_Howe", "2025-04-05"),
    ("Pacific/Chatham", "2024-04-06"),  # at 03:45 on the wall
    ("Antarctica/Troll", "2024-03-31"),  # two hours
    ("Antarctica/Casey", "2010-03-04"),  # three hours back
    ("Antarctica/Casey", "2020-10-03"),  # three hours ahead, one minute past midnight
    ("Antarctica/Vostok", "1994-01-31"),  # seven hours back
    ("Antarctica/Vostok", "1994-11-01"),
    ("Pacific/Apia", "2011-12-30"),  # the day that did not exist
    ("Pacific/Kwajalein", "1993-08-21"),
    ("Africa/Cairo", "2024-04-25"),  # at midnight
    ("America/Havana", "2024-11-03"),
    ("America/Santiago", "2024-09-08"),
    ("America/Nuuk", "2024-03-30"),
    ("America/St_Johns", "2011-03-13"),  # one minute past midnight
    ("Asia/Almaty", "2024-02-29"),  # for good
    ("Asia/Pyongyang", "2018-05-04"),
    ("America/Caracas", "2016-05-01"),
    ("Asia/Kathmandu", "1985-12-31"),  # a quarter of an hour
    ("Africa/Casablanca", "2025-02-23"),  # for Ramadan
    ("Africa/Casablanca", "2025-04-06"),
    ("Africa/Juba", "2021-01-31"),
    ("Europe/Volgograd", "2020-12-27"),
    ("America/Mexico_City", "2022-10-30"),
    *QUIET,
]

changes = st.sampled_from(CHANGES).map(
    lambda change: (change[0], datetime.fromisoformat(change[1] + "T00:00Z"))
)
policies = st.fixed_dictionaries(
    {"ambiguous": st.sampled_from(list(Ambiguous)), "nonexistent": st.sampled_from(list(Nonexistent))}
)
EARLIER, LATER = timedelta(hours=12), timedelta(hours=36)


def read(text: str, zone: str, **policies: str) -> Cron:
    """Parse what was drawn, but for what never fires."""
    try:
        return parse(text, zone, **policies)
    except CronNeverFires:
        assume(False)
        raise


def check(cron: Cron, meaning: Meaning, begin: datetime, policies: dict[str, str]) -> None:
    """Compare everything that a Cron answers about two days around an instant."""
    after, until = begin - EARLIER, begin + LATER
    expected = brute.ticks(meaning, cron.zone.rules, after=after, until=until, **policies)

    ticks = list(cron.between(after, until))

    assert [tick.instant for tick in ticks] == expected
    assert cron.count(after, until) == len(expected)
    assert list(cron.between(after, until, skip=len(ticks) // 2)) == ticks[len(ticks) // 2 :]
    back = list(islice(cron.before(until + MINUTE / 2), len(ticks)))
    assert back == ticks[::-1]
    assert list(islice(cron.after(after), len(ticks))) == ticks
    for tick in ticks:
        check_wall(cron, tick, begin)


def check_wall(cron: Cron, tick: Tick, begin: datetime) -> None:
    """Compare what a tick tells about the wall."""
    shown = brute.walk(cron.zone.rules, begin - EARLIER, begin + LATER).shown
    assert tick.wall == tick.instant.astimezone(cron.zone.rules).replace(tzinfo=None, fold=0)
    if tick.skipped is not None:
        assert tick.skipped not in shown
        assert tick.skipped < tick.wall
        return
    place = shown[tick.wall].index(tick.instant)
    expected = Repeat.NONE if len(shown[tick.wall]) == 1 else Repeat.AGAIN if place else Repeat.FIRST
    assert tick.repeat == expected


@given(drawn=expressions(), change=changes, policies=policies)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_ticks_around_a_change_of_the_clock_are_those_of_a_walk(drawn, change, policies):
    text, meaning = drawn
    zone, begin = change

    check(read(text, zone, **policies), meaning, begin, policies)


def of_times(minutes: Iterable[int], hours: Iterable[int], *, starred: bool) -> Meaning:
    """Make the meaning of an expression that fires on every day."""
    return Meaning(
        minutes=frozenset(minutes),
        hours=frozenset(hours),
        days=frozenset(range(1, 32)),
        last_day=False,
        months=frozenset(range(1, 13)),
        weekdays=frozenset(range(7)),
        nth=frozenset(),
        starred_time=starred,
        starred_day=True,
    )


# Around a change these fire where others are asleep.
BUSY = [
    ("*/5 * * * *", of_times(range(0, 60, 5), range(24), starred=True)),
    ("45 */2 * * *", of_times([45], range(0, 24, 2), starred=True)),
    ("7-59/9 0-23 * * *", of_times(range(7, 60, 9), range(24), starred=False)),
    ("30 13,17 * * *", of_times([30], [13, 17], starred=False)),
    ("0,1,30 0,1,2,3,4,22,23 * * *", of_times([0, 1, 30], [0, 1, 2, 3, 4, 22, 23], starred=False)),
]
RULES = [("auto", "auto"), ("once", "skip"), ("twice", "next_valid"), ("once", "next_valid")]


@pytest.mark.parametrize(("zone", "day"), CHANGES, ids=str)
def test_busy_expressions_around_a_change_are_those_of_a_walk(zone, day):
    begin = datetime.fromisoformat(day + "T00:00Z")
    after, until = begin - EARLIER, begin + LATER
    walked = brute.walk(parse("* * * * *", zone).zone.rules, after, until)
    assert [change for change in walked.changes if after < change.instant < until] or (zone, day) in QUIET
    for text, meaning in BUSY:
        for ambiguous, nonexistent in RULES:
            policies = {"ambiguous": ambiguous, "nonexistent": nonexistent}
            cron = parse(text, zone, **policies)
            expected = brute.ticks(meaning, cron.zone.rules, after=after, until=until, **policies)
            assert [tick.instant for tick in cron.between(after, until)] == expected, (text, policies)


@cache
def made_up(changes: tuple[tuple[int, int], ...]) -> zones.Zone:
    """Make a zone whose offset becomes so many minutes at so many hours after a fixed instant."""
    # The first one is what the clock has before.
    offsets = [0, *sorted({minutes for _, minutes in changes} - {0})]
    origin = int(datetime(2026, 6, 15, tzinfo=UTC).timestamp())
    instants = [origin + hours * 3600 for hours, _ in changes]
    counts = struct.pack(">6l", 0, 0, 0, len(instants), len(offsets), 4)
    body = struct.pack(f">{len(instants)}q", *instants)
    body += bytes(offsets.index(minutes) for _, minutes in changes)
    body += b"".join(struct.pack(">lbb", minutes * 60, 0, 0) for minutes in offsets) + b"ZZZ\0"
    head = b"TZif2" + bytes(15)
    file = (
        head + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lbb", 0, 0, 0) + b"ZZZ\0" + head + counts
    )
    return zones.Zone("made up", ZoneInfo.from_file(BytesIO(file + body + b"\n\n")), "")


TROUBLED = {
    "a day and two hours back": ((0, 840), (24, -720)),
    "a day and two hours ahead": ((0, -720), (24, 840)),
    "ahead, then back to what was skipped": ((22, 180), (23, -60)),
    "ahead, back before it, and ahead over the same": ((17, 120), (18, -120), (19, 0)),
    "back, then ahead over what was shown before": ((18, -180), (19, 60)),
    "back twice to the same": ((0, 840), (18, 240), (24, -300)),
    "back, ahead and back": ((12, -60), (18, 0), (19, -60)),
    "ahead twice in two hours": ((13, 60), (15, 180)),
    "ahead too far, then back, then ahead": ((12, 300), (18, -60), (24, 90)),
}


@pytest.mark.parametrize("changes", TROUBLED.values(), ids=TROUBLED.keys())
def test_clocks_that_are_changed_twice_within_hours_are_read_as_in_a_walk(changes):
    zone, begin = made_up(changes), datetime(2026, 6, 15, 18, tzinfo=UTC)
    after, until = begin - EARLIER, begin + LATER
    for text, meaning in BUSY:
        for ambiguous, nonexistent in RULES:
            policies = {"ambiguous": ambiguous, "nonexistent": nonexistent}
            whole = parse(text, "UTC", **policies)
            cron = Cron(whole.expression, zone, whole.once_within, whole.moved_within)
            expected = brute.ticks(meaning, zone.rules, after=after, until=until, **policies)
            ticks = list(cron.between(after, until))
            assert [tick.instant for tick in ticks] == expected, (text, policies)
            for tick in ticks:
                check_wall(cron, tick, begin)


@st.composite
def troubled(draw: st.DrawFn) -> zones.Zone:
    """Draw a zone whose clock is changed several times within days, which no real one does."""
    hours = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True))
    offsets = draw(
        st.lists(
            st.sampled_from([-720, -300, -120, -60, -30, 0, 30, 60, 90, 180, 240, 840]),
            min_size=4,
            max_size=4,
        )
    )
    times = (6 * each for each in sorted(hours))
    return made_up(tuple(zip(times, offsets[: len(hours)], strict=True)))


@given(drawn=expressions(), zone=troubled(), policies=policies)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_a_clock_that_is_changed_again_and_again_makes_no_tick_lost_or_doubled(drawn, zone, policies):
    text, meaning = drawn
    whole = read(text, "UTC", **policies)
    cron = Cron(whole.expression, zone, whole.once_within, whole.moved_within)

    check(cron, meaning, datetime(2026, 6, 15, 18, tzinfo=UTC), policies)


@given(drawn=expressions(), data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_ticks_in_any_zone_at_any_time_are_those_of_a_walk(drawn, data):
    text, meaning = drawn
    zone = data.draw(st.sampled_from(sorted(zones.names())))
    hours = data.draw(st.integers(0, 24 * 366 * 90))
    begin = datetime(1974, 1, 1, tzinfo=UTC) + timedelta(hours=hours)

    check(read(text, zone), meaning, begin, {})


@pytest.mark.slow
@given(drawn=expressions(), change=changes, policies=policies, data=st.data())
@settings(max_examples=4_000, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_many_more_ticks_are_those_of_a_walk(drawn, change, policies, data):
    text, meaning = drawn
    zone, begin = change
    if data.draw(st.booleans()):
        zone = data.draw(st.sampled_from(sorted(zones.names())))
        begin = datetime(1974, 1, 1, tzinfo=UTC) + timedelta(hours=data.draw(st.integers(0, 24 * 366 * 90)))

    check(read(text, zone, **policies), meaning, begin, policies)

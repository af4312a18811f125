"""Whatever is typed, the answer comes soon and in little memory."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgbroker.errors import InvalidCron
from pgbroker.policy.cron import Cron, clock, parse
from pgbroker.policy.cron.expression import LENGTH_MAX
from tests.policy.cron.expressions import expressions

NOW = datetime(2026, 11, 29, 3, 34, tzinfo=UTC)
# The promise is 100 ms. Time of this process, since other processes must not make a test fail.
SECONDS_MAX = 0.1


def seconds(work: Callable[[], object]) -> float:
    """
    Return how long a piece of work takes when nothing is remembered of the clocks.

    The best of three, unless one is good enough: a collection of a test run's garbage takes longer than all else.
    """
    took = []
    while len(took) < 3 and min(took, default=SECONDS_MAX) >= SECONDS_MAX:
        for cache in (clock.readings, clock.around, clock._pieces):
            cache.cache_clear()
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return min(took)


def refused(text: object) -> InvalidCron:
    with pytest.raises(InvalidCron) as caught:
        parse(text, "UTC")
    return caught.value


def attempt(text: str) -> Cron | InvalidCron:
    """Return what a text is read as, or why it is not."""
    try:
        return parse(text, "UTC")
    except InvalidCron as error:
        return error


HOSTILE = {
    "8,000 groups": ",".join(["0-59"] * 8_000) + " * * * *",
    "a huge range": "0-99999999 * * * *",
    "a huge step": "*/" + "9" * 200 + " * * * 13",
    "a huge number": "9" * 240 + " * * * *",
    "a megabyte": "*" * 1_000_000,
    "a megabyte of fields": "* " * 500_000,
    "many fields": "* " * 127,
    "many commas": "," * 255,
    "many values": ",".join("0" for _ in range(120)) + " * * * 8",
    "many slashes": "*" + "/1" * 120 + " * * * *",
    "many dashes": "1" + "-1" * 120 + " * * * *",
    "many names": ",".join(["mon"] * 60) + " * * * *",
    "parentheses": "H(" * 120 + " * * * *",
    "question marks": "?" * 200 + " * * * *",
    "tildes": "~" * 200 + " * * * *",
    "a list of almost tildes": "x" * 240 + " * * * *",
    "bytes": b"* * * * *",
    "nothing": None,
    "a list": ["*", "*", "*", "*", "*"],
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_hostile_is_refused_soon_in_little_memory_and_with_few_words(text):
    tracemalloc.start()
    try:
        took = seconds(lambda: refused(text))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert took < SECONDS_MAX
    assert peak < 1_000_000
    assert len(refused(text).message) < 700


def test_the_length_is_looked_at_first():
    longest = "0 0 * * *".ljust(LENGTH_MAX)

    assert LENGTH_MAX == 255
    assert parse(longest, "UTC").expression.text == longest
    assert "more than 255" in refused(longest + " ").message


@given(
    st.text(st.sampled_from("*/-,#?LWHR@ \t0123456789") | st.sampled_from("adefjnorstuv\n\0é~"), max_size=40)
)
@settings(max_examples=400, deadline=None)
def test_any_text_is_read_or_refused_and_nothing_else(text):
    cron = attempt(text)

    if isinstance(cron, InvalidCron):
        assert 1 <= cron.position <= len(text) + 1
        assert cron.trouble
        assert cron.cure
    else:
        tick = cron.must_fire_after(NOW)
        assert tick.instant > NOW
        assert cron.first_after(tick.instant - timedelta(minutes=1)) == tick


@given(drawn=expressions(), blanks=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_what_is_drawn_from_the_dialect_is_read(drawn, blanks):
    text, meaning = drawn
    cron = attempt(" " * blanks + text)

    if isinstance(cron, InvalidCron):
        assert cron.code == "cron_never_fires"
        return
    expression = cron.expression
    assert set(expression.times.hours) == meaning.hours
    assert set(expression.times.minutes) == meaning.minutes
    assert expression.starred == meaning.starred_time


# What takes long: the next tick is far away, or there is none and half a century is searched.
SLOW = [
    ("0 0 29 2 *", "UTC", {}),
    ("0 0 */14 2 1#5", "UTC", {}),
    ("0 0 * 2 1#5", "Pacific/Apia", {}),
    ("0 0 L 2 L1", "Europe/Dublin", {}),
    ("30 2 * 3 0#2", "America/New_York", {"nonexistent": "skip"}),
    ("*/30 2 * 3 0#2", "America/New_York", {}),
    ("* 1 * 3 L0", "Europe/London", {"nonexistent": "skip"}),
    ("59 2 8-14 3 */7", "America/Toronto", {"nonexistent": "skip"}),
    ("0 0 1 1 *", "Antarctica/Troll", {"ambiguous": "once"}),
    ("* * * * *", "Africa/Casablanca", {"ambiguous": "once", "nonexistent": "next_valid"}),
]


@pytest.mark.parametrize(("text", "zone", "policies"), SLOW)
@pytest.mark.parametrize("year", [1990, 2026, 2072, 9990])
def test_every_answer_comes_within_a_tenth_of_a_second(text, zone, policies, year):
    cron = parse(text, zone, **policies)
    asked = datetime(year, 2, 27, 23, 59, 59, tzinfo=UTC)

    assert seconds(lambda: cron.first_after(asked)) < SECONDS_MAX
    assert seconds(lambda: cron.last_before(asked)) < SECONDS_MAX
    assert seconds(lambda: cron.count(asked - timedelta(days=366), asked)) < SECONDS_MAX


@pytest.mark.slow
@given(
    drawn=expressions(),
    zone=st.sampled_from(["America/New_York", "Europe/London", "Australia/Lord_Howe", "Africa/Casablanca"]),
    ambiguous=st.sampled_from(["auto", "once", "twice"]),
    nonexistent=st.sampled_from(["auto", "skip", "next_valid"]),
    asked=st.datetimes(datetime(1975, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)
@settings(max_examples=2_000, deadline=None)
def test_no_expression_is_found_that_takes_longer(drawn, zone, ambiguous, nonexistent, asked):
    try:
        cron = parse(drawn[0], zone, ambiguous=ambiguous, nonexistent=nonexistent)
    except InvalidCron:
        return

    assert seconds(lambda: cron.first_after(asked)) < SECONDS_MAX
    assert seconds(lambda: cron.last_before(asked)) < SECONDS_MAX


def test_a_walk_over_years_of_minutes_needs_no_more_memory_than_one_over_hours():
    def peak(cron: Cron, days: int) -> int:
        tracemalloc.start()
        try:
            walked = sum(1 for _ in cron.between(NOW, NOW + timedelta(days=days)))
            assert walked == days * 1_440
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    cron = parse("* * * * *", "America/New_York")
    cron.count(NOW, NOW + timedelta(days=30))  # what is remembered of the clock is there

    assert peak(cron, 20) < 2 * peak(cron, 1) + 10_000

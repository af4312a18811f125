"""The calendar: which days match, however far apart."""

from __future__ import annotations

from datetime import date, timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from pgbroker.policy.cron.days import Days
from pgbroker.policy.cron.fields import LAST
from tests.policy.cron.brute import Meaning

months = st.frozensets(st.integers(1, 12), min_size=1)
numbers = st.frozensets(st.integers(1, 31)) | st.just(frozenset(range(1, 32)))
weekdays = st.frozensets(st.integers(0, 6)) | st.just(frozenset(range(7)))
nth = st.frozensets(st.tuples(st.integers(0, 6), st.sampled_from([1, 2, 3, 4, 5, -1])), max_size=3)


@given(
    months=months,
    numbers=numbers,
    last=st.booleans(),
    weekdays=weekdays,
    nth=nth,
    both=st.booleans(),
    start=st.dates(date(1950, 1, 1), date(2120, 1, 1)),
)
@settings(max_examples=60, deadline=None)
def test_days_are_those_that_a_look_at_each_day_finds(months, numbers, last, weekdays, nth, both, start):
    days = Days(
        months=tuple(sorted(months)),
        days=numbers,
        last=last,
        weekdays=weekdays,
        nth=frozenset((weekday, LAST if number < 0 else number) for weekday, number in nth),
        both=both,
    )
    meaning = Meaning(
        frozenset(), frozenset(), numbers, last, months, weekdays, nth, starred_time=False, starred_day=both
    )
    span = [start + timedelta(days=count) for count in range(400)]
    expected = [day for day in span if meaning.fires_on(day)]

    assert [day for day in span if days.match(day.toordinal())] == expected
    assert forward(days, span[0], span[-1]) == expected
    assert back(days, span[0], span[-1]) == expected[::-1]
    if expected:
        assert not days.none
    if days.every:
        assert len(expected) == len(span)


def forward(days: Days, first: date, last: date) -> list[date]:
    found, ordinal = [], first.toordinal()
    while (each := days.on_or_after(ordinal)) is not None and each <= last.toordinal():
        found.append(date.fromordinal(each))
        ordinal = each + 1
    return found


def back(days: Days, first: date, last: date) -> list[date]:
    found, ordinal = [], last.toordinal()
    while (each := days.on_or_before(ordinal)) is not None and each >= first.toordinal():
        found.append(date.fromordinal(each))
        ordinal = each - 1
    return found


def test_the_rarest_day_is_found_over_four_hundred_years_both_ways():
    """29 February is a Monday 15 times in 400 years, and up to 40 years pass in between."""
    days = Days((2,), frozenset({29}), last=False, weekdays=frozenset({1}), nth=frozenset(), both=True)
    first, last = date(1901, 1, 1), date(2301, 1, 1)
    expected = [
        date(year, 2, 29)
        for year in range(1901, 2301)
        if ((year % 4 == 0 and year % 100 != 0) or year % 400 == 0) and date(year, 2, 29).weekday() == 0
    ]

    assert len(expected) == 15
    assert max(later.year - day.year for day, later in pairwise(expected)) == 40
    assert forward(days, first, last) == expected
    assert back(days, first, last) == expected[::-1]


def test_days_that_never_come_are_known_without_a_search():
    def never(months, numbers=frozenset(), weekdays=frozenset(), nth=frozenset(), both=False, last=False):
        return Days(months, frozenset(numbers), last, frozenset(weekdays), frozenset(nth), both).none

    assert never((2,), numbers={30, 31})
    assert never((2, 4, 6, 9, 11), numbers={31})
    assert never((2,), numbers={28}, nth={(1, 5)}, both=True)
    assert never(tuple(range(1, 13)), numbers={1}, nth={(1, 2)}, both=True)
    assert never(tuple(range(1, 13)), nth={(1, 3)}, last=True, both=True)
    assert not never((2,), numbers={29})
    assert not never((2,), nth={(1, 5)})
    assert not never((2,), numbers={30}, weekdays={1})
    assert not never((2,), numbers={29}, nth={(1, 5)}, both=True)

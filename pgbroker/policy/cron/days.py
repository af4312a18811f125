"""The days on which an expression fires: a calendar of dates, which knows no time zone. Pure."""

from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date

from pgbroker.policy.cron.fields import LAST

_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
# Weekdays and leap years repeat after 400 years, and no pair of them is apart for more than 40:
# 29 February 2072 is a Monday, and the next one that is comes in 2112.
_LONGEST_WAIT = 41
_FIRST_YEAR, _LAST_YEAR = 1, 9999


@dataclass(frozen=True, slots=True)
class Days:
    """
    Which days match. A day of the month matches by its number or as the *last* one; a weekday (0 is Sunday)
    always or as the *nth* of its month. With *both*, a day has to match in both ways, otherwise in either.
    *every*: all days do.
    """

    months: tuple[int, ...]
    days: frozenset[int]
    last: bool
    weekdays: frozenset[int]
    nth: frozenset[tuple[int, int]]
    both: bool
    every: bool = field(init=False, compare=False)
    # A month is one of 28 shapes: how long it is, and with which weekday it begins.
    _shapes: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        ways = (len(self.days) == 31, len(self.weekdays) == 7)
        every = len(self.months) == 12 and (all(ways) if self.both else any(ways))
        object.__setattr__(self, "every", every)

    @property
    def none(self) -> bool:
        """Whether no day ever matches, as on 30 February. Every shape of a month comes again and again."""
        lengths = {
            length for month in self.months for length in ((28, 29) if month == 2 else (_LENGTHS[month - 1],))
        }
        return not any(self._of_shape(length, first) for length in lengths for first in range(7))

    def match(self, ordinal: int) -> bool:
        """Tell whether the day of that number (`date.toordinal`) matches."""
        if self.every:
            return True
        day = date.fromordinal(ordinal)
        return day.month in self.months and day.day in self._of_month(day.year, day.month)

    def on_or_after(self, ordinal: int) -> int | None:
        """Return the first day from that one on that matches, or None when the calendar ends before."""
        if self.every:
            return ordinal
        start = date.fromordinal(ordinal)
        for year in range(start.year, min(start.year + _LONGEST_WAIT, _LAST_YEAR) + 1):
            for month in self.months:
                if (year, month) < (start.year, start.month):
                    continue
                days = self._of_month(year, month)
                index = bisect_left(days, start.day) if (year, month) == (start.year, start.month) else 0
                if index < len(days):
                    return date(year, month, days[index]).toordinal()
        return None

    def on_or_before(self, ordinal: int) -> int | None:
        """Return the last day up to that one that matches, or None when the calendar begins after."""
        if self.every:
            return ordinal
        start = date.fromordinal(ordinal)
        for year in range(start.year, max(start.year - _LONGEST_WAIT, _FIRST_YEAR) - 1, -1):
            for month in reversed(self.months):
                if (year, month) > (start.year, start.month):
                    continue
                days = self._of_month(year, month)
                count = (
                    bisect_right(days, start.day) if (year, month) == (start.year, start.month) else len(days)
                )
                if count:
                    return date(year, month, days[count - 1]).toordinal()
        return None

    def _of_month(self, year: int, month: int) -> tuple[int, ...]:
        length = 29 if month == 2 and isleap(year) else _LENGTHS[month - 1]
        return self._of_shape(length, date(year, month, 1).isoweekday() % 7)

    def _of_shape(self, length: int, first: int) -> tuple[int, ...]:
        """Return the days that match in a month so long that begins with the weekday *first*."""
        known = self._shapes.get((length, first))
        if known is None:
            known = self._shapes[length, first] = tuple(self._matching(length, first))
        return known

    def _matching(self, length: int, first: int) -> Iterable[int]:
        for day in range(1, length + 1):
            weekday = (first + day - 1) % 7
            by_number = day in self.days or (self.last and day == length)
            by_weekday = (
                weekday in self.weekdays
                or (weekday, (day + 6) // 7) in self.nth
                or (day + 7 > length and (weekday, LAST) in self.nth)
            )
            if (by_number and by_weekday) if self.both else (by_number or by_weekday):
                yield day

"""
When an expression fires, found out the slow way: each minute of UTC is looked at, as a clock on the wall shows it.

Shares nothing with the code under test but the zone's rules. The expression comes as sets, not as text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
# Beyond it there is nothing that bears on the times within.
MARGIN = timedelta(days=2)


@dataclass(frozen=True)
class Meaning:
    """What an expression means, in sets; *nth* has pairs of a weekday and 1 to 5, or -1 for the last."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    last_day: bool
    months: frozenset[int]
    weekdays: frozenset[int]
    nth: frozenset[tuple[int, int]]
    starred_time: bool
    starred_day: bool

    def fires_on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        same_month = [
            each
            for each in (day + timedelta(days=count) for count in range(-31, 32))
            if (each.year, each.month) == (day.year, day.month)
        ]
        alike = [each for each in same_month if each.weekday() == day.weekday()]
        weekday = day.isoweekday() % 7
        by_number = day.day in self.days or (self.last_day and day == same_month[-1])
        by_weekday = weekday in self.weekdays or any(
            each == weekday
            and len(alike) >= abs(number)
            and alike[number - 1 if number > 0 else number] == day
            for each, number in self.nth
        )
        return (by_number and by_weekday) if self.starred_day else (by_number or by_weekday)

    def fires_at(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and self.fires_on(wall.date())


@dataclass(frozen=True)
class Change:
    """The clock goes from one time on the wall to another, by *jump*."""

    instant: datetime
    before: datetime
    after: datetime

    @property
    def jump(self) -> timedelta:
        return self.after - self.before


@dataclass(frozen=True)
class Walk:
    """A stretch of time, minute by minute: when the wall showed what, and where it was changed."""

    shown: dict[datetime, list[datetime]]
    changes: list[Change]

    def fired(
        self, fires: Callable[[datetime], bool], *, starred: bool, ambiguous: str, nonexistent: str
    ) -> set[datetime]:
        found = set()
        for wall, instants in self.shown.items():
            if fires(wall):
                found.update(self._of_shown(instants, starred, ambiguous))
        moved = set()
        for wall, change in self._never_shown():
            moves = nonexistent == "next_valid" or (
                nonexistent == "auto" and not starred and change.jump <= 3 * HOUR
            )
            if moves and wall not in moved and fires(wall):
                moved.add(wall)
                found.add(change.instant)
        return found

    def _of_shown(self, instants: list[datetime], starred: bool, ambiguous: str) -> Iterable[datetime]:
        first, *again = instants
        yield first
        for instant in again:
            if ambiguous == "twice" or (ambiguous == "auto" and starred):
                yield instant
            elif ambiguous == "auto":
                # It counts as new if every showing before it lies behind a correction of the clock.
                earlier = max(each for each in instants if each < instant)
                between = [change for change in self.changes if earlier < change.instant <= instant]
                if any(abs(change.jump) > 3 * HOUR for change in between):
                    yield instant

    def _never_shown(self) -> Iterable[tuple[datetime, Change]]:
        for change in self.changes:
            wall = change.before
            while wall < change.after:
                if wall not in self.shown:
                    yield wall, change
                wall += MINUTE


@lru_cache(maxsize=64)
def walk(rules: ZoneInfo, begin: datetime, end: datetime) -> Walk:
    """Look at every minute between, and at some around it."""
    shown = defaultdict(list)
    changes = []
    instant = (begin - MARGIN).replace(second=0, microsecond=0)
    following = None
    while instant <= end + MARGIN:
        wall = instant.astimezone(rules).replace(tzinfo=None, fold=0)
        assert wall.second == 0, "an offset with seconds: choose another time"
        if following is not None and wall != following:
            changes.append(Change(instant, following, wall))
        shown[wall].append(instant)
        following = wall + MINUTE
        instant += MINUTE
    return Walk(dict(shown), changes)


def ticks(
    meaning: Meaning,
    rules: ZoneInfo,
    *,
    after: datetime,
    until: datetime,
    ambiguous: str = "auto",
    nonexistent: str = "auto",
) -> list[datetime]:
    """List the ticks later than *after* up to *until*."""
    walked = walk(rules, after, until)
    days: dict[date, bool] = {}

    def fires(wall: datetime) -> bool:
        if wall.minute not in meaning.minutes or wall.hour not in meaning.hours:
            return False
        if wall.date() not in days:
            days[wall.date()] = meaning.fires_on(wall.date())
        return days[wall.date()]

    found = walked.fired(fires, starred=meaning.starred_time, ambiguous=ambiguous, nonexistent=nonexistent)
    return sorted(instant.astimezone(UTC) for instant in found if after < instant <= until)

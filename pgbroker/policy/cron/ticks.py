"""The ticks of a schedule: the instants at which its expression fires in its zone. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from pgbroker.errors import CronNeverFires
from pgbroker.policy.cron import clock
from pgbroker.policy.cron.clock import DAY, EPOCH, SECOND, WALL_EPOCH, Gap, Repeat
from pgbroker.policy.cron.expression import Expression
from pgbroker.policy.cron.times import MIDNIGHT, Times
from pgbroker.policy.cron.zones import Zone

# How far is looked for a tick. Without a zone the longest wait is 40 years, for a 29 February that is a
# Monday; in a zone a tick may fall into a gap and be left out.
HORIZON_DAYS = 50 * 366
_EPOCH_ORDINAL = EPOCH.toordinal()
_EARLIEST, _LATEST = clock.FIRST_DAY * DAY, (clock.LAST_DAY + 1) * DAY - 1


class Tick(NamedTuple):
    """
    An instant in UTC, and what the clock on the wall shows then, without a zone.

    *repeat* tells whether the clock shows that time twice. *skipped* is None, but for a tick that was moved to
    the end of a gap: there it is the time that the schedule asked for and the clock never showed.
    """

    instant: datetime
    wall: datetime
    repeat: Repeat = Repeat.NONE
    skipped: datetime | None = None


class _Stretch(NamedTuple):
    """Ticks of one day on the wall: the times *first* to before *beyond*, counted from the instant *base*."""

    base: int
    times: Times
    first: int
    beyond: int
    offset: int
    changed: bool
    skipped: int | None = None

    def within(self, first: int, last: int) -> tuple[int, int]:
        """Return which of the times lie from the instant *first* to the instant *last*: from one to before another."""
        begin = max(self.first, self.times.before(first - self.base))
        return begin, max(begin, min(self.beyond, self.times.before(last + 1 - self.base)))


@dataclass(frozen=True, slots=True)
class Cron:
    """
    An expression in a zone, from *start* to *end*, both included. Made by `parse`.

    What a change of the clock makes the wall show twice fires once, and what it skips is moved, if the change
    is of at most *once_within* and *moved_within* seconds.
    """

    expression: Expression
    zone: Zone
    once_within: int
    moved_within: int
    start: datetime | None = None
    end: datetime | None = None

    def after(self, instant: datetime) -> Iterator[Tick]:
        """Yield the ticks later than *instant*, in order. Ends when none comes for fifty years."""
        return self._forward(*self._bounded(_floor(instant) + 1, None))

    def before(self, instant: datetime) -> Iterator[Tick]:
        """Yield the ticks earlier than *instant*, the latest first. Ends when none comes for fifty years."""
        return self._back(*self._bounded(None, _ceiling(instant) - 1))

    def first_after(self, instant: datetime) -> Tick | None:
        """Return the first tick later than *instant*; None when there is none, at least for fifty years."""
        return next(self.after(instant), None)

    def last_before(self, instant: datetime) -> Tick | None:
        """Return the last tick earlier than *instant*; None when there is none, at least for fifty years."""
        return next(self.before(instant), None)

    def between(self, after: datetime, until: datetime, *, skip: int = 0) -> Iterator[Tick]:
        """Yield the ticks later than *after* up to *until*, in order and one by one, without the first *skip*."""
        return self._forward(*self._bounded(_floor(after) + 1, _floor(until)), skip)

    def count(self, after: datetime, until: datetime) -> int:
        """Count the ticks later than *after* up to *until*. The work grows with the days, not with the ticks."""
        first, last = self._bounded(_floor(after) + 1, _floor(until))
        counted = 0
        for day in self._days_from(first // DAY):
            if day > last // DAY:
                break
            for stretch in self._stretches(day):
                begin, beyond = stretch.within(first, last)
                counted += beyond - begin
        return counted

    def must_fire_after(self, instant: datetime) -> Tick:
        """
        Return the first tick later than *instant*, or raise CronNeverFires.

        For whoever saves a schedule. `parse` refuses days that no month has; this also finds a time that the
        clock skips whenever its day comes, and an end that has passed.
        """
        tick = self.first_after(instant)
        if tick is None:
            trouble = f"never fires in {self.zone.key} after {instant:%Y-%m-%d %H:%M}"
            cure = "Choose other times, another end, or another rule for times that the clock skips."
            raise CronNeverFires(self.expression.text, "expression", 1, trouble, cure)
        return tick

    def _forward(self, first: int, last: int, skip: int = 0) -> Iterator[Tick]:
        fired = first // DAY
        for day in self._days_from(first // DAY):
            if day - fired > HORIZON_DAYS or day > last // DAY:
                return
            for stretch in self._stretches(day):
                fired = day
                begin, beyond = stretch.within(first, last)
                skipped = min(skip, beyond - begin)
                skip -= skipped
                for index in range(begin + skipped, beyond):
                    yield self._tick(stretch, index)

    def _back(self, first: int, last: int) -> Iterator[Tick]:
        fired = last // DAY
        for day in self._days_back_from(last // DAY):
            if fired - day > HORIZON_DAYS or day < first // DAY:
                return
            for stretch in reversed(list(self._stretches(day))):
                fired = day
                begin, beyond = stretch.within(first, last)
                for index in range(beyond - 1, begin - 1, -1):
                    yield self._tick(stretch, index)

    def _bounded(self, first: int | None, last: int | None) -> tuple[int, int]:
        """Return the first and the last second that may hold a tick."""
        first = _EARLIEST if first is None else max(first, _EARLIEST)
        last = _LATEST if last is None else min(last, _LATEST)
        if self.start is not None:
            first = max(first, _ceiling(self.start))
        if self.end is not None:
            last = min(last, _floor(self.end))
        return first, last

    # What a day of UTC has on the wall lies within the same day, the one before and the one after.

    def _days_from(self, day: int) -> Iterator[int]:
        """Yield the days of UTC that may hold ticks, from that one on."""
        while day <= clock.LAST_DAY:
            wall_day = self.expression.days.on_or_after(day - 1 + _EPOCH_ORDINAL)
            if wall_day is None:
                return
            day = max(day, wall_day - _EPOCH_ORDINAL - 1)
            yield day
            day += 1

    def _days_back_from(self, day: int) -> Iterator[int]:
        """Yield the days of UTC that may hold ticks, from that one back."""
        while day >= clock.FIRST_DAY:
            wall_day = self.expression.days.on_or_before(day + 1 + _EPOCH_ORDINAL)
            if wall_day is None:
                return
            day = min(day, wall_day - _EPOCH_ORDINAL + 1)
            yield day
            day -= 1

    def _stretches(self, day: int) -> Iterator[_Stretch]:
        """Yield the ticks of a day of UTC, in order."""
        moved: _Stretch | None = None
        for reading in clock.readings(self.zone, day, self.once_within, self.moved_within):
            if isinstance(reading, Gap):
                if moved is not None:
                    yield moved
                    moved = None
                skipped = next((each for span in reading.missing for each in self._matching(*span)), None)
                if skipped is not None:
                    wall = skipped[0] + self.expression.times.at(skipped[1])
                    moved = _Stretch(reading.at, MIDNIGHT, 0, 1, reading.offset, False, wall)
                continue
            for midnight, first, beyond in self._matching(reading.begin, reading.end):
                base = midnight - reading.offset
                times = self.expression.times
                # A tick may stand where the gap ends already, and one is enough.
                if moved is not None and base + times.at(first) != moved.base:
                    yield moved
                moved = None
                yield _Stretch(base, times, first, beyond, reading.offset, reading.changed)
        if moved is not None:
            yield moved

    def _matching(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield what matches from *begin* to before *end* on the wall: a midnight, and times of that day."""
        times, days = self.expression.times, self.expression.days
        for day in range(begin // DAY, (end - 1) // DAY + 1):
            midnight = day * DAY
            first, beyond = times.before(begin - midnight), times.before(end - midnight)
            if first < beyond and days.match(day + _EPOCH_ORDINAL):
                yield midnight, first, beyond

    def _tick(self, stretch: _Stretch, index: int) -> Tick:
        instant = stretch.base + stretch.times.at(index)
        return Tick(
            EPOCH + timedelta(seconds=instant),
            WALL_EPOCH + timedelta(seconds=instant + stretch.offset),
            clock.repeat(self.zone, instant, stretch.offset) if stretch.changed else Repeat.NONE,
            None if stretch.skipped is None else WALL_EPOCH + timedelta(seconds=stretch.skipped),
        )


def _floor(instant: datetime) -> int:
    """Return the last whole second that is not later."""
    return (instant - EPOCH) // SECOND


def _ceiling(instant: datetime) -> int:
    """Return the first whole second that is not earlier."""
    return -((EPOCH - instant) // SECOND)

"""
What the clock on the wall shows in a zone, and which of it counts where the clock was changed.

It knows no expression. Instants are whole seconds since 1970 in UTC, days are 86,400 of them. A time on the
wall is the instant plus the zone's offset, as a number too: so the wall shows a time twice, or never.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from pgbroker.policy.cron.zones import Zone

DAY = 86_400
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WALL_EPOCH = EPOCH.replace(tzinfo=None)
SECOND = timedelta(seconds=1)
# Days on which the calendar has room around them.
FIRST_DAY = (datetime(2, 1, 1, tzinfo=UTC) - EPOCH).days
LAST_DAY = (datetime(9998, 12, 31, tzinfo=UTC) - EPOCH).days
# Offsets are below a day, so two instants at which the wall shows the same are less than two days apart.
_AROUND = 2
# How often a day's offset is looked at. Two changes within one such step that undo each other are not seen;
# in the zone data no two changes of a zone are less than 167 hours apart.
_STEP = 6 * 3_600

Span = tuple[int, int]


class Repeat(StrEnum):
    """Whether the wall shows a time more than once, and which one this is."""

    NONE = ""
    FIRST = "first"
    AGAIN = "again"


class Piece(NamedTuple):
    """Instants from *begin* to before *end*, with one offset in seconds."""

    begin: int
    end: int
    offset: int

    @property
    def wall(self) -> Span:
        return self.begin + self.offset, self.end + self.offset


class Reading(NamedTuple):
    """A stretch of times on the wall that count, and their offset; *changed*: the clock is, within two days."""

    begin: int
    end: int
    offset: int
    changed: bool


class Gap(NamedTuple):
    """Times that the wall never shows, and the instant *at* which it would have done: they count there."""

    at: int
    offset: int
    missing: tuple[Span, ...]


@lru_cache(maxsize=4_096)
def readings(zone: Zone, day: int, once_within: int, moved_within: int) -> tuple[Reading | Gap, ...]:
    """
    Return what counts in a day of UTC, in order.

    A time that was shown before counts again, unless every change in between was of at most *once_within*
    seconds. Times that are never shown count at the end of their gap, if that has at most *moved_within*.
    """
    near = around(zone, day)
    begin, end = day * DAY, (day + 1) * DAY
    if len(near) == 1:
        offset = near[0].offset
        return (Reading(begin + offset, end + offset, offset, False),)
    found: list[Reading | Gap] = []
    for index, piece in enumerate(near):
        if index and begin <= piece.begin < end and (gap := _gap(near, index, moved_within)):
            found.append(gap)
        first, last = max(begin, piece.begin), min(end, piece.end)
        if first < last:
            wall = (first + piece.offset, last + piece.offset)
            left = _without(wall, _shown_before(near, index, once_within))
            found.extend(Reading(*span, piece.offset, True) for span in left)
    return tuple(found)


def repeat(zone: Zone, instant: int, offset: int) -> Repeat:
    """Tell whether the wall shows at another instant what it shows at this one."""
    wall = instant + offset
    others = [
        wall - piece.offset
        for piece in around(zone, instant // DAY)
        if piece.offset != offset and piece.begin <= wall - piece.offset < piece.end
    ]
    if not others:
        return Repeat.NONE
    return Repeat.AGAIN if min(others) < instant else Repeat.FIRST


@lru_cache(maxsize=4_096)
def around(zone: Zone, day: int) -> tuple[Piece, ...]:
    """Return the pieces of a day of UTC and of two days before and after it, the equal ones joined."""
    joined: list[Piece] = []
    for each in range(day - _AROUND, day + _AROUND + 1):
        for piece in _pieces(zone, each):
            if joined and joined[-1].offset == piece.offset:
                joined[-1] = joined[-1]._replace(end=piece.end)
            else:
                joined.append(piece)
    return tuple(joined)


@lru_cache(maxsize=4_096)
def _pieces(zone: Zone, day: int) -> tuple[Piece, ...]:
    """Return the pieces of a day of UTC: one, or as many more as the offset changes."""
    begin, end = day * DAY, (day + 1) * DAY
    starts = [(begin, _offset(zone, begin))]
    for look in (*range(begin + _STEP, end, _STEP), end - 1):
        since = look - _STEP
        while (now := _offset(zone, look)) != starts[-1][1]:
            low, high = since, look
            while high - low > 1:
                middle = (low + high) // 2
                if _offset(zone, middle) == starts[-1][1]:
                    low = middle
                else:
                    high = middle
            starts.append((high, now if high == look else _offset(zone, high)))
            since = high
    ends = [start for start, _ in starts[1:]] + [end]
    return tuple(Piece(start, stop, offset) for (start, offset), stop in zip(starts, ends, strict=True))


def _offset(zone: Zone, instant: int) -> int:
    # Not utcoffset(): that goes from the wall to the offset, and a fold tells two of three showings apart.
    wall = (EPOCH + timedelta(seconds=instant)).astimezone(zone.rules).replace(tzinfo=None)
    return (wall - WALL_EPOCH) // SECOND - instant


def _shown_before(near: tuple[Piece, ...], index: int, within: int) -> Iterator[Span]:
    """Return what the pieces before that one showed, back to a change of more than *within* seconds."""
    for before in range(index - 1, -1, -1):
        if abs(near[before + 1].offset - near[before].offset) > within:
            return
        yield near[before].wall


def _gap(near: tuple[Piece, ...], index: int, within: int) -> Gap | None:
    """Return the gap before a piece, less what another piece shows and what an earlier gap has."""
    missing = _skipped(near, index, within)
    if missing is None:
        return None
    earlier = (_skipped(near, each, within) for each in range(1, index))
    shown = [piece.wall for piece in near]
    left = _without(missing, [*shown, *(span for span in earlier if span)])
    return Gap(near[index].begin, near[index].offset, tuple(left)) if left else None


def _skipped(near: tuple[Piece, ...], index: int, within: int) -> Span | None:
    before, after = near[index - 1], near[index]
    if not 0 < after.offset - before.offset <= within:
        return None
    return before.end + before.offset, after.begin + after.offset


def _without(span: Span, holes: Iterable[Span]) -> list[Span]:
    """Return what is left of a span without the holes, in order."""
    left = [span]
    for begin, end in holes:
        left = [
            part
            for first, last in left
            for part in ((first, min(last, begin)), (max(first, end), last))
            if part[0] < part[1]
        ]
    return left

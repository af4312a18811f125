"""How people read and write times of a schedule: on the clock of its zone and in UTC, with what changes of it do."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from typing import NamedTuple

from pgbroker.errors import InvalidOption, InvalidTimeZone
from pgbroker.policy.cron import Repeat, Tick
from pgbroker.policy.cron.zones import checked, load

# What each kind of drift means, to whoever may do something about it.
DRIFT = {
    "missing": "declared in code, and not stored yet",
    "changed": "the code says something new, which is not stored yet",
    "edited": "somebody changed it since the code was stored",
    "gone": "the code declares it no longer, and it still fires",
    "taken": "the code declares one of this name, which was made by hand or by another project",
    "invalid": "what the code says cannot be stored",
    "held": "somebody's open transaction holds its row, which was not written",
}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class ShownTick(NamedTuple):
    """A tick to be read: the clock of its zone and its distance from UTC, and in *note* what the clock does then."""

    instant: datetime
    local: str
    utc: str
    note: str


def show_ticks(ticks: Sequence[Tick]) -> list[ShownTick]:
    """Write ticks that follow each other; the first one behind a change of the clock says so."""
    shown: list[ShownTick] = []
    before: timedelta | None = None
    for tick in ticks:
        ahead = tick.wall - tick.instant.astimezone(UTC).replace(tzinfo=None)
        notes = [_of_the_clock(tick)]
        if before is not None and ahead != before:
            notes.append(f"the clock has changed from UTC{_signed(before)} to UTC{_signed(ahead)}")
        before = ahead
        shown.append(
            ShownTick(
                tick.instant,
                f"{_written(tick.wall)} {_signed(ahead)}",
                _written(tick.instant.astimezone(UTC)),
                "; ".join(filter(None, notes)),
            )
        )
    return shown


def _of_the_clock(tick: Tick) -> str:
    if tick.skipped is not None:
        return f"moved: the clock never shows {tick.skipped:%H:%M}"
    match tick.repeat:
        case Repeat.FIRST:
            return "the first of two: the clock shows this time again"
        case Repeat.AGAIN:
            return "the second of two: the clock has shown this time before"
    return ""


def local_time(instant: datetime | None, zone: str) -> str | None:
    """Write an instant on the clock of *zone*; in UTC for a zone that a row has and nobody knows."""
    if instant is None:
        return None
    try:
        there = instant.astimezone(load(checked(zone)).rules)
    except InvalidTimeZone:
        there = instant.astimezone(UTC)
    ahead = there.utcoffset()
    assert ahead is not None
    return f"{_written(there)} {_signed(ahead)}"


def utc_time(instant: datetime | None) -> str | None:
    """Write an instant in UTC."""
    return None if instant is None else _written(instant.astimezone(UTC))


def read_moment(field: str, text: str, zone: str, *, is_end: bool) -> datetime:
    """
    Read the begin or the end of a range of ticks, both included, as somebody types it; raises `InvalidOption`.

    Without a distance from UTC it is on the clock of *zone*; a date alone is its first or its last moment there. A
    time that the clock shows twice is the first one for a begin, and the second one for an end.
    """
    written = text.strip()
    try:
        read = datetime.fromisoformat(written)
    except ValueError:
        raise InvalidOption(
            field,
            f"is {text!r}, which is no time",
            "Give a date such as 2026-03-29, or 2026-03-29T02:30, or 2026-03-29T02:30+02:00.",
        ) from None
    if _DATE.fullmatch(written) and is_end:
        read = datetime.combine(read.date(), time.max)
    if read.tzinfo is None:
        read = read.replace(tzinfo=load(checked(zone)).rules, fold=int(is_end))
    try:
        return read.astimezone(UTC)
    except OverflowError:
        raise InvalidOption(field, f"is {text!r}, too far away", "Give a time of these centuries.") from None


def _written(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _signed(ahead: timedelta) -> str:
    """Write a distance from UTC: `+02:00`, with its seconds where a zone of old had any."""
    seconds = int(ahead.total_seconds())
    sign, seconds = "-" if seconds < 0 else "+", abs(seconds)
    hours, rest = divmod(seconds, 3600)
    minutes, left = divmod(rest, 60)
    return f"{sign}{hours:02}:{minutes:02}" + (f":{left:02}" if left else "")

"""How broker_schedules reads the range of a backfill, and writes what became of it."""

from collections.abc import Mapping
from typing import Any

from pgbroker.errors import InvalidOption
from pgbroker.schedules import operate
from pgbroker.schedules.shown import read_moment


def range_of(asked: Mapping[str, Any], line: operate.ScheduleLine) -> tuple[Any, Any]:
    """Read both ends on the clock of the schedule's zone; without an end it is now."""
    start = read_moment("--from", asked["start"], line.time_zone, is_end=False)
    if asked["end"] is None:
        return start, line.now
    return start, read_moment("--to", asked["end"], line.time_zone, is_end=True)


def as_typed(error: InvalidOption) -> InvalidOption:
    """Name a field as the command calls it."""
    return InvalidOption(
        {"start": "--from", "end": "--to"}.get(error.field, error.field), error.trouble, error.cure
    )


def of_range(counts: Mapping[str, Any]) -> str:
    """Say how many of how many ticks of which schedule."""
    ticks = f"{counts['ticks']:,} tick{'' if counts['ticks'] == 1 else 's'}"
    return f"{counts['to_create']:,} of {ticks} of {counts['name']!r}"

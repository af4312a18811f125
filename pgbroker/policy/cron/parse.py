"""Read what a schedule says into a Cron that knows its ticks. Pure."""

from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

from pgbroker.errors import InvalidOption
from pgbroker.policy.cron import expression, zones
from pgbroker.policy.cron.changes import Ambiguous, Nonexistent
from pgbroker.policy.cron.ticks import Cron

_Choice = TypeVar("_Choice", bound=StrEnum)


def parse(
    text: str,
    zone: str,
    *,
    ambiguous: str = "auto",
    nonexistent: str = "auto",
    start: datetime | None = None,
    end: datetime | None = None,
) -> Cron:
    """
    Read a cron expression for a time zone; its ticks are from *start* to *end*, both included.

    Raises InvalidCron or CronNeverFires for the expression, InvalidTimeZone for the zone, InvalidOption for
    the rest. What was read is remembered, so this may be called for every tick.
    """
    chosen = (_chosen(Ambiguous, "ambiguous", ambiguous), _chosen(Nonexistent, "nonexistent", nonexistent))
    for name, bound in (("start", start), ("end", end)):
        if bound is not None and bound.tzinfo is None:
            raise InvalidOption(
                name, f"is {bound.isoformat()}, without a time zone", "Give an aware datetime."
            )
    if start is not None and end is not None and end < start:
        raise InvalidOption("end", f"is {end.isoformat()}, before the start", "Give one that is later.")
    # Looked at before it is looked up: what is too long is not kept, and what is no text cannot be.
    cron = _parsed(expression.checked(text), zones.checked(zone), *chosen)
    if start is None and end is None:
        return cron
    return Cron(cron.expression, cron.zone, cron.once_within, cron.moved_within, start, end)


@lru_cache(maxsize=4_096)
def _parsed(text: str, zone: str, ambiguous: Ambiguous, nonexistent: Nonexistent) -> Cron:
    read = expression.read(text)
    return Cron(
        read,
        zones.load(zone),
        ambiguous.once_within(starred=read.starred),
        nonexistent.moved_within(starred=read.starred),
    )


def _chosen(choices: type[_Choice], name: str, value: str) -> _Choice:
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(choices)
        raise InvalidOption(name, f"is {value!r}, which is no choice", f"Use one of {known}.") from None

"""What to do about the ticks of a schedule that are seen late, after a stop of the scheduler. Pure."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice

from pgbroker.errors import InvalidOption
from pgbroker.policy.cron import Cron, Tick

# A tick seen later than that has misfired. Longer than a leader's take-over, shorter than the shortest period.
GRACE = timedelta(seconds=30)
MOST_MAX = 10_000
# Ticks that are older are neither created nor counted.
LONGEST_STOP = timedelta(days=3_660)
_MOMENT = timedelta(microseconds=1)


class Policy(StrEnum):
    """Which of the ticks that were missed are made up for."""

    SKIP = "skip"
    RUN_ONCE = "run_once"
    CATCH_UP = "catch_up"


@dataclass(frozen=True, slots=True)
class Misfire:
    """A policy; *most* and *window* bound what CATCH_UP makes up for: the latest so many, not older than that."""

    policy: Policy = Policy.RUN_ONCE
    most: int = 100
    window: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        if not 1 <= self.most <= MOST_MAX:
            raise InvalidOption("misfire.most", f"is {self.most!r}", f"Give 1 to {MOST_MAX:,}.")
        if not timedelta(0) < self.window <= LONGEST_STOP:
            cure = f"Give more than nothing and at most {LONGEST_STOP.days:,} days."
            raise InvalidOption("misfire.window", f"is {self.window}", cure)


@dataclass(frozen=True, slots=True)
class Recovery:
    """
    What is due of a schedule.

    *create* has the ticks to create, in order. *missed* counts those that will never be, and *gap* is the first and the
    last of them. Every tick up to *watermark* has been decided upon. With *more*, the limit was reached: ask again from
    that watermark.
    """

    create: tuple[Tick, ...]
    missed: int
    watermark: datetime
    more: bool = False
    gap: tuple[datetime, datetime] | None = field(default=None, compare=False)


def recover(
    cron: Cron,
    misfire: Misfire,
    *,
    watermark: datetime,
    now: datetime,
    limit: int,
    grace: timedelta = GRACE,
) -> Recovery:
    """
    Decide about the ticks after *watermark* up to *now*, both by the database's clock; at most *limit* are created.

    A tick that is at most *grace* late is on time. SKIP creates those alone, RUN_ONCE the latest tick, be it
    late or not, and CATCH_UP the latest ones within its bounds. After a pause or a change of the schedule the
    caller gives the instant of its end as the watermark, so that nothing from before is missed.

    The work grows with the days since the watermark, not with the ticks.
    """
    assert limit >= 1
    assert timedelta(0) <= grace <= timedelta(hours=1)
    oldest = max(watermark, now - LONGEST_STOP)
    due = cron.count(oldest, now)
    if not due:
        return Recovery((), 0, watermark)
    match misfire.policy:
        case Policy.SKIP:
            since, most = max(oldest, now - grace - _MOMENT), MOST_MAX
        case Policy.RUN_ONCE:
            since, most = oldest, 1
        case Policy.CATCH_UP:
            # What is on time is not made up for, and runs however short the window is.
            since, most = max(oldest, now - max(misfire.window, grace) - _MOMENT), misfire.most
    within = due if since == oldest else cron.count(since, now)
    chosen = min(within, most)
    create = tuple(islice(cron.between(since, now, skip=within - chosen), limit))
    more = chosen > limit
    missed = due - chosen
    return Recovery(
        create,
        missed,
        create[-1].instant if more else now,
        more,
        _gap(cron, oldest, now, missed) if missed else None,
    )


def _gap(cron: Cron, oldest: datetime, now: datetime, missed: int) -> tuple[datetime, datetime]:
    """Return the first and the last tick of those that are missed, which are the oldest."""
    first, last = cron.first_after(oldest), next(cron.between(oldest, now, skip=missed - 1))
    assert first is not None
    return first.instant, last.instant

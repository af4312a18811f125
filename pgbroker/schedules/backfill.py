"""Make up for ticks of the past, as far back as somebody asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import transaction

from pgbroker.errors import InvalidOption
from pgbroker.lifecycle.dispatch import Occurrence
from pgbroker.lifecycle.schedule import ScheduleLine, list_schedule_runs
from pgbroker.policy.cron import Cron, Tick
from pgbroker.policy.values import instant, whole
from pgbroker.schedules.definition import Definition
from pgbroker.schedules.held import create, held
from pgbroker.schedules.look import ScheduleKey, alias_of, as_tenant_of, get_schedule

# Ticks that one call makes up for, and those of one transaction.
MOST_BACKFILLED, BACKFILL_PAGE = 10_000, 500
_MOMENT = timedelta(microseconds=1)


class BackfillTick(NamedTuple):
    """A tick of the past, and what is known of it: None, or the state of its run; *job_id* once it is created."""

    tick: Tick
    known: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """
    What a backfill did, or would do: *ticks* are all of the range, *create* those that were not created yet.

    Of these *created* were, *failed* could not be; both are empty after a dry run.
    """

    ticks: Sequence[BackfillTick]
    create: Sequence[datetime]
    created: Sequence[Occurrence] = ()
    failed: Sequence[Occurrence] = ()


def backfill(
    schedule: ScheduleKey,
    *,
    start: datetime,
    end: datetime,
    dry_run: bool,
    limit: int = MOST_BACKFILLED,
    using: str | None = None,
) -> Backfill:
    """
    Create the occurrences from *start* to *end*, both included, that were not created: missed, skipped or failed ones.

    In pages of a transaction each, so that it may be stopped and called again: none is created twice. They start at
    once, beside each other and what runs. Raises `InvalidOption` for a range that goes into the future, has more than
    *limit* ticks, or some whose history has been let go of. With *dry_run* nothing is changed.
    """
    alias = alias_of(using)
    line = get_schedule(schedule, using=alias)
    whole("limit", limit, 1, MOST_BACKFILLED)
    first, last = instant("start", start), instant("end", end)
    if first > line.now:
        raise InvalidOption(
            "start", f"is {first.isoformat()}, in the future", "What is to come comes by itself."
        )
    if last < first:
        raise InvalidOption("end", f"is {last.isoformat()}, before the start", "Give one that is later.")
    if last > line.now:
        raise InvalidOption(
            "end", f"is {last.isoformat()}, in the future", "What is to come comes by itself."
        )
    cron = Definition.of(line).cron
    _refuse_forgotten(line, cron, first, last)
    with as_tenant_of(line):
        ticks = _ticks_of_range(line, cron, first, last, limit, alias)
        wanted = [each.tick.instant for each in ticks if each.known not in ("created", "buffered")]
        if dry_run:
            return Backfill(ticks=ticks, create=wanted)
        made: list[Occurrence] = []
        for at in range(0, len(wanted), BACKFILL_PAGE):
            with transaction.atomic(using=alias):
                due = held(line.id, using=alias)
                # Somebody may have let go of its history since it was read; now nobody can.
                _refuse_forgotten(get_schedule(line.id, using=alias), cron, wanted[at], last)
                made += create(due, "backfill", wanted[at : at + BACKFILL_PAGE], using=alias)
    return Backfill(
        ticks=ticks,
        create=wanted,
        created=[each for each in made if each.state == "created"],
        failed=[each for each in made if each.state == "failed"],
    )


def _refuse_forgotten(line: ScheduleLine, cron: Cron, first: datetime, last: datetime) -> None:
    """Raise `InvalidOption` for a range with ticks whose history has been let go of: they may have been created."""
    until = line.forgotten_until
    if until is not None and cron.count(first - _MOMENT, min(last, until)):
        raise InvalidOption(
            "start",
            f"is {first.isoformat()}, and of ticks until {until.isoformat()} it is no longer known whether they were "
            "created",
            "Give a later one.",
        )


def _ticks_of_range(
    line: ScheduleLine, cron: Cron, first: datetime, last: datetime, limit: int, alias: str
) -> list[BackfillTick]:
    since = first - _MOMENT
    # Counted in steps of a day, so that a range of centuries costs nothing much.
    if (count := cron.count(since, last)) > limit:
        raise InvalidOption(
            "start",
            f"has {count:,} ticks up to the end, more than {limit:,}",
            "Give a shorter range at a time.",
        )
    ticks = list(cron.between(since, last))
    known = {
        run.scheduled_for: run.state
        for run in list_schedule_runs(
            line.id, since=first, before=last + _MOMENT, limit=len(ticks) + MOST_BACKFILLED, using=alias
        )
    }
    return [BackfillTick(tick, known.get(tick.instant)) for tick in ticks]

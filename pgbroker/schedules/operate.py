"""
What a person or a program does with schedules: save, list, run now, pause, resume, enable, backfill, look ahead.

All of it works in the current tenant, under the schedule's row lock, so that no pass decides beside it. A schedule
is given by its name or its id.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import transaction

from pgbroker.errors import InvalidOption, InvalidSchedule
from pgbroker.ids import new_id
from pgbroker.lifecycle.clock import database_time
from pgbroker.lifecycle.dispatch import Occurrence
from pgbroker.lifecycle.schedule import RunLine, ScheduleLine, check_template, note_over, save_schedule
from pgbroker.policy.values import duration, instant, remark
from pgbroker.schedules.backfill import Backfill, BackfillTick, backfill
from pgbroker.schedules.definition import Definition, Trouble, troubles_of
from pgbroker.schedules.held import create, held, move, settled
from pgbroker.schedules.look import (
    FIRST,
    ScheduleKey,
    alias_of,
    as_tenant_of,
    find,
    get_schedule,
    history,
    list_schedules,
    next_ticks,
    preview,
)
from pgbroker.schedules.written import troubles_of_arguments

__all__ = [
    "FIRST",
    "Backfill",
    "BackfillTick",
    "Definition",
    "Occurrence",
    "RunLine",
    "Saved",
    "ScheduleKey",
    "ScheduleLine",
    "Trouble",
    "backfill",
    "check",
    "disable",
    "enable",
    "get_schedule",
    "history",
    "list_schedules",
    "next_ticks",
    "pause",
    "preview",
    "resume",
    "run_now",
    "save",
]

LONGEST_PAUSE = timedelta(days=3_660)
_MOMENT = timedelta(microseconds=1)


# ------------------------------------------------------------------ save


class Saved(NamedTuple):
    """The stored schedule, and whether it is new."""

    schedule: ScheduleLine
    is_new: bool


def check(definition: Definition, *, lasting: bool = True, using: str | None = None) -> list[Trouble]:
    """
    List everything that is wrong with a definition: each has a field (a column), the trouble and a cure.

    Its jobs are tried in the database by the rules of every enqueue, and undone; arguments are read as the handler
    would read them, where this process knows it. *lasting*: one that never fires from now on is wrong too.
    """
    alias = alias_of(using)
    troubles = troubles_of(definition, now=database_time(using=alias) if lasting else None)
    if any(each.field == "template" for each in troubles):
        return troubles
    troubles += troubles_of_arguments(definition)
    if not any(each.field == "template" for each in troubles):
        code, error = check_template(definition.template, using=alias)
        if code is not None:
            troubles.append(
                Trouble("template", f"cannot be enqueued: {error or code}", "Correct the job.", code)
            )
    return troubles


def save(
    definition: Definition,
    *,
    declaration: str | None = None,
    declared_by: str = "",
    lasting: bool = True,
    using: str | None = None,
) -> Saved:
    """
    Store a schedule of the current tenant: a new one, or what the one of that name says from now on.

    Ticks that are due and not yet created belong to what it said before, and are created first. What it fires from now
    on is planned anew; a pause stays. *declaration*, *declared_by* and *lasting* are for what the code says. Raises
    `InvalidSchedule` with everything that is wrong, and nothing is changed then.
    """
    if not isinstance(definition, Definition):
        raise InvalidOption(
            "definition",
            f"is a {type(definition).__name__}",
            "Give a Definition(name=..., expression=..., ...).",
        )
    alias = alias_of(using)
    if troubles := check(definition, lasting=lasting, using=alias):
        raise InvalidSchedule(definition.name, troubles)
    cron = definition.cron
    with transaction.atomic(using=alias):
        known = find(definition.name, using=alias)
        due = settled(known.id, using=alias) if known else None
        # Read again: whoever held it may have paused it.
        known = find(definition.name, using=alias)
        paused = known is not None and known.paused_at is not None
        moment = due.now if due else database_time(using=alias)
        following = cron.first_after(moment) if definition.enabled and not paused else None
        saved_id, is_new = save_schedule(
            {
                **definition.row,
                "schedule_id": new_id(),
                "declared": declaration is not None,
                "declared_by": declared_by,
                "declaration": declaration or "",
                "watermark": moment,
                "next_run_at": following.instant if following else None,
                "zone_rules": cron.zone.fingerprint,
            },
            using=alias,
        )
        if known is not None and known.overlap != definition.overlap:
            note_over(saved_id, using=alias)
        return Saved(get_schedule(saved_id, using=alias), is_new)


# ------------------------------------------------------------------ act


def run_now(schedule: ScheduleKey, *, using: str | None = None) -> Occurrence:
    """
    Create an occurrence at once, whatever the expression says; ticks go on as they would.

    Also of one that is paused or disabled, and beside an occurrence that runs. The answer's state is created, or
    failed with the code and the reason; both are in the history as kind run_now.
    """
    alias = alias_of(using)
    line = get_schedule(schedule, using=alias)
    with as_tenant_of(line), transaction.atomic(using=alias):
        due = held(line.id, using=alias)
        # Never the instant of a tick, which would then not be created.
        moment = due.now + (_MOMENT if due.now.microsecond == 0 else timedelta(0))
        while True:
            occurrence = create(due, "run_now", [moment], using=alias)[0]
            if occurrence.state != "duplicate":
                return occurrence
            moment += _MOMENT


def pause(
    schedule: ScheduleKey,
    *,
    until: datetime | timedelta | None = None,
    by: str = "",
    reason: str = "",
    using: str | None = None,
) -> ScheduleLine:
    """
    Create nothing more until *until*, an instant or so long from now, or until somebody resumes it.

    What comes meanwhile is not missed and never made up for; what is due already and not yet created is left out too.
    A schedule that is paused already is paused as this call says. Raises `InvalidOption` for an end that has passed,
    and for a *by* or *reason* that no column takes.
    """
    remark("by", by), remark("reason", reason)
    alias = alias_of(using)
    line = get_schedule(schedule, using=alias)
    with as_tenant_of(line), transaction.atomic(using=alias):
        due = held(line.id, using=alias)
        end = _end_of_pause(until, due.now)
        move(line, due, using=alias, paused=True, paused_until=end, paused_by=by, pause_reason=reason)
        return get_schedule(line.id, using=alias)


def resume(schedule: ScheduleKey, *, using: str | None = None) -> ScheduleLine:
    """End a pause: the next tick is the first one from now on. Without a pause nothing changes."""
    alias = alias_of(using)
    line = get_schedule(schedule, using=alias)
    with as_tenant_of(line), transaction.atomic(using=alias):
        due = held(line.id, using=alias)
        current = get_schedule(line.id, using=alias)
        if current.paused_at is not None:
            move(current, due, using=alias, paused=False)
        return get_schedule(line.id, using=alias)


def enable(schedule: ScheduleKey, *, using: str | None = None) -> ScheduleLine:
    """Let a disabled schedule fire again, from now on."""
    return _set_enabled(schedule, True, "", using)


def disable(schedule: ScheduleKey, *, reason: str, using: str | None = None) -> ScheduleLine:
    """
    Let a schedule fire no more, until it is enabled or saved so. Its occurrences go on.

    Raises `InvalidOption` for a *reason* that no column takes.
    """
    remark("reason", reason)
    return _set_enabled(schedule, False, reason, using)


def _set_enabled(schedule: ScheduleKey, enabled: bool, reason: str, using: str | None) -> ScheduleLine:
    alias = alias_of(using)
    line = get_schedule(schedule, using=alias)
    with as_tenant_of(line), transaction.atomic(using=alias):
        due = held(line.id, using=alias)
        current = get_schedule(line.id, using=alias)
        if current.enabled != enabled:
            move(
                current,
                due,
                using=alias,
                enabled=enabled,
                disabled_reason=reason,
                paused=current.paused_at is not None,
                paused_until=current.paused_until,
                paused_by=current.paused_by,
                pause_reason=current.pause_reason,
            )
        return get_schedule(line.id, using=alias)


def _end_of_pause(until: datetime | timedelta | None, now: datetime) -> datetime | None:
    if until is None:
        return None
    end = (
        now + duration("until", until, longest=LONGEST_PAUSE)
        if isinstance(until, timedelta)
        else instant("until", until)
    )
    if end <= now:
        raise InvalidOption("until", f"is {end.isoformat()}, which has passed", "Give a later instant.")
    return end

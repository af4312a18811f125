"""Parts of what is done to one schedule while its row is held: no pass decides about it meanwhile."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from pgbroker.errors import ScheduleNotFound
from pgbroker.lifecycle.dispatch import Decision, Kind, Occurrence, dispatch_own
from pgbroker.lifecycle.schedule import ScheduleLine, move_schedule
from pgbroker.lifecycle.take_due import Due, hold_schedule
from pgbroker.schedules.decide import cron_of, decide
from pgbroker.schedules.tell import tell
from pgbroker.wakeups import wake_after_commit

# Occurrences that one statement creates here, and statements for what was due before an edit.
PAGE, MOST_PAGES = 1_000, 50


def held(schedule_id: UUID, *, using: str) -> Due:
    """Hold a schedule until the end of the transaction; raises `ScheduleNotFound`."""
    found = hold_schedule(schedule_id, using=using)
    if found is None:
        raise ScheduleNotFound(schedule_id)
    return found


def create(due: Due, kind: Kind, instants: Sequence[datetime], *, using: str) -> list[Occurrence]:
    """Create occurrences of a schedule that is held."""
    return _dispatch(due, Decision(id=due.id, kind=kind, create=[(each, None) for each in instants]), using)


def settled(schedule_id: UUID, *, using: str) -> Due:
    """Hold a schedule and create what is due of it, as it stands; returns where it stands then."""
    for _ in range(MOST_PAGES):
        due = held(schedule_id, using=using)
        if due.next_run_at is None or due.next_run_at > due.now:
            break
        _dispatch(due, decide(due, limit=PAGE), using)
    return due


def _dispatch(due: Due, decision: Decision, using: str) -> list[Occurrence]:
    """Do it, tell of it, and wake who waits for the jobs once they are committed."""
    occurrences = dispatch_own([decision], using=using)
    for queue in sorted({queue for each in occurrences for queue in each.queues or ()}):
        wake_after_commit(queue, using=using)
    tell({due.id: due}, [decision], occurrences)
    return occurrences


def move(line: ScheduleLine, due: Due, *, using: str, paused: bool, **values: Any) -> None:
    """Say anew whether a schedule runs; what it has decided upon ends now, and its next tick comes after."""
    enabled = values.get("enabled", line.enabled)
    following, rules = None, line.zone_rules
    if enabled and not paused:
        cron = cron_of(due)
        tick, rules = cron.first_after(due.now), cron.zone.fingerprint
        following = tick.instant if tick else None
    move_schedule(
        {
            "schedule_id": line.id,
            "enabled": enabled,
            "disabled_reason": "" if enabled else line.disabled_reason,
            "paused": paused,
            "paused_until": None,
            "paused_by": "",
            "pause_reason": "",
            "watermark": max(due.now, due.watermark),
            "next_run_at": following,
            "zone_rules": rules,
            **values,
        },
        using=using,
    )

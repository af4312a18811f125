"""One event a fact: what became of the ticks of a page."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from pgbroker import telemetry
from pgbroker.lifecycle.dispatch import Decision, Occurrence
from pgbroker.lifecycle.take_due import Due

_EVENTS = {
    "created": "schedule.dispatched",
    "skipped": "schedule.skipped",
    "buffered": "schedule.buffered",
    "failed": "schedule.failed",
    "duplicate": "schedule.duplicate",
}


def tell(due: Mapping[UUID, Due], decisions: Sequence[Decision], occurrences: Sequence[Occurrence]) -> None:
    """Tell of each tick, and of those that were seen too late. Nothing is told of a schedule that had changed."""
    stale = {each.schedule_id for each in occurrences if each.state == "stale"}
    for each in occurrences:
        event = _EVENTS.get(each.state)
        if event is None or not telemetry.wanted(event):
            continue
        telemetry.emit(
            event,
            **keys_of(due[each.schedule_id]),
            scheduled_for=each.scheduled_for,
            job_id=each.job_id,
            run_group_id=each.run_group_id,
            lateness_seconds=each.lateness_seconds,
            error_code=each.error_code,
            error=each.error,
        )
    for decision in decisions:
        if decision.id in stale:
            continue
        if decision.missed or decision.late:
            telemetry.emit(
                "schedule.misfired", **keys_of(due[decision.id]), missed=decision.missed, late=decision.late
            )
        if decision.disable is not None:
            telemetry.emit(
                "schedule.disabled",
                **keys_of(due[decision.id]),
                error_code="unreadable",
                error=decision.disable,
            )


def keys_of(due: Due) -> dict[str, Any]:
    """Return the keys that say which schedule it is."""
    return {"schedule": due.name, "schedule_id": due.id, "tenant_id": due.tenant_id}

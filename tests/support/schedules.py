"""Schedules for tests: rows, time that passes for them, and what became of their ticks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from pgbroker.ids import new_id
from pgbroker.models import Job, JobPayload, Schedule, ScheduleRun
from pgbroker.schedules.tick import Ticked, tick
from pgbroker.tenancy import current_tenant, scope_all
from pgbroker.testing import guards_off
from tests.support.jobs import TYPE, queue_id, type_id

ENVELOPE = {"v": 1, "args": [], "kwargs": {}}


def entry(**options: Any) -> dict[str, Any]:
    """Make an entry of a template."""
    return {"job_type": TYPE, "queue": "default", "args": ENVELOPE, **options}


def now() -> datetime:
    """Read the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("select statement_timestamp()")
        return cursor.fetchone()[0]


def minute(back: float = 0) -> datetime:
    """Return the minute that it is, or was so many minutes ago, by the database's clock."""
    return now().replace(second=0, microsecond=0) - timedelta(minutes=back)


def make(name: str = "nightly", *, due: bool = True, **changes: Any) -> Schedule:
    """
    Make a schedule of the current tenant whose tick at the beginning of this minute is *due*; the next is tomorrow's.

    With an expression of its own it still says that a tick came due then. Not due: the next tick is tomorrow's.
    """
    queue_id(), type_id()
    this = minute()
    watermark, next_run_at = (this - timedelta(seconds=1), this) if due else (now(), this + timedelta(days=1))
    template = changes.pop("template", None) or {"jobs": changes.pop("jobs", [entry()])}
    row = {
        "id": new_id(),
        "tenant_id": current_tenant(),
        "name": name,
        "expression": f"{this.minute} {this.hour} * * *",
        "time_zone": "UTC",
        "template": template,
        "watermark": watermark,
        "next_run_at": next_run_at,
        **changes,
    }
    return Schedule.objects.create(**row)


def set_row(schedule: Schedule | UUID, **values: Any) -> None:
    """Write columns of a schedule as if it had always been so, of whichever tenant."""
    pk = schedule.pk if isinstance(schedule, Schedule) else schedule
    with scope_all(), guards_off():
        assert Schedule.objects.filter(pk=pk).update(**values) == 1


EVERY_MINUTE = "* * * * *"


def stopped(schedule: Schedule, **ago: float) -> datetime:
    """
    Let nobody have looked at a schedule by the minute for so long; returns the minute since when it is.

    The tick of that minute had been decided upon, and the one after it is due.
    """
    since = minute() - timedelta(**ago)
    set_row(schedule, watermark=since, next_run_at=since + timedelta(minutes=1))
    return since


def row(schedule: Schedule | UUID) -> Schedule:
    """Read a schedule as it is now, of whichever tenant."""
    with scope_all():
        return Schedule.objects.get(pk=schedule.pk if isinstance(schedule, Schedule) else schedule)


def runs(schedule: Schedule | UUID, **which: Any) -> list[ScheduleRun]:
    """List what became of a schedule's ticks, in their order."""
    pk = schedule.pk if isinstance(schedule, Schedule) else schedule
    with scope_all():
        return list(ScheduleRun.objects.filter(schedule_id=pk, **which).order_by("scheduled_for"))


def states(schedule: Schedule | UUID) -> list[str]:
    """List in which state the runs of a schedule are."""
    return [each.state for each in runs(schedule)]


def jobs() -> list[Job]:
    """List all jobs, of whichever tenant, in the order of their creation."""
    with scope_all():
        return list(Job.objects.order_by("created_at", "id"))


def options_of(job_id: UUID) -> dict[str, Any]:
    """Read a job's stored options."""
    with scope_all():
        return JobPayload.objects.values_list("options", flat=True).get(job_id=job_id)


def tick_all(**options: Any) -> list[Ticked]:
    """Pass over everything that is due, page by page."""
    pages = [tick(**options)]
    while pages[-1].after is not None:
        assert len(pages) < 200
        pages.append(tick(**{**options, "after": pages[-1].after}))
    return pages

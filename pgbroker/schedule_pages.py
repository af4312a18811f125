"""What the admin's pages of a schedule show, as text: what comes, what became of ticks, and where the code differs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.urls import NoReverseMatch, reverse

from pgbroker.errors import PgBrokerError
from pgbroker.models import Schedule
from pgbroker.schedules import operate
from pgbroker.schedules.operate import Backfill, Definition, RunLine, ScheduleLine
from pgbroker.schedules.remove import may_delete
from pgbroker.schedules.shown import DRIFT, local_time, show_ticks, utc_time
from pgbroker.schedules.sync import drift_of
from pgbroker.schedules.undeclared import tell_undeclared

# Ticks ahead and back that a page shows, and ticks of a range before it is backfilled.
TICKS, HISTORY, PREVIEWED = 10, 50, 20


def line_of(row: Schedule) -> ScheduleLine:
    """Return a row as the verbs know it; its clock is that of the query, where that has asked for it as seen_at."""
    values = {name: getattr(row, name) for name in ScheduleLine._fields if name != "now"}
    return ScheduleLine(**values, now=getattr(row, "seen_at", row.updated_at))


def describe_schedule(line: ScheduleLine, *, before: datetime | None, using: str) -> dict[str, Any]:
    """Return what the page of a schedule shows besides what it says."""
    ticks, unreadable = [], ""
    try:
        ticks = show_ticks(
            operate.preview(Definition.of(line), TICKS, after=max(line.now, line.paused_until or line.now))
        )
    except PgBrokerError as error:
        unreadable = error.message
    history = operate.history(line.id, before=before, limit=HISTORY + 1, using=using)
    drifted = drift_of([line], using=using).get(line.id)
    return {
        "line": line,
        "dropped": line.declared and may_delete(line, using=using),
        "ticks": ticks,
        "unreadable": unreadable,
        "paused_until": local_time(line.paused_until, line.time_zone),
        "drift": None if drifted is None else (drifted.what, DRIFT[drifted.what], drifted.detail),
        "undeclared": tell_undeclared(line),
        "history": [describe_run(each, line.time_zone) for each in history[:HISTORY]],
        "older": history[HISTORY - 1].scheduled_for.isoformat() if len(history) > HISTORY else None,
        "later": before is not None,
    }


def describe_run(run: RunLine, zone: str) -> dict[str, Any]:
    """Return what became of one tick, and where its job or its run group is to be seen."""
    return {
        "local": local_time(run.scheduled_for, zone),
        "utc": utc_time(run.scheduled_for),
        "kind": run.kind.replace("_", " "),
        "state": run.state,
        "lateness": run.lateness_seconds,
        "what": run.job_id or run.run_group_id or "",
        "url": address_of("job", run.job_id) or address_of("rungroup", run.run_group_id),
        "error": " ".join(filter(None, (run.error_code, run.error))),
    }


def address_of(model: str, pk: Any) -> str | None:
    """Return the address of a row's page, None where the admin has none."""
    try:
        return reverse(f"admin:pgbroker_{model}_change", args=[pk]) if pk else None
    except NoReverseMatch:
        return None


def describe_backfill(found: Backfill) -> dict[str, Any]:
    """Return what would be created, before anybody says yes."""
    shown = found.ticks[:PREVIEWED]
    states: Sequence[str] = [each.known or "" for each in shown]
    return {
        "count": len(found.create),
        "of": len(found.ticks),
        "preview": list(zip(show_ticks([each.tick for each in shown]), states, strict=True)),
        "more": len(found.ticks) - len(shown),
    }

"""What the demo tells of its schedules: when they fire, and that they have."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from pgbroker.errors import ScheduleNotFound
from pgbroker.models import ScheduleRun
from pgbroker.schedules import operate
from pgbroker.schedules.shown import local_time

REFRESH = "nightly-refresh"
# A look finds what came since the last one, of a handful of schedules.
MOST = 20


def coming() -> Iterator[str]:
    """Say of each schedule when it fires next, there."""
    for line in operate.list_schedules():
        when = local_time(line.next_run_at, line.time_zone) or line.state
        yield f"{line.name:<16} {line.expression:<11} {line.time_zone:<20} {when}"


def refresh_now() -> str | None:
    """Let the night's workflow run at once; says as what, None while no scheduler has stored it."""
    try:
        made = operate.run_now(REFRESH)
    except ScheduleNotFound:
        return None
    return f"{REFRESH} runs now, as run group {made.run_group_id}" if made.state == "created" else made.error


class Fired:
    """Tells of the occurrences that were created since it began to look."""

    def __init__(self) -> None:
        latest = ScheduleRun.objects.order_by("-created_at").first()
        self._since: datetime | None = latest.created_at if latest else None

    def look(self) -> list[str]:
        """Return a sentence for each new one."""
        runs = ScheduleRun.objects.filter(kind="tick").select_related("schedule").order_by("created_at")
        if self._since is not None:
            runs = runs.filter(created_at__gt=self._since)
        found = list(runs[:MOST])
        if found:
            self._since = found[-1].created_at
        return [_sentence(run) for run in found]


def _sentence(run: ScheduleRun) -> str:
    late = "" if run.lateness_seconds is None else f", {run.lateness_seconds * 1000:,.0f} ms after its tick"
    return f"{run.schedule.name} fired for {run.scheduled_for:%H:%M} UTC: {run.state}{late}"

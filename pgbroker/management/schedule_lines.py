"""How broker_schedules writes a schedule and its ticks."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from pgbroker.errors import PgBrokerError
from pgbroker.management.commands.broker_jobs import short_json
from pgbroker.management.output import harmless, table
from pgbroker.policy.cron import Tick
from pgbroker.schedules import operate
from pgbroker.schedules.shown import DRIFT, local_time, show_ticks, utc_time
from pgbroker.schedules.sync import Drift
from pgbroker.schedules.undeclared import tell_undeclared, undeclared_types

# Jobs of a template that are written out.
JOBS_SHOWN = 5
LISTED = (
    "name",
    "tenant",
    "state",
    "expression",
    "zone",
    "next there",
    "next utc",
    "last utc",
    "failed",
    "drift",
)
LOOKED_BACK = ("there", "utc", "kind", "state", "late s", "job or run group", "error")


def row_of(line: operate.ScheduleLine, drifted: Drift | None) -> tuple[Any, ...]:
    """Write a schedule in one line of the list."""
    return (
        line.name,
        line.tenant_id,
        _state(line),
        line.expression,
        line.time_zone,
        local_time(line.next_run_at, line.time_zone),
        utc_time(line.next_run_at),
        utc_time(line.last_dispatched_for),
        line.failure_count,
        drifted.what if drifted else "",
    )


def _state(line: operate.ScheduleLine) -> str:
    if line.state == "paused" and line.paused_until:
        return f"paused until {local_time(line.paused_until, line.time_zone)}"
    return "overdue" if line.is_overdue else line.state


def row_of_run(run: operate.RunLine, zone: str) -> tuple[Any, ...]:
    """Write in one line what became of a tick."""
    return (
        local_time(run.scheduled_for, zone),
        utc_time(run.scheduled_for),
        run.kind,
        run.state,
        run.lateness_seconds,
        run.job_id or run.run_group_id,
        " ".join(filter(None, (run.error_code, run.error))),
    )


def warnings_of(lines: Sequence[operate.ScheduleLine]) -> Iterator[str]:
    """Tell of those of a list that go on and create jobs that nobody runs."""
    for line in lines:
        if line.enabled and (told := tell_undeclared(line)):
            yield harmless(f"\n{line.name} of tenant {line.tenant_id}: {told}", keep="\n")


def facts_of(line: operate.ScheduleLine, drifted: Drift | None) -> dict[str, Any]:
    """What a program wants to know of a schedule, but its template."""
    return {
        **{
            name: value
            for name, value in line._asdict().items()
            if name not in ("template", "now", "zone_rules")
        },
        "state": line.state,
        "next_run_local": local_time(line.next_run_at, line.time_zone),
        "drift": None if drifted is None else drifted.what,
        "undeclared_types": undeclared_types(line),
        "drift_detail": (drifted.detail or None) if drifted else None,
    }


def pairs_of(line: operate.ScheduleLine, drifted: Drift | None) -> list[tuple[str, Any]]:
    """What a person wants to know of it."""
    jobs = line.template.get("jobs", [])
    pause = f"since {utc_time(line.paused_at)} UTC, " + (
        f"until {local_time(line.paused_until, line.time_zone)}"
        if line.paused_until
        else "until it is resumed"
    )
    return [
        ("name", line.name),
        ("id", line.id),
        ("tenant", line.tenant_id),
        ("state", line.state),
        ("disabled", None if line.enabled else line.disabled_reason),
        ("paused", pause if line.paused_at else None),
        ("paused by", " ".join(filter(None, (line.paused_by, line.pause_reason)))),
        ("expression", line.expression),
        ("time zone", line.time_zone),
        ("changes of the clock", f"ambiguous {line.ambiguous}, nonexistent {line.nonexistent}"),
        ("misfire", _misfire(line)),
        ("overlap", line.overlap),
        ("jitter", f"up to {line.jitter_seconds:g} s" if line.jitter_seconds else None),
        ("starts", local_time(line.starts_at, line.time_zone)),
        ("ends", local_time(line.ends_at, line.time_zone)),
        ("declared", f"by the code of {line.declared_by}" if line.declared else "here"),
        ("drift", None if drifted is None else " ".join(filter(None, (DRIFT[drifted.what], drifted.detail)))),
        ("warning", tell_undeclared(line)),
        ("creates", f"{len(jobs)} job{'s in a run group' if len(jobs) > 1 else ''}"),
        ("run group", short_json(group) if (group := line.template.get("group")) else None),
        *((f"job {place}", short_json(each)) for place, each in enumerate(jobs[:JOBS_SHOWN], 1)),
        ("waiting", utc_time(line.buffered_for)),
        ("failed", f"{line.failure_count}, last {utc_time(line.failed_at)} UTC" if line.failed_at else None),
        ("last error", " ".join(filter(None, (line.error_code, line.error)))),
    ]


def _misfire(line: operate.ScheduleLine) -> str:
    if line.misfire != "catch_up":
        return line.misfire
    return f"catch_up, at most {line.misfire_count}, of the last {timedelta(seconds=line.misfire_window_seconds)}"


def coming(line: operate.ScheduleLine, count: int, alias: str) -> list[Tick]:
    """List what comes, after the pause where one has an end."""
    return operate.next_ticks(line.id, count, after=line.paused_until, using=alias)


def coming_or_why(line: operate.ScheduleLine, count: int, alias: str) -> tuple[list[Tick], str | None]:
    """List what comes; of a row that cannot be read, such as one in a zone that was removed, say why."""
    try:
        return coming(line, count, alias), None
    except PgBrokerError as error:
        return [], error.message


def when_it_fires(line: operate.ScheduleLine) -> str:
    """Say under which condition the ticks of a stopped schedule come."""
    match line.state:
        case "disabled":
            return ", if it were enabled"
        case "paused":
            return ", when the pause is over" if line.paused_until else ", if it were resumed"
    return ""


def fires(line: operate.ScheduleLine) -> str:
    """Say when it fires next, or why it does not."""
    there = local_time(line.next_run_at, line.time_zone)
    return f": fires next at {there}." if there else f". It is {line.state}."


def ticks_for_programs(ticks: Sequence[Tick]) -> list[dict[str, Any]]:
    """Write ticks for a JSON document."""
    shown = show_ticks(ticks)
    return [{"utc": each.instant, "local": each.local, "note": each.note} for each in shown]


def table_of_ticks(ticks: Sequence[Tick]) -> str:
    """Lay ticks out, a line each."""
    if not ticks:
        return "none to come"
    rows = ((each.local, each.utc, each.note or " ") for each in show_ticks(ticks))
    return table(("there", "utc", ""), rows, cut=False)

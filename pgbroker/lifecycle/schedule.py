"""schedule: store and move schedules of the current tenant, and list them with what became of their ticks."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pgbroker import db
from pgbroker.policy.misfire import GRACE

# Before all ids.
_FIRST = UUID(int=0)


class ScheduleLine(NamedTuple):
    """A schedule as its row says it, *now* by the database's clock."""

    id: UUID
    tenant_id: str
    name: str
    expression: str
    time_zone: str
    template: dict[str, Any]
    ambiguous: str
    nonexistent: str
    misfire: str
    misfire_count: int
    misfire_window_seconds: float
    overlap: str
    jitter_seconds: float
    starts_at: datetime | None
    ends_at: datetime | None
    enabled: bool
    disabled_reason: str
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str
    pause_reason: str
    next_run_at: datetime | None
    watermark: datetime
    buffered_for: datetime | None
    last_dispatched_for: datetime | None
    last_dispatched_at: datetime | None
    zone_rules: str
    declared: bool
    declared_by: str
    declaration: str
    revision: int
    failure_count: int
    failed_at: datetime | None
    error_code: str | None
    error: str | None
    forgotten_until: datetime | None
    created_at: datetime
    updated_at: datetime
    now: datetime

    @property
    def state(self) -> str:
        """One word: disabled, paused, ended (nothing is to come), or active."""
        if not self.enabled:
            return "disabled"
        if self.paused_at is not None:
            return "paused"
        return "ended" if self.next_run_at is None else "active"

    @property
    def is_overdue(self) -> bool:
        """True when its tick should have come: no scheduler runs, or none that gets to it."""
        return self.state == "active" and self.next_run_at is not None and self.now - self.next_run_at > GRACE


class RunLine(NamedTuple):
    """
    What became of one tick: *kind* is tick, run_now or backfill, *state* created, skipped, buffered, failed or missed.

    One that is missed stands for those before it that were missed with it: *error* has their number and the first.
    """

    schedule_id: UUID
    scheduled_for: datetime
    kind: str
    state: str
    job_id: UUID | None
    run_group_id: UUID | None
    created_at: datetime
    lateness_seconds: float | None
    error_code: str | None
    error: str | None


def save_schedule(row: Mapping[str, Any], *, using: str) -> tuple[UUID, bool]:
    """Store a schedule, new or by its name; returns its id, and whether it is new."""
    values = {**row, "template": json.dumps(row["template"], allow_nan=False)}
    (saved,) = db.fetch("save_schedule", values, lambda answer: (answer[0], answer[1]), using=using)
    return saved


def move_schedule(values: Mapping[str, Any], *, using: str) -> bool:
    """Say anew whether a schedule runs, and from when on; False where this tenant has none."""
    return bool(db.fetch("move_schedule", values, tuple, using=using))


def note_over(schedule_id: UUID, *, using: str) -> None:
    """Note which occurrences of a schedule that is held are over: there may be many, and nobody looks at them again."""
    db.fetch("note_over", {"schedule_id": schedule_id}, tuple, using=using)


def delete_schedule(schedule_id: UUID, *, using: str) -> bool:
    """Delete a schedule that is held; False where this tenant has none."""
    return bool(db.fetch("delete_schedule", {"schedule_id": schedule_id}, tuple, using=using))


def list_schedules(
    *,
    tenant: str | None,
    schedule_id: UUID | None = None,
    name: str | None = None,
    after: tuple[str, UUID] = ("", UUID(int=0)),
    limit: int,
    using: str,
) -> list[ScheduleLine]:
    """List schedules by name, from *after* on."""
    wanted = {
        "tenant": tenant,
        "schedule_id": schedule_id,
        "name": name,
        "after_name": after[0],
        "after_id": after[1],
        "limit": limit,
    }
    return db.fetch("list_schedules", wanted, ScheduleLine._make, using=using)


def list_declared(
    project: str, said: Sequence[tuple[str, str]], *, after: UUID = _FIRST, limit: int, using: str
) -> list[ScheduleLine]:
    """List by id what a project has declared, of any tenant, and what has a (tenant, name) that it *said* now."""
    wanted = {
        "project": project,
        "tenants": [tenant for tenant, _ in said],
        "names": [name for _, name in said],
        "after_id": after,
        "limit": limit,
    }
    return db.fetch("list_declared", wanted, ScheduleLine._make, using=using)


def hold_schedules(said: Sequence[tuple[str, str]], *, using: str) -> set[tuple[str, str]]:
    """Hold those of some schedules, by (tenant, name), that nobody else holds, to the end of the transaction."""
    wanted = {"tenants": [tenant for tenant, _ in said], "names": [name for _, name in said]}
    return set(db.fetch("hold_schedules", wanted, lambda row: (row[0], row[1]), using=using))


def list_schedule_runs(
    schedule_id: UUID, *, since: datetime, before: datetime, limit: int, using: str
) -> list[RunLine]:
    """List what became of ticks from *since* until before *before*, the latest first."""
    wanted = {"schedule_id": schedule_id, "since": since, "before": before, "limit": limit}
    return db.fetch("list_schedule_runs", wanted, RunLine._make, using=using)


def check_template(template: Mapping[str, Any], *, using: str) -> tuple[str | None, str | None]:
    """Return code and reason of what keeps a template from being created now, both None when nothing does."""
    written = json.dumps(template, allow_nan=False)
    (answer,) = db.fetch("check_template", {"template": written}, lambda row: (row[0], row[1]), using=using)
    return answer

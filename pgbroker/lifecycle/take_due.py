"""take_due: look which schedules have something to be decided, and when the next one has. It changes nothing."""

from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from pgbroker import db

# What the lease is on of whoever creates what is due.
SCHEDULER = "scheduler"
# Before all ticks: where a pass begins.
BEGINNING = (datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))


class Due(NamedTuple):
    """
    A schedule of which something is to be decided: what it says and where it stands, at *now* by the database's clock.

    *live* counts its occurrences that are not over, where the decision depends on that. *in_turn* ones come in the
    order of their ticks, and a pass goes on after the last of them.
    """

    id: UUID
    tenant_id: str
    name: str
    expression: str
    time_zone: str
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
    next_run_at: datetime | None
    watermark: datetime
    buffered_for: datetime | None
    paused_until: datetime | None
    zone_rules: str
    revision: int
    now: datetime
    live: int
    in_turn: bool

    @property
    def place(self) -> tuple[datetime, UUID]:
        """Where a pass stands once it has seen this one."""
        assert self.next_run_at is not None
        return self.next_run_at, self.id


class Coming(NamedTuple):
    """Seconds until something is to be decided, None for never; *waits*: an occurrence waits for another one's end."""

    seconds: float | None
    waits: bool


def take_due(
    *, limit: int, after: tuple[datetime, UUID] = BEGINNING, using: str | db.Session = "default"
) -> list[Due]:
    """Return up to *limit* schedules whose tick has come, later than *after*, and as many of each other reason."""
    assert limit >= 1
    wanted = {"after_at": after[0], "after_id": after[1], "limit": limit}
    return db.fetch("take_due", wanted, Due._make, using=using)


def next_schedule(*, using: str | db.Session = "default") -> Coming:
    """Tell when the next schedule of any tenant has something to be decided."""
    (coming,) = db.fetch("next_schedule", {}, Coming._make, using=using)
    return coming


def hold_schedule(schedule_id: UUID, *, using: str) -> Due | None:
    """Hold a schedule until the end of the transaction, which must be open; None where this tenant has none."""
    found = db.fetch("take_schedule", {"schedule_id": schedule_id}, Due._make, using=using)
    return found[0] if found else None


def list_zones(*, using: str | db.Session = "default") -> list[tuple[str, str]]:
    """List the zones that schedules of any tenant have, each with the fingerprints they were planned by."""
    return db.fetch("list_zones", {}, lambda row: (row[0], row[1]), using=using)


def take_stale(time_zone: str, rules: str, *, limit: int, using: str | db.Session = "default") -> list[Due]:
    """Return up to *limit* schedules in that zone that were planned by other rules than *rules*."""
    wanted = {"time_zone": time_zone, "zone_rules": rules, "limit": limit}
    return db.fetch("take_stale", wanted, Due._make, using=using)

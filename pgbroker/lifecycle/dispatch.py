"""dispatch: create what ticks of schedules are for, once, and note where the schedules stand then."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from pgbroker import db

Kind = Literal["tick", "run_now", "backfill"]


@dataclass(slots=True, kw_only=True)
class Decision:
    """
    What was decided about one schedule, as `pgbroker.dispatch_1` takes it.

    Of kind tick it holds only while *next_run_at* is *expected* and the revision the same: whoever decided
    upon an older row changes nothing. *create* has ticks, each with the instant before which its job does not
    start, if there is one.
    """

    id: UUID
    kind: Kind = "tick"
    expected: datetime | None = None
    revision: int | None = None
    next_run_at: datetime | None = None
    watermark: datetime | None = None
    zone_rules: str | None = None
    create: Sequence[tuple[datetime, datetime | None]] = ()
    skip: Sequence[datetime] = ()
    buffer: datetime | None = None
    release: bool = False
    cancel: bool = False
    resume: bool = False
    disable: str | None = None
    # Ticks that were missed for good, the first and the last of them, and of those created how many came late.
    missed: int = field(default=0, compare=False)
    gap: tuple[datetime, datetime] | None = field(default=None, compare=False)
    late: int = field(default=0, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return what the database takes; what is left out is null there, and most of it is."""
        said: dict[str, Any] = {"id": self.id.hex, "kind": self.kind, "revision": self.revision}
        if self.expected is not None:
            said["expected"] = self.expected.isoformat()
        if self.next_run_at is not None:
            said["next_run_at"] = self.next_run_at.isoformat()
        if self.watermark is not None:
            said["watermark"] = self.watermark.isoformat()
        if self.zone_rules:
            said["zone_rules"] = self.zone_rules
        if self.create:
            said["create"] = [[tick.isoformat(), start and start.isoformat()] for tick, start in self.create]
        if self.skip:
            said["skip"] = [tick.isoformat() for tick in self.skip]
        if self.buffer is not None:
            said["buffer"] = self.buffer.isoformat()
        for name in ("release", "cancel", "resume", "disable"):
            if value := getattr(self, name):
                said[name] = value
        if self.gap:
            first, last = self.gap
            said["missed"] = {"count": self.missed, "first": first.isoformat(), "last": last.isoformat()}
        return said


class Occurrence(NamedTuple):
    """
    What became of one tick: *state* is created, skipped, buffered, failed, or duplicate, if it was created before.

    stale, without a tick: the schedule has changed since the decision, and nothing was done. *queues* have new
    ready jobs.
    """

    schedule_id: UUID
    scheduled_for: datetime | None
    state: str
    job_id: UUID | None
    run_group_id: UUID | None
    lateness_seconds: float | None
    error_code: str | None
    error: str | None
    queues: Sequence[str] | None


def dispatch(
    decisions: Sequence[Decision], *, patient: bool = False, using: str | db.Session = "default"
) -> list[Occurrence]:
    """
    Do what was decided about schedules of any tenant, in one statement; each of its jobs belongs to its schedule's.

    What cannot be created is a failed occurrence and sinks nothing else. A schedule whose row somebody holds is
    left out, unless *patient*.
    """
    if not decisions:
        return []
    wanted = {"decisions": _written(decisions), "patient": patient}
    return db.fetch("dispatch", wanted, Occurrence._make, using=using)


def dispatch_own(decisions: Sequence[Decision], *, using: str | db.Session = "default") -> list[Occurrence]:
    """Do what was asked for about schedules of the current tenant; waits for rows that somebody holds."""
    wanted = {"decisions": _written(decisions), "patient": True}
    return db.fetch("dispatch_own", wanted, Occurrence._make, using=using)


def _written(decisions: Sequence[Decision]) -> str:
    return json.dumps([each.as_json() for each in decisions], separators=(",", ":"))

"""pause and resume: stop claims for a queue, a type, a tenant, or a tenant in a queue."""

from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from pgbroker import db

Kind = Literal["queue", "job_type", "tenant", "queue_tenant"]


class Target(NamedTuple):
    """What is paused: exactly the names that its kind needs."""

    queue: str | None = None
    job_type: str | None = None
    tenant: str | None = None

    @property
    def kind(self) -> Kind:
        """The kind of pause that these names make."""
        if self.job_type is not None:
            assert self.queue is None
            assert self.tenant is None
            return "job_type"
        if self.tenant is not None:
            return "tenant" if self.queue is None else "queue_tenant"
        assert self.queue is not None
        return "queue"


def pause(
    target: Target,
    *,
    duration: timedelta | None = None,
    by: str = "",
    reason: str = "",
    using: str | db.Session = "default",
) -> tuple[int, datetime | None] | None:
    """
    Stop claims for *target*, for *duration* or until resumed; running jobs go on.

    Returns the pause's id and end, or None when the queue or type does not exist.
    """
    made = db.fetch(
        "pause",
        {**target._asdict(), "kind": target.kind, "duration": duration, "by": by, "reason": reason},
        lambda row: (row[0], row[1]),
        using=using,
    )
    return made[0] if made else None


def resume(target: Target, *, using: str | db.Session = "default") -> int | None:
    """End the pause of *target*. Returns its queue's id (0 without one), or None when nothing was paused."""
    ended = db.fetch(
        "resume", {**target._asdict(), "kind": target.kind}, lambda row: row[1] or 0, using=using
    )
    return ended[0] if ended else None


class Pausing(NamedTuple):
    """A pause in force, by ids; what is None does not limit it."""

    queue_id: int | None
    job_type_id: int | None
    tenant: str | None

    def stops(self, queue_id: int, job_type_id: int, tenant: str) -> bool:
        """Tell whether a job of this queue, type and tenant may not run."""
        return (
            self.queue_id in (None, queue_id)
            and self.job_type_id in (None, job_type_id)
            and self.tenant in (None, tenant)
        )


def pauses(*, using: str | db.Session = "default") -> list[Pausing]:
    """List the pauses in force."""
    return db.fetch("pauses", {}, Pausing._make, using=using)

"""cancel: any live status but running -> cancelled; a running job gets a request."""

from collections.abc import Sequence
from typing import Literal, NamedTuple
from uuid import UUID

from pgbroker import db


class Cancelled(NamedTuple):
    """What a cancel did to one job; *status* and *worker_id* are from before."""

    job_id: UUID
    outcome: Literal["cancelled", "requested", "unchanged"]
    status: int
    worker_id: UUID | None


def cancel_many(
    job_ids: Sequence[UUID], *, reason: str = "", by: str = "", using: str | db.Session = "default"
) -> list[Cancelled]:
    """
    Cancel jobs of the current tenant.

    A running job is asked to stop, within a heartbeat; whatever its handler then reports, it ends
    cancelled. Returns one answer for each job that exists; one that has ended is unchanged.
    """
    return db.fetch(
        "cancel", {"job_ids": list(job_ids), "reason": reason, "by": by}, Cancelled._make, using=using
    )

"""retry: failed, dead_letter, cancelled -> ready, waiting."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

from pgbroker import db


class Retried(NamedTuple):
    """
    What a retry did to one job; *status* is from before.

    *holder_id* is the newer job that has its key, or the prerequisite, a job or a group, that ended badly. *missing*
    names what it waited for by name, if that is still not there.
    """

    job_id: UUID
    outcome: Literal["retried", "unchanged", "key_held_by_newer_job", "prerequisite_failed"]
    queue_id: int
    status: int
    holder_id: UUID | None
    missing: str | None


def retry_many(
    job_ids: Sequence[UUID], *, attempts: int | None = 1, using: str | db.Session = "default"
) -> list[Retried]:
    """
    Make ended jobs of the current tenant live again, with *attempts* more (None: the declared number).

    History stays. Returns one answer for each job that exists: a live or completed one is unchanged, and
    one whose idempotency key a newer job holds is refused, as is one whose prerequisite has ended badly and
    is not among those retried, and one that waited for a name that is still not there. What was cancelled
    because of a job comes back when that one is retried.
    """
    assert attempts is None or attempts >= 1
    return db.fetch("retry", {"job_ids": list(job_ids), "attempts": attempts}, Retried._make, using=using)


class Ending(NamedTuple):
    """A place in the list of ended jobs, by which the next page is found."""

    job_id: UUID
    finished_at: datetime


def find_ended(
    *,
    status: int,
    before: datetime,
    after: Ending,
    limit: int,
    queue: str | None = None,
    job_type: str | None = None,
    error_code: str | None = None,
    tag: str | None = None,
    using: str | db.Session = "default",
) -> list[Ending]:
    """List ended jobs of the current tenant by filter, oldest end first, from *after* on."""
    return db.fetch(
        "find_ended",
        {
            "status": status,
            "queue": queue,
            "job_type": job_type,
            "error_code": error_code,
            "tag": tag,
            "after": after.finished_at,
            "after_id": after.job_id,
            "before": before,
            "limit": limit,
        },
        Ending._make,
        using=using,
    )

"""over_long: find running attempts that take longer than they may, though their worker renews the lease."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from pgbroker import db


class Place(NamedTuple):
    """Where a look through the running attempts stands: after this end of a lease and this job."""

    lease_expires_at: datetime
    job_id: UUID


START = Place(datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))


class OverLong(NamedTuple):
    """One attempt that should have been ended by its worker, and for how long it has been claimed."""

    job_id: UUID
    lease_token: int
    worker_id: UUID
    tenant_id: str
    queue_id: int
    job_type_id: int
    attempt_no: int
    seconds: float


def find_over_long(
    *,
    timeout: float | None,
    grace: timedelta,
    limit: int,
    after: Place = START,
    tenant: str | None = None,
    using: str | db.Session = "default",
) -> tuple[list[OverLong], Place | None]:
    """
    Look at up to *limit* running attempts, and return the over-long ones and where to go on: None at the end.

    Over-long is what runs for more than its timeout, or its type's, or *timeout*, or past its deadline,
    by more than *grace*. They are found, not taken: their lease says that somebody still works on them.
    """
    assert limit >= 1
    rows = db.fetch(
        "find_over_long",
        {
            "tenant": tenant,
            "since": after.lease_expires_at,
            "since_id": after.job_id,
            "limit": limit,
            "timeout": timeout,
            "grace": grace,
        },
        tuple,
        using=using,
    )
    found = [OverLong._make(row[3:]) for row in rows if row[3] is not None]
    if not rows or rows[0][0] < limit:
        return found, None
    return found, Place(rows[0][1], rows[0][2])

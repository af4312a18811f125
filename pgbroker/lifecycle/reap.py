"""reap: running -> scheduled, dead_letter, cancelled, once the lease has expired."""

from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from pgbroker import db
from pgbroker.policy.backoff import Backoff

EVERYTHING = datetime.min.replace(tzinfo=UTC)


class Reaped(NamedTuple):
    """One attempt that was taken back: who had held it, how it is recorded, where the job went."""

    job_id: UUID
    lease_token: int
    worker_id: UUID
    tenant_id: str
    queue_id: int
    job_type_id: int
    attempt_no: int
    state: int
    status: int


def reap(
    *,
    limit: int,
    max_crashes: int,
    backoff: Backoff,
    since: datetime = EVERYTHING,
    using: str | db.Session = "default",
) -> list[Reaped]:
    """
    Take back up to *limit* attempts whose lease has expired, oldest expiry first.

    A holder whose worker row is silent counts as a crash; after *max_crashes* the job is a dead letter.
    The first loss is retried at once, later ones after the type's backoff or *backoff*. *since* is a
    hint: leases that expired at or before it were looked at already.
    """
    assert limit >= 1
    return db.fetch(
        "reap",
        {
            "since": since,
            "limit": limit,
            "max_crashes": max_crashes,
            "base": backoff.base,
            "factor": backoff.factor,
            "cap": backoff.cap,
        },
        Reaped._make,
        using=using,
    )

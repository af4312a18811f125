"""reap: running -> scheduled, dead_letter, cancelled, once the lease has expired."""

from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from pgbroker import db
from pgbroker.policy.backoff import Backoff

# Longer than anything has been due: look at all of it.
EVERYTHING = timedelta(days=36500)


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
    within: timedelta = EVERYTHING,
    in_touch: timedelta = EVERYTHING,
    skip: int = 0,
    using: str | db.Session = "default",
) -> list[Reaped]:
    """
    Take back up to *limit* attempts whose lease has expired, oldest expiry first.

    A holder whose worker row is silent counts as a crash; after *max_crashes* the job is a dead letter. Not
    where this process has been *in_touch* with the database for less than half a lease: others were cut off too.
    The first loss is retried at once, later ones after the type's backoff or *backoff*. *within* is a
    hint: leases that expired longer ago were looked at already. The first *skip* are left alone.
    """
    assert limit >= 1
    assert skip >= 0
    return db.fetch(
        "reap",
        {
            "within": within,
            "in_touch": in_touch,
            "skip": skip,
            "limit": limit,
            "max_crashes": max_crashes,
            "base": backoff.base,
            "factor": backoff.factor,
            "cap": backoff.cap,
            "jitter": backoff.jitter,
        },
        Reaped._make,
        using=using,
    )

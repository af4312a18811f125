"""heartbeat: extend leases, and hear which attempts must stop."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from pgbroker import db
from pgbroker.lease import Lease


class Held(NamedTuple):
    """What became of one lease: still *kept* by its worker, and whether its job is asked to *cancel*."""

    job_id: UUID
    lease_token: int
    kept: bool
    cancel: bool


def heartbeat(
    leases: Sequence[Lease], *, lease: timedelta, using: str | db.Session = "default"
) -> list[Held]:
    """
    Extend leases to *lease* from now; running stays running.

    Returns one answer a lease. A row that somebody else holds locked is not extended this time, but
    kept: locked is not lost. What is not kept has expired or passed on: stop its handler.
    """
    ordered = sorted(leases, key=lambda each: (each.worker_id, each.job_id))
    answers: list[Held] = []
    for worker_id, group in groupby(ordered, key=lambda each: each.worker_id):
        batch = list(group)
        answers += db.fetch(
            "heartbeat",
            {
                "worker_id": worker_id,
                "job_ids": db.uuid_array([each.job_id for each in batch]),
                "tokens": db.array([each.lease_token for each in batch]),
                "lease": lease,
            },
            Held._make,
            using=using,
        )
    return answers


def own_leases(worker_id: UUID, *, using: str | db.Session = "default") -> list[tuple[UUID, int]]:
    """List the (job id, lease token) pairs that the database says this worker holds."""
    return db.fetch("own_leases", {"worker_id": worker_id}, lambda row: (row[0], row[1]), using=using)

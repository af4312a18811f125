"""expire: any live status but running -> failed, once the deadline has passed."""

from typing import NamedTuple
from uuid import UUID

from pgbroker import db


class Expired(NamedTuple):
    """One job whose deadline passed before it ran."""

    job_id: UUID
    tenant_id: str
    queue_id: int
    job_type_id: int


def expire(*, limit: int, using: str | db.Session = "default") -> list[Expired]:
    """End up to *limit* live jobs that do not run and passed their deadline: -> failed (`deadline_exceeded`)."""
    assert limit >= 1
    return db.fetch("expire", {"limit": limit}, Expired._make, using=using)

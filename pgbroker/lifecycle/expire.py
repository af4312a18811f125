"""expire: any live status but running -> failed, once the deadline has passed."""

from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from pgbroker import db

# Longer than any deadline has been over: look at all of them.
EVERYTHING = timedelta(days=36500)


class Expired(NamedTuple):
    """One job whose deadline passed before it ran."""

    job_id: UUID
    tenant_id: str
    queue_id: int
    job_type_id: int


def expire(
    *, limit: int, within: timedelta = EVERYTHING, skip: int = 0, using: str | db.Session = "default"
) -> list[Expired]:
    """
    End up to *limit* live jobs that do not run and passed their deadline: -> failed (`deadline_exceeded`).

    *within* is a hint: deadlines that passed longer ago were looked at already. The first *skip* are left alone.
    """
    assert limit >= 1
    assert skip >= 0
    parameters = {"within": within, "skip": skip, "limit": limit}
    return db.fetch("expire", parameters, Expired._make, using=using)

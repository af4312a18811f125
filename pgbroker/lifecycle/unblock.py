"""unblock: blocked -> ready, waiting, scheduled."""

from collections.abc import Sequence
from typing import Literal, NamedTuple
from uuid import UUID

from pgbroker import db


class Unblocked(NamedTuple):
    """What an unblock did to one job; *status* is from afterwards."""

    job_id: UUID
    outcome: Literal["unblocked", "unchanged"]
    status: int


def unblock_many(job_ids: Sequence[UUID], *, using: str | db.Session = "default") -> list[Unblocked]:
    """
    Set blocked jobs of the current tenant free: their prerequisites that ended badly count as met.

    Returns one answer for each job that exists; one that is not blocked is unchanged. The workers of the
    queues are told when the transaction commits.
    """
    return db.fetch("unblock", {"job_ids": list(job_ids)}, Unblocked._make, using=using)

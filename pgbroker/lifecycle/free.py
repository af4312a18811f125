"""free: ask which jobs nobody has locked, and change nothing."""

from collections.abc import Sequence
from uuid import UUID

from pgbroker import db


def free(job_ids: Sequence[UUID], *, using: str | db.Session = "default") -> set[UUID]:
    """Return those of the jobs that nobody has locked at this moment."""
    found: list[UUID] = db.fetch("free", {"job_ids": db.uuid_array(job_ids)}, lambda row: row[0], using=using)
    return set(found)

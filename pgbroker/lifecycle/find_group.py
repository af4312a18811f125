"""find_group: look up a run group, by its name or by a member, and change nothing."""

from typing import NamedTuple
from uuid import UUID

from pgbroker import db


class FoundGroup(NamedTuple):
    """Which group it is."""

    id: UUID
    name: str


def find_group(name: str, *, using: str | db.Session = "default") -> FoundGroup | None:
    """Find the run group of that name in the current tenant."""
    found = db.fetch("find_group", {"name": name}, lambda values: FoundGroup(values[0], name), using=using)
    return found[0] if found else None


def group_of_job(job_id: UUID, *, using: str | db.Session = "default") -> FoundGroup | None:
    """Find the run group that a job of the current tenant is in."""
    found = db.fetch("group_of_job", {"job_id": job_id}, FoundGroup._make, using=using)
    return found[0] if found else None

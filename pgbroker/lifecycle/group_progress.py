"""group_progress: count the members of a run group, find those that ended badly, and change nothing."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from pgbroker import db


class GroupRow(NamedTuple):
    """A run group as it is now; *members* are counted by the number of their status, as text."""

    name: str
    state: int
    tolerate_count: int | None
    tolerate_percent: float | None
    created_at: datetime
    sealed_at: datetime | None
    finished_at: datetime | None
    completed_job_id: UUID | None
    failed_job_id: UUID | None
    callback_error: str | None
    members: dict[str, int]


def group_progress(group_id: UUID, *, using: str | db.Session = "default") -> GroupRow | None:
    """Count the members of a group of the current tenant; None where there is no such group."""
    found = db.fetch("group_progress", {"group_id": group_id}, GroupRow._make, using=using)
    return found[0] if found else None


class FailedMember(NamedTuple):
    """A member that ended badly, and how many jobs in a row it waits for."""

    job_id: UUID
    level: int


BEFORE_ALL = FailedMember(UUID(int=0), 0)


def find_failed_members(
    group_id: UUID,
    *,
    cancelled: bool,
    after: FailedMember = BEFORE_ALL,
    limit: int,
    using: str | db.Session = "default",
) -> list[FailedMember]:
    """
    Find members that failed or are dead letters, *cancelled* ones too if asked for, after that one, by level and id.

    What was cancelled because of another job is not among them.
    """
    return db.fetch(
        "find_failed_members",
        {
            "group_id": group_id,
            "cancelled": cancelled,
            "after_level": after.level,
            "after": after.job_id,
            "limit": limit,
        },
        FailedMember._make,
        using=using,
    )

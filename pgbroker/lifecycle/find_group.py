"""find_group: look up a run group, by its name, its id or a member, and change nothing."""

from typing import NamedTuple
from uuid import UUID

from pgbroker import db
from pgbroker.states import GroupState


class FoundGroup(NamedTuple):
    """Which group it is."""

    id: UUID
    name: str


def find_group(name: str, *, using: str | db.Session = "default") -> FoundGroup | None:
    """Find the run group of that name in the current tenant."""
    found = db.fetch("find_group", {"name": name}, lambda values: FoundGroup(values[0], name), using=using)
    return found[0] if found else None


class GroupOfId(NamedTuple):
    """What a run group is called, and how it stands."""

    name: str
    state: GroupState


def identify_group(group_id: UUID, *, using: str | db.Session = "default") -> GroupOfId | None:
    """Tell which run group of the current tenant has this id; None where none has."""
    found = db.fetch("identify_group", {"group_id": group_id}, GroupOfId._make, using=using)
    return found[0]._replace(state=GroupState(found[0].state)) if found else None


class GroupOfAttempt(NamedTuple):
    """The run group of an attempt's job, where it is in one; and whether the attempt still holds its lease."""

    is_held: bool
    id: UUID | None
    name: str | None


def group_of_job(
    job_id: UUID, *, lease_token: int, using: str | db.Session = "default"
) -> GroupOfAttempt | None:
    """Find the run group that a job of the current tenant is in; None where there is no such job."""
    asked = {"job_id": job_id, "lease_token": lease_token}
    found = db.fetch("group_of_job", asked, GroupOfAttempt._make, using=using)
    return found[0] if found else None

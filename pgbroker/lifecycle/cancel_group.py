"""cancel_group: seal a run group and cancel its live members; running ones get a request."""

from typing import NamedTuple
from uuid import UUID

from pgbroker import db


class CancelledGroup(NamedTuple):
    """What was done: the group's state now, members cancelled and asked to stop, and whether more may be left."""

    state: int
    cancelled: int
    requested: int
    is_left: bool


def cancel_group(
    group_id: UUID, *, reason: str = "", by: str = "", limit: int = 500, using: str | db.Session = "default"
) -> CancelledGroup | None:
    """
    Cancel a group of the current tenant, at most *limit* members of it; None where there is no such group.

    From then on nothing is added to it. It ends cancelled with its last member, and what depends on it ends
    as its edge says. One statement: call it again while members are left.
    """
    answers = db.fetch(
        "cancel_group",
        {"group_id": group_id, "reason": reason, "by": by, "limit": limit},
        CancelledGroup._make,
        using=using,
    )
    return answers[0] if answers else None

"""seal_group: open -> sealed, or its end at once where no member lives."""

from uuid import UUID

from pgbroker import db
from pgbroker.states import GroupState


def seal_group(group_id: UUID, *, using: str | db.Session = "default") -> GroupState | None:
    """
    Seal a run group of the current tenant and return its state then; None where there is no such group.

    One that is sealed already stays as it is. Waits for transactions that are adding to it.
    """
    (state,) = db.fetch("seal_group", {"group_id": group_id}, lambda values: values[0], using=using)
    return None if state is None else GroupState(state)

"""lead: hold the lease on a duty, that one process does for all, for a while."""

from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from pgbroker import db


class Reign(NamedTuple):
    """
    The right to do a duty alone, and the fence of whatever is done under it.

    A write that must not happen twice carries these three and asks for them in its own statement.
    """

    duty: str
    holder: UUID
    epoch: int


class Answer(NamedTuple):
    """Whether the asker leads, in which reign of the duty, and how long the lease lasts, whoever holds it."""

    leads: bool
    epoch: int
    seconds: float


def lead(
    duty: str, *, holder: UUID, name: str, lease: timedelta, using: str | db.Session = "default"
) -> Answer | None:
    """
    Take the lease on a duty where it is free, or renew it; asking for somebody else's changes nothing.

    *holder* is an id that is never used again. The epoch rises with each reign. None: another asker took
    the lease in this very moment.
    """
    wanted = {"duty": duty, "holder": holder, "name": name, "lease": lease}
    answers = db.fetch("lead", wanted, Answer._make, using=using)
    return answers[0] if answers else None

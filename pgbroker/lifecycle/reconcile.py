"""reconcile: put back in order what a restore or a fault broke between jobs and what they wait for."""

from typing import NamedTuple
from uuid import UUID

from pgbroker import db

START = UUID(int=0)


class Reconciled(NamedTuple):
    """A page: its last id, None at the end, and the jobs and groups that were repaired."""

    last: UUID | None
    repaired: list[UUID]


def reconcile(
    *, after: UUID = START, limit: int, skip: int = 0, using: str | db.Session = "default"
) -> Reconciled:
    """
    Repair the next jobs and groups, of all tenants, that do not stand where their edges say.

    A job that waits for nothing is freed, an edge that missed its prerequisite's end is told, a prerequisite
    that is not there any more counts as cancelled, a group whose members have all ended ends. One statement.
    """
    (page,) = db.fetch(
        "reconcile", {"after": after, "limit": limit, "skip": skip}, Reconciled._make, using=using
    )
    return page


class Deferred(NamedTuple):
    """A page of deferred references: the last one's number, None at the end, and how many came to an end."""

    last: int | None
    settled: int


def resolve_deferred(
    *, after: int = 0, limit: int, skip: int = 0, using: str | db.Session = "default"
) -> Deferred:
    """
    Make edges of references whose group or job is there now; end those whose deadline has passed.

    A reference that came to nothing does to its job what on_failure says. One statement.
    """
    (page,) = db.fetch(
        "resolve_deferred", {"after": after, "limit": limit, "skip": skip}, Deferred._make, using=using
    )
    return page

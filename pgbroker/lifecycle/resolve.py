"""resolve: waiting -> ready, scheduled; waiting, blocked -> cancelled, blocked; and back after a retry."""

from typing import NamedTuple

from pgbroker import db


class Resolved(NamedTuple):
    """How many edges a pass has looked at, and whether something is left: what somebody holds just now."""

    looked_at: int
    is_left: bool


def resolve(*, limit: int, skip: int = 0, using: str | db.Session = "default") -> Resolved:
    """
    Look at dependents that were left to a pass, of all tenants.

    One level follows in the statement that ends a job, whoever makes it; what is deeper, or more than that
    statement may take, comes here. Fewer than *limit* looked at: there is no more for now. One statement.
    """
    (answer,) = db.fetch("resolve", {"limit": limit, "skip": skip}, Resolved._make, using=using)
    return answer


def is_left(*, using: str | db.Session = "default") -> bool:
    """Tell whether dependents of anything have been left to a pass that has not come yet. Changes nothing."""
    ((left,),) = db.fetch("is_left", {}, tuple, using=using)
    return bool(left)

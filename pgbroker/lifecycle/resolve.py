"""resolve: waiting -> ready, scheduled; waiting, blocked -> cancelled, blocked; and back after a retry."""

from typing import Any

from pgbroker import db


def resolve(*, limit: int, skip: int = 0, using: str | db.Session = "default") -> int:
    """
    Look at dependents that were left to a pass, of all tenants; returns how many edges were looked at.

    One level follows in the statement that ends a job, whoever makes it; what is deeper, or more than that
    statement may take, comes here. Fewer than *limit*: there is no more for now. One statement.
    """
    (looked_at,) = db.fetch("resolve", {"limit": limit, "skip": skip}, _only, using=using)
    return int(looked_at)


def _only(values: Any) -> Any:
    return values[0]

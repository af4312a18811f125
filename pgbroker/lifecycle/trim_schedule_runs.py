"""trim_schedule_runs: let go of what became of ticks long ago."""

from datetime import timedelta
from typing import NamedTuple

from pgbroker import db


class Trimmed(NamedTuple):
    """How many rows a page looked at, and how many of these are gone: what lives or is held stays."""

    seen: int
    deleted: int


def trim_schedule_runs(
    *, age: timedelta, limit: int, skip: int = 0, using: str | db.Session = "default"
) -> Trimmed:
    """Delete what became of ticks before *age*, of *limit* rows after the *skip* oldest."""
    assert limit >= 1
    wanted = {"age": age, "limit": limit, "skip": skip}
    return db.fetch("trim_schedule_runs", wanted, Trimmed._make, using=using)[0]

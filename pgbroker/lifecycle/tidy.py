"""tidy: delete rows of workers that are long gone."""

from datetime import timedelta

from pgbroker import db


def tidy_workers(*, silent: timedelta, limit: int, using: str | db.Session = "default") -> int:
    """Delete up to *limit* rows of workers that were not heard of for so long; returns how many."""
    assert limit >= 1
    wanted = {"silent": silent, "limit": limit}
    return int(db.fetch("tidy_workers", wanted, lambda row: row[0], using=using)[0])

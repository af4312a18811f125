"""fold: add old counters up in wider buckets, so that the table stays small."""

from datetime import timedelta
from typing import NamedTuple

from pgbroker import db


class Step(NamedTuple):
    """What is folded (0: a worker's minute, 1: a minute, 2: an hour), into how wide a bucket, and at what age."""

    fold: int
    width: str
    age: timedelta


# Rates are told by the minute for a day back, so minutes are kept for longer than that.
STEPS = (
    Step(0, "minute", timedelta(minutes=5)),
    Step(1, "hour", timedelta(hours=25)),
    Step(2, "day", timedelta(days=32)),
)


def fold(step: Step, *, limit: int, using: str | db.Session = "default") -> int:
    """Fold up to *limit* counters, the oldest first, and return how many. Any number of processes may do it."""
    assert limit >= 1
    wanted = {"fold": step.fold, "width": step.width, "age": step.age, "limit": limit}
    return int(db.fetch("fold_counters", wanted, lambda row: row[0], using=using)[0])

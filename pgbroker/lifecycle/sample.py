"""sample: keep how much stands in each queue, and let go of old samples."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from pgbroker import db

# Longer than anything has been due: look at all of it.
EVERYTHING = timedelta(days=36500)
# A sample counts no further: a backlog is either read in full or it is large.
BOUND = 100_000


class Hints(NamedTuple):
    """What a look need not go before: since when a queue's oldest job is ready, and the end of the first lease."""

    ready_since: Mapping[int, datetime]
    leased_until: datetime | None


NO_HINTS = Hints({}, None)


def sample(
    duty: str,
    *,
    holder: UUID,
    epoch: int,
    lease: timedelta,
    hints: Hints = NO_HINTS,
    within: timedelta = EVERYTHING,
    using: str | db.Session = "default",
) -> Hints | None:
    """
    Keep one sample of each queue while the duty is led in this reign; otherwise nothing happens: None.

    Returns what may be given as *hints* the next time, which spares reading what ended jobs left in the
    indexes; *within* does so for scheduled jobs. *lease* is how long one lasts by default.
    """
    wanted = {
        "duty": duty,
        "holder": holder,
        "epoch": epoch,
        "queue_ids": list(hints.ready_since),
        "since": list(hints.ready_since.values()),
        "within": within,
        "leased": hints.leased_until,
        "lease": lease,
        "bound": BOUND,
    }
    rows = db.fetch("sample_queues", wanted, tuple, using=using)
    return Hints({row[0]: row[1] for row in rows}, rows[0][2]) if rows else None


def trim_samples(*, coarse: bool, age: timedelta, limit: int, using: str | db.Session = "default") -> int:
    """Delete up to *limit* samples of a kind that are older than *age*, the oldest first; returns how many."""
    assert limit >= 1
    wanted = {"coarse": coarse, "age": age, "limit": limit}
    return int(db.fetch("trim_samples", wanted, lambda row: row[0], using=using)[0])

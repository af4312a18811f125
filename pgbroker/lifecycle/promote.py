"""promote: scheduled -> ready."""

from collections.abc import Sequence
from datetime import UTC, datetime

from pgbroker import db

EVERYTHING = datetime.min.replace(tzinfo=UTC)


def promote(
    queue_ids: Sequence[int],
    *,
    limit: int,
    since: datetime = EVERYTHING,
    using: str | db.Session = "default",
) -> dict[int, int]:
    """
    Make up to *limit* due jobs of each queue ready, earliest first: scheduled -> ready.

    Returns how many by queue. *since* is a hint: due times at or before it were looked at already.
    """
    assert limit >= 1
    return dict(
        db.fetch(
            "promote",
            {"queue_ids": list(queue_ids), "since": since, "limit": limit},
            lambda row: (row[0], row[1]),
            using=using,
        )
    )

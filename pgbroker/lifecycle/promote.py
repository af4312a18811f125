"""promote: scheduled -> ready."""

from collections.abc import Sequence
from datetime import timedelta

from pgbroker import db

# Longer than anything has been due: look at all of it.
EVERYTHING = timedelta(days=36500)


def promote(
    queue_ids: Sequence[int],
    *,
    limit: int,
    within: timedelta = EVERYTHING,
    using: str | db.Session = "default",
) -> dict[int, int]:
    """
    Make up to *limit* due jobs of each queue ready, earliest first: scheduled -> ready.

    Returns how many by queue. *within* is a hint: times due longer ago were looked at
    already, and reading past them again costs what a held snapshot keeps of them.
    """
    assert limit >= 1
    return dict(
        db.fetch(
            "promote",
            {"queue_ids": list(queue_ids), "within": within, "limit": limit},
            lambda row: (row[0], row[1]),
            using=using,
        )
    )

"""partitions: keep the history tables ahead of time."""

from pgbroker import db

AHEAD = 7


def ensure_partitions(width: str, *, ahead: int = AHEAD, using: str | db.Session = "default") -> list[str]:
    """Make the missing partitions for now and *ahead* more widths; returns the names of those it made."""
    return db.fetch(
        "ensure_partitions", {"width": width, "ahead": ahead}, lambda row: str(row[0]), using=using
    )

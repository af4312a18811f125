"""unknown: since when a job is put back because nobody knew its type."""

from collections.abc import Sequence
from uuid import UUID

from pgbroker import db


def unknown_since(
    job_ids: Sequence[UUID], *, using: str | db.Session = "default"
) -> dict[UUID, tuple[float, int]]:
    """Return for each job that was put back before: seconds since the first time, and how often."""
    return dict(
        db.fetch(
            "unknown_since", {"job_ids": list(job_ids)}, lambda row: (row[0], (row[1], row[2])), using=using
        )
    )


def type_names(ids: Sequence[int], *, using: str | db.Session = "default") -> dict[int, str]:
    """Return the names of types by number, also of those that this process has not loaded."""
    return dict(db.fetch("type_names", {"ids": list(ids)}, lambda row: (row[0], row[1]), using=using))

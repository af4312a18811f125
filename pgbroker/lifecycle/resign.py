"""resign: give the lease on a duty back before its time."""

from uuid import UUID

from pgbroker import db


def resign(duty: str, *, holder: UUID, epoch: int, using: str | db.Session = "default") -> bool:
    """End a reign now, so that another one may begin; tells whether it was still going on."""
    return bool(db.fetch("resign", {"duty": duty, "holder": holder, "epoch": epoch}, tuple, using=using))

"""probe: look whether there is work, and change nothing."""

from collections.abc import Sequence
from typing import NamedTuple

from pgbroker import db


class Prospect(NamedTuple):
    """What a queue has to offer: something ready now, or a job due in so many seconds (negative: due)."""

    queue_id: int
    ready: bool
    due_in_seconds: float | None


def probe(queue_ids: Sequence[int], *, using: str | db.Session = "default") -> list[Prospect]:
    """Tell for each queue whether a claim would find something, in one statement for all of them."""
    return db.fetch("probe", {"queue_ids": list(queue_ids)}, Prospect._make, using=using)

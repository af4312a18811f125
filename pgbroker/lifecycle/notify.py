"""notify: wake the workers that listen. Nothing depends on it."""

from collections.abc import Sequence

from pgbroker import db


def notify(queues: Sequence[str], *, using: str | db.Session = "default") -> None:
    """Send one wake-up a queue, in a transaction of its own: it takes a lock that all commits share."""
    db.fetch("notify", {"queues": list(queues)}, tuple, using=using)

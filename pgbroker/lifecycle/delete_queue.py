"""delete_queue: remove a queue that was made by mistake; one that anything refers to stays."""

from pgbroker import db


def queue_reference(name: str, *, using: str | db.Session = "default") -> str | None:
    """
    Say what refers to a queue: is_default, is_declared, has_jobs or has_history; None when nothing does.

    Or is_scheduled:NAME, of a schedule that enqueues there.
    """
    found: list[str | None] = db.fetch("queue_reference", {"name": name}, lambda row: row[0], using=using)
    return found[0]


def delete_queue(name: str, *, using: str | db.Session = "default") -> str:
    """
    Delete a queue; returns deleted, unknown_queue, or what refers to it, as `queue_reference`.

    It waits for open transactions that have enqueued, a second at most, while others wait for it: ask
    `queue_reference` first. Raises Django's OperationalError (lock_not_available) after that.
    """
    outcome: str = db.fetch("delete_queue", {"name": name}, lambda row: row[0], using=using)[0]
    return outcome

"""settle: running -> completed, scheduled, failed, dead_letter, cancelled. The only verb that ends an attempt."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from pgbroker import db
from pgbroker.conf import settings
from pgbroker.outcomes import Ended, Settled
from pgbroker.states import Status


def settle(
    outcomes: Sequence[Ended], *, max_crashes: int | None = None, using: str | db.Session = "default"
) -> list[Settled]:
    """
    Record how attempts ended and let each row decide where its job goes.

    Returns the decisions. An attempt that is not among them was lost: its lease had passed on, and
    nothing about it changed. A job that crashed its child *max_crashes* times (default: `MAX_CRASHES`) is a
    dead letter. One statement for each worker id among the leases, which is one.
    """
    ordered = sorted(outcomes, key=lambda ended: (ended.lease.worker_id.int, ended.lease.job_id.int))
    decisions: list[Settled] = []
    for worker_id, group in groupby(ordered, key=lambda ended: ended.lease.worker_id):
        batch = list(group)
        rows = db.fetch(
            "settle",
            {
                "worker_id": worker_id,
                "job_ids": db.uuid_array([ended.lease.job_id for ended in batch]),
                "tokens": db.array([ended.lease.lease_token for ended in batch]),
                "states": db.array([int(ended.state) for ended in batch]),
                # Quoted: the text of an instant has a space.
                "started": db.array([f'"{ended.started_at}"' for ended in batch]),
                "seconds": db.array([ended.seconds for ended in batch]),
                "delays": _column(batch, lambda ended: ended.delay),
                "permanent": _column(batch, lambda ended: ended.permanent or None),
                "dead": _column(batch, lambda ended: ended.dead or None),
                "codes": _column(batch, lambda ended: ended.error_code),
                "errors": _column(batch, lambda ended: ended.error),
                "tracebacks": _column(batch, lambda ended: ended.traceback),
                "results": _column(batch, lambda ended: ended.result),
                "bodies": _column(batch, lambda ended: ended.result_body),
                "logs": _column(batch, lambda ended: ended.log_tail),
                "max_crashes": settings().MAX_CRASHES if max_crashes is None else max_crashes,
            },
            tuple,
            using=using,
        )
        decisions += _decisions(batch, rows)
    return decisions


def _decisions(batch: list[Ended], rows: Sequence[tuple[Any, ...]]) -> list[Settled]:
    """Make the decisions of a batch: a row for each costs more than all else, and most are what one expects."""
    told = [Settled._make(row[1:]) for row in rows if row[1] is not None]
    if rows[0][0] < len(batch):
        return told
    statuses = {each.job_id.int: each.status for each in told}
    completed = int(Status.COMPLETED)
    return [
        Settled(ended.lease.job_id, ended.lease.lease_token, statuses.get(ended.lease.job_id.int, completed))
        for ended in batch
    ]


def _column(batch: list[Ended], read: Callable[[Ended], Any]) -> list[Any] | None:
    """Collect a column, or None when nobody in the batch has a value: a null array reads as all null."""
    values = [read(ended) for ended in batch]
    return values if any(value is not None for value in values) else None

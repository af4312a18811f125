"""settle: running -> completed, scheduled, failed, dead_letter, cancelled. The only verb that ends an attempt."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from pgbroker import db
from pgbroker.conf import settings
from pgbroker.outcomes import Ended, Settled
from pgbroker.states import Status

# Of the numbers of ids: to compare two UUIDs, or to hash one, is a call of Python's.
_job, _worker = attrgetter("lease.job_id.int"), attrgetter("lease.worker_id.int")


def settle(
    outcomes: Sequence[Ended], *, max_crashes: int | None = None, using: str | db.Session = "default"
) -> list[Settled]:
    """
    Record how attempts ended and let each row decide where its job goes.

    Returns the decisions. An attempt that is not among them was lost: its lease had passed on, and
    nothing about it changed. A job that crashed its child *max_crashes* times (default: `MAX_CRASHES`) is a
    dead letter. One statement for each worker id among the leases, which is one.
    """
    ordered = sorted(outcomes, key=_job)
    decisions: list[Settled] = []
    for worker in sorted(set(map(_worker, ordered))):
        batch = [ended for ended in ordered if _worker(ended) == worker]
        decisions += _decisions(
            batch, db.fetch("settle", _parameters(batch, max_crashes), tuple, using=using)
        )
    return decisions


def _parameters(batch: Sequence[Ended], max_crashes: int | None) -> dict[str, Any]:
    (
        leases, states, started, seconds, delays, permanent, dead, codes, errors, tracebacks, results, logs, bodies,
    ) = zip(*batch, strict=True)  # fmt: skip
    return {
        "worker_id": leases[0].worker_id,
        "job_ids": db.uuid_array([lease.job_id for lease in leases]),
        "tokens": db.array([lease.lease_token for lease in leases]),
        "states": db.array(map(int, states)),
        # Quoted: the text of an instant has a space.
        "started": '{"' + '","'.join(map(str, started)) + '"}',
        "seconds": db.array(seconds),
        "delays": _column(delays),
        "permanent": _column(permanent, False),
        "dead": _column(dead, False),
        "codes": _column(codes),
        "errors": _column(errors),
        "tracebacks": _column(tracebacks),
        "results": _column(results),
        "bodies": _column(bodies),
        "logs": _column(logs),
        "max_crashes": settings().MAX_CRASHES if max_crashes is None else max_crashes,
    }


def _column(values: tuple[Any, ...], nothing: Any = None) -> list[Any] | None:
    """Make a column, or None when nobody in the batch has a value: a null array reads as all null."""
    return None if values.count(nothing) == len(values) else list(values)


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

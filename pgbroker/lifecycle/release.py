"""release: running -> ready or scheduled, nothing burned."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby

from pgbroker import db
from pgbroker.lease import Fence, Lease
from pgbroker.outcomes import Settled


def release(
    leases: Sequence[tuple[Lease | Fence, timedelta | None]],
    *,
    code: str,
    using: str | db.Session = "default",
) -> list[Settled]:
    """
    Hand claimed jobs back unharmed: running -> ready, or scheduled after a delay.

    *leases* pairs each lease with None (ready at once) or its delay; *code* says why in the history. The
    attempt is granted again. Not among the returned: lost, or asked to cancel and still this worker's.
    """
    ordered = sorted(leases, key=lambda pair: (pair[0].worker_id, pair[0].job_id))
    released: list[Settled] = []
    for worker_id, group in groupby(ordered, key=lambda pair: pair[0].worker_id):
        batch = list(group)
        released += db.fetch(
            "release",
            {
                "worker_id": worker_id,
                "job_ids": db.uuid_array([lease.job_id for lease, _ in batch]),
                "tokens": db.array([lease.lease_token for lease, _ in batch]),
                "delays": [delay for _, delay in batch],
                "code": code,
            },
            Settled._make,
            using=using,
        )
    return released

"""claim: ready -> running."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from pgbroker import db
from pgbroker.lease import Lease

# A lane's bound: the (ready_at, id) this worker took last there.
Bounds = Mapping[int, tuple[datetime, UUID]]


def claim(
    queue_id: int,
    *,
    limit: int,
    idle: int,
    worker_id: UUID,
    lease: timedelta,
    ageing: timedelta,
    max_crashes: int,
    suspects: int,
    quick: Sequence[int] = (),
    bounds: Bounds | None = None,
    using: str | db.Session = "default",
) -> list[Lease]:
    """
    Take up to *limit* ready jobs of a queue, best rank first: ready -> running.

    Returns at once; the list is empty when nothing is ready. Each claim burns one attempt and issues a
    new lease token, which every later write about the attempt must present. Beyond the first *idle* only
    jobs of *quick* types are taken, and none that is fragile (see `Lease.fragile`). At most *suspects* are
    among them (see `Lease.is_suspect`). *bounds* are hints by priority; without them it looks from the start.
    """
    assert limit >= 1
    assert idle >= 0
    assert suspects >= 0
    lanes = list((bounds or {}).items())
    return db.fetch(
        "claim",
        {
            "queue_id": queue_id,
            "limit": limit,
            "idle": idle,
            "quick": list(quick),
            "suspects": suspects,
            "max_crashes": max_crashes,
            "worker_id": worker_id,
            "lease": lease,
            "ageing": ageing,
            "priorities": [priority for priority, _ in lanes],
            "since": [ready_at for _, (ready_at, _) in lanes],
            "since_id": [job_id for _, (_, job_id) in lanes],
        },
        partial(_lease, worker_id),
        using=using,
    )


def _lease(worker_id: UUID, values: Sequence[Any]) -> Lease:
    lease = Lease._make((*values, worker_id))
    # An SQL caller may have stored anything there; options that are no object are none.
    return lease if lease.options is None or type(lease.options) is dict else lease._replace(options=None)

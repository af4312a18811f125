"""The bare loop that workers are compared with: the same statements on one connection, and nothing between them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from pgbroker import db
from pgbroker.ids import new_id
from pgbroker.lease import Lease
from pgbroker.lifecycle.claim import claim
from pgbroker.lifecycle.settle import settle
from pgbroker.outcomes import Ended
from pgbroker.states import AttemptState
from testproject.bench import stage

BATCH = 500


def drain(count: int) -> float:
    """
    Claim 500 and settle 500, two commits on one connection, until nothing is left; jobs a second.

    As with a worker, time begins where the first job would: after the first claim.
    """
    session, worker_id, queue = db.Session("default", purpose="bench"), new_id(), stage.queue_id()
    bounds: dict[int, Any] = {}

    def take() -> list[Lease]:
        leases = claim(
            queue, limit=BATCH, idle=BATCH, worker_id=worker_id, lease=timedelta(seconds=60),
            ageing=timedelta(seconds=60), max_crashes=3, suspects=1, bounds=bounds, using=session,
        )  # fmt: skip
        for lease in leases[-1:]:
            bounds[lease.priority] = (lease.ready_at, lease.job_id)
        return leases

    leases = take()
    began = time.perf_counter()
    while leases:
        settle(
            [Ended(lease, AttemptState.COMPLETED, lease.leased_at, 0.0) for lease in leases], using=session
        )
        leases = take()
    seconds = time.perf_counter() - began
    session.drop()
    return count / seconds

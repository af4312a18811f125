"""Take claimed jobs in: start what has a slot, hold the rest, put back what nobody here can run."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgbroker.errors import UndecodableArgument
from pgbroker.lease import Lease
from pgbroker.registry import JobType
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.unknown import put_back_unknown

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker


def take_in(worker: "Worker", leases: Sequence[Lease], asked_at: float) -> None:
    """
    Make attempts of leases, start those that the board gives slots, and put back jobs of unknown types.

    *asked_at* is the monotonic clock when the claim was sent.
    """
    now = time.monotonic()
    known: list[Attempt] = []
    unknown: list[Lease] = []
    for lease in leases:
        job_type = worker.catalogue.handler_of(lease)
        if job_type is None:
            unknown.append(lease)
            continue
        try:
            attempt = Attempt(lease, job_type, now, worker.settings, worker.alias)
            attempt.leased_from = asked_at
            attempt.executor = worker.executors.of(job_type)
            attempt.seconds_to_deadline()
        except Exception as error:
            # One row that says what no code of ours would: it fails, and the others go on.
            _refuse(worker, lease, job_type, now, error)
        else:
            known.append(attempt)
    known = [attempt for attempt in known if not _meets_itself(worker, attempt)]
    starting = worker.board.add(known)
    # Counted once they are on the board: with none left to claim and none on the board it would end.
    worker.claimed_count += len(known)
    try:
        worker.executors.start_all(starting)
    except RuntimeError as error:
        # No more threads can be made: those attempts have slots and nobody who runs them.
        worker.fail(error)
        raise
    if unknown:
        put_back_unknown(worker, unknown, using=worker.sessions["claim"])


def _meets_itself(worker: "Worker", attempt: Attempt) -> bool:
    """
    Stop a former attempt of the same job here; tells whether this one must not run beside it.

    A database that lost commits, by a failover to a standby that lagged, issues the same token again: a
    fence that both attempts pass. Then this one goes back, and the next claim takes a new token.
    """
    former = worker.board.attempt_at(attempt.lease.job_id)
    if former is None:
        return False
    if former.is_open:
        worker.stop_attempt(former, "lease_lost")
    if former.lease.lease_token != attempt.lease.lease_token:
        return False
    worker.release([attempt], code="claimed_twice", using=worker.sessions["claim"])
    return True


def _refuse(worker: "Worker", lease: Lease, job_type: JobType, now: float, error: Exception) -> None:
    readable = lease._replace(options=None, deadline_at=None)
    attempt = Attempt(readable, job_type, now, worker.settings)
    told = UndecodableArgument(f"the stored job cannot be read: {type(error).__name__}")
    worker.claimed_count += 1
    worker.report(attempt, attempt.undecodable(told, worker.settings))

"""Jobs for tests: enqueue one, claim one, say how an attempt ended, and let time pass for rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from pgbroker.lease import Lease
from pgbroker.lifecycle.beat import WorkerState, beat
from pgbroker.lifecycle.claim import claim
from pgbroker.lifecycle.declare import DeclaredType, declare_queues, declare_types
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.lifecycle.reap import Reaped, reap
from pgbroker.lifecycle.settle import settle
from pgbroker.models import Execution, Job, JobEvent, JobState, JobType
from pgbroker.outcomes import Ended, Settled
from pgbroker.policy.backoff import Backoff
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import scope_all
from pgbroker.testing import guards_off

TYPE = "tests.ok"
OTHER_TYPE = "tests.other"
QUEUE = "default"
WORKER = UUID("00000000-0000-7000-8000-000000000001")
OTHER_WORKER = UUID("00000000-0000-7000-8000-000000000002")
LEASE = timedelta(seconds=60)
AGEING = timedelta(seconds=60)
MAX_CRASHES = 3


def queue_id(name: str = QUEUE) -> int:
    """Return the number of a queue, which is made when there is none."""
    return declare_queues([name])[0].id


def type_id(name: str = TYPE) -> int:
    """Return the number of a job type, which is declared when there is none."""
    return declare_types([DeclaredType(name=name, version=1, aliases=(), defaults={})])[name]


def enqueue_one(**options: Any) -> UUID:
    """Enqueue one job of the current tenant and return its id; *options* are keys of `enqueue_many_1`."""
    row = {"job_type": TYPE, **options}
    queue_id(row.get("queue", QUEUE))
    type_id(row["job_type"])
    (answer,) = enqueue_rows([{key: _as_json(value) for key, value in row.items()}])
    assert answer.outcome == "created", answer
    return answer.job_id


def _as_json(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str, list, dict)) else str(value)


def claim_many(limit: int = 100, **options: Any) -> list[Lease]:
    """Claim up to *limit* jobs of the queue `default` for WORKER, of whichever tenant."""
    asked: dict[str, Any] = {
        "idle": limit,
        "quick": list(JobType.objects.values_list("id", flat=True)),
        "worker_id": WORKER,
        "lease": LEASE,
        "ageing": AGEING,
        "max_crashes": MAX_CRASHES,
        "suspects": limit,
        **options,
    }
    return claim(queue_id(asked.pop("queue", QUEUE)), limit=limit, **asked)


def claim_one(**options: Any) -> Lease:
    """Claim exactly one job: the next in rank."""
    (lease,) = claim_many(1, **options)
    return lease


def ended(lease: Lease, state: AttemptState = AttemptState.COMPLETED, **how: Any) -> Ended:
    """Say that an attempt ended in *state*; a failed one asks for a retry at once unless *how* differs."""
    return Ended(lease=lease, state=state, started_at=lease.leased_at, seconds=0.25, **how)


def completed(lease: Lease, **how: Any) -> Ended:
    """Say that an attempt completed."""
    return ended(lease, AttemptState.COMPLETED, **how)


def failed(lease: Lease, delay: timedelta | None = timedelta(0), **how: Any) -> Ended:
    """Say that an attempt failed and would be tried again after *delay*."""
    return ended(lease, AttemptState.FAILED, delay=delay, error_code="boom", error="it broke", **how)


def snoozed(lease: Lease, delay: timedelta = timedelta(0)) -> Ended:
    """Say that an attempt asked to come back after *delay*."""
    return ended(lease, AttemptState.SNOOZED, delay=delay)


def settle_one(outcome: Ended) -> Settled:
    """Settle one attempt that still holds its lease."""
    (decision,) = settle([outcome])
    return decision


def reap_all(*, max_crashes: int = 3, backoff: Backoff | None = None, **options: Any) -> list[Reaped]:
    """Take back whatever lease has expired."""
    return reap(limit=100, max_crashes=max_crashes, backoff=backoff or Backoff(), **options)


def alive(worker_id: UUID = WORKER) -> None:
    """Give a worker a row that is alive."""
    beat(
        WorkerState(worker_id=worker_id, name="w", host="h", pid=1, version="0", queues=[QUEUE], slots=1),
        lease=LEASE,
    )


def row(job_id: UUID) -> Job:
    """Read a job as it is now, of whichever tenant."""
    with scope_all():
        return Job.objects.get(pk=job_id)


def status(job_id: UUID) -> Status:
    """Read where a job is now, of whichever tenant."""
    return Status(row(job_id).status)


def executions(job_id: UUID) -> list[Execution]:
    """List a job's ended attempts, first to last."""
    with scope_all():
        return list(Execution.objects.filter(job=job_id).order_by("attempt_no", "id"))


def attempt_states(job_id: UUID) -> list[AttemptState]:
    """List how a job's attempts ended, first to last."""
    return [AttemptState(each.state) for each in executions(job_id)]


def events(job_id: UUID) -> list[int]:
    """List a job's events, in the order they were written."""
    with scope_all():
        return list(JobEvent.objects.filter(job=job_id).order_by("id").values_list("event", flat=True))


def reason(job_id: UUID) -> str | None:
    """Read the code of why a job is where it is, or None when it has none."""
    with scope_all():
        return JobState.objects.filter(job=job_id).values_list("reason_code", flat=True).first()


_TIMES = (
    "ready_at", "available_at", "leased_at", "lease_expires_at", "cancel_requested_at", "deadline_at",
    "created_at", "finished_at",
)  # fmt: skip


def age(*job_ids: UUID, only: Sequence[str] = _TIMES, **by: float) -> None:
    """Let time pass for jobs: move *only* these instants of their rows back; no clock is touched."""
    moved = ", ".join(f"{column} = {column} - %(by)s" for column in only)
    with guards_off(), connection.cursor() as cursor:
        cursor.execute(
            f"update pgbroker.job set {moved} where id = any (%(ids)s)",
            {"by": timedelta(**by), "ids": list(job_ids)},
        )
        assert cursor.rowcount == len(set(job_ids))


def age_key(key: str = "k", **by: float) -> None:
    """Let time pass for an idempotency key, of whichever tenant and type, and for the job that holds it."""
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(
            "update pgbroker.idempotency set created_at = created_at - %(by)s, expires_at = expires_at - %(by)s "
            "where key = %(key)s returning job_id",
            {"by": timedelta(**by), "key": key},
        )
        age(*(job_id for (job_id,) in cursor.fetchall()), **by)


def age_worker(worker_id: UUID = WORKER, **by: float) -> None:
    """Let time pass for a worker's row: it was heard of that much longer ago."""
    with connection.cursor() as cursor:
        cursor.execute(
            "update pgbroker.worker set expires_at = expires_at - %s, heartbeat_at = heartbeat_at - %s "
            "where id = %s",
            (timedelta(**by), timedelta(**by), worker_id),
        )

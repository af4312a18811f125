"""Run jobs inside a test: claimed, called and settled by the statements of a worker, on the test's own connection."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from asgiref.sync import async_to_sync
from django.db import connections, transaction

from pgbroker import telemetry
from pgbroker.backend import send_signals, wants_signals
from pgbroker.bodies import Reference, chosen_storage
from pgbroker.conf import settings
from pgbroker.control import explain, job_id_of
from pgbroker.custody import Custody
from pgbroker.errors import InvalidOption, JobNotFound, UndecodableArgument, UnknownQueue
from pgbroker.ids import new_id
from pgbroker.lease import Lease
from pgbroker.lifecycle.claim import claim
from pgbroker.lifecycle.clock import database_time
from pgbroker.lifecycle.declare import QueueRow, list_queues, type_ids
from pgbroker.lifecycle.expire import expire
from pgbroker.lifecycle.look import Job, look
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.reconcile import resolve_deferred
from pgbroker.lifecycle.release import release
from pgbroker.lifecycle.resolve import resolve
from pgbroker.lifecycle.settle import settle
from pgbroker.outcomes import Ended
from pgbroker.payload import decode
from pgbroker.references import HasId
from pgbroker.registry import JobType, names, synchronise_apart
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.attempt_bodies import fetch_arguments, is_too_large, save_result
from pgbroker.runtime.calling import call_handler, call_handler_async
from pgbroker.runtime.isolation import enter, leave
from pgbroker.runtime.settler import tell_ended
from pgbroker.states import TERMINAL, AttemptState, Status
from pgbroker.tenancy import scope_all
from pgbroker.testing.rows import age

# Dependents, or references to what is still to come, that are looked at in one statement.
PAGE = 1000
# More jobs than a test means to run.
MOST = 1000


class Ran(NamedTuple):
    """
    One attempt that was run: how it ended, and what its handler raised or returned.

    *state* tells how the attempt ended, *status* where that left the job. *result* is JSON, as
    `TaskResult.return_value`.
    """

    job_id: UUID
    job_type: str
    state: AttemptState
    status: Status
    error: BaseException | None
    attempt_no: int
    result: Any


def run_jobs(
    *,
    queues: Sequence[str] | None = None,
    limit: int | None = None,
    reraise: bool = False,
    using: str | None = None,
) -> list[Ran]:
    """
    Run ready jobs of all tenants here and now, one after another, until none is left or *limit* have run.

    Without a *limit* it is an `AssertionError` when more than 1,000 run: jobs that enqueue one another never end.

    Jobs that are due are promoted first, and jobs that a job enqueues are run too, as are those that waited for
    what has run. What is scheduled for later waits (see `age`), what is past its deadline fails. Handlers run in
    their job's tenant. Returns the attempts in order. With *reraise* the first error of a handler is raised, once
    it is recorded. Raises `UnknownQueue`.
    """
    ran: list[Ran] = []
    if isinstance(queues, str):
        raise InvalidOption("queues", f"is {queues!r}", "Give a list of names.")
    most = MOST + 1 if limit is None else limit
    for each in run_each(queues=queues, limit=most, using=using or settings().DATABASES[0]):
        ran.append(each)
        if reraise and each.error is not None:
            raise each.error
    if limit is None and len(ran) > MOST:
        raise AssertionError(
            f"more than {MOST:,} jobs have run, the last of {ran[-1].job_type}. Do they enqueue one another? "
            "Where so many are meant, name a limit."
        )
    return ran


def run_each(*, queues: Sequence[str] | None = None, limit: int, using: str) -> Iterator[Ran]:
    """Run ready jobs as `run_jobs` does, one at each turn."""
    handlers = _handlers(using)
    served = _served(queues, using)
    worker_id = new_id()
    expire(limit=1000, using=using)
    unsubscribe = telemetry.subscribe(send_signals, wants=wants_signals)
    try:
        for _ in range(limit):
            claimed = _claim_next(served, worker_id, using)
            while claimed is None and _resolve(using):
                claimed = _claim_next(served, worker_id, using)
            if claimed is None:
                return
            queue, lease = claimed
            yield _run(lease, queue, handlers.get(lease.job_type_id), using)
    finally:
        unsubscribe()


def run_to_end(job: UUID | str | HasId, *, attempts: int = 100, using: str | None = None) -> Ran:
    """
    Run a job until it has ended, however long its backoff is, and return its last attempt.

    Time passes for this job alone, up to its next attempt; other ready jobs run as well. Raises
    `JobNotFound`, and `AssertionError` when the job has not ended after so many *attempts*, or cannot run.
    """
    __tracebackhide__ = True
    alias = using or settings().DATABASES[0]
    job_id = job_id_of(job)
    last: Ran | None = None
    found = _found(job_id, alias)
    if found.status in TERMINAL:
        raise AssertionError(
            f"job {job_id} is {found.status.label} already. Run it once, or retry() it before."
        )
    for _ in range(attempts):
        wait = _wait_of(_found(job_id, alias), alias)
        if wait is not None and wait > timedelta(0):
            age(job_id, seconds=wait.total_seconds(), using=alias)
        mine = [ran for ran in run_jobs(using=alias) if ran.job_id == job_id]
        if not mine:
            break
        last = mine[-1]
        if last.status in TERMINAL:
            return last
    now = f"after its last attempt it is {last.status.label}" if last else "it did not run"
    with scope_all():
        why = explain(job_id, using=alias).sentence
    raise AssertionError(f"job {job_id} has not ended: {now}. {why}")


def _found(job_id: UUID, alias: str) -> Job:
    """Read a job of any tenant; raises `JobNotFound`."""
    with scope_all():
        found = look(job_id, using=alias)
    if found is None:
        raise JobNotFound(job_id)
    return found


def _wait_of(job: Job, alias: str) -> timedelta | None:
    """Return how long a job waits for its time; None when it does not."""
    if job.status != Status.SCHEDULED or job.available_at is None:
        return None
    return job.available_at - database_time(using=alias)


def _handlers(alias: str) -> dict[int, JobType]:
    """Return the handlers by their types' ids; what the database does not know yet is declared first."""
    known = names()
    ids = type_ids(list(known), using=alias)
    if not {each.key for each in known.values()} <= ids.keys():
        synchronise_apart(using=alias)
        ids = type_ids(list(known), using=alias)
    return {number: known[name] for name, number in ids.items()}


def _served(queues: Sequence[str] | None, alias: str) -> list[QueueRow]:
    rows = list_queues(using=alias)
    if queues is None:
        return rows
    by_name = {row.name: row for row in rows}
    if unknown := [name for name in queues if name not in by_name]:
        raise UnknownQueue(unknown[0], by_name)
    return [by_name[name] for name in queues]


def _claim_next(served: Sequence[QueueRow], worker_id: UUID, alias: str) -> tuple[QueueRow, Lease] | None:
    promote([queue.id for queue in served], limit=1000, using=alias)
    for queue in served:
        leases = claim(
            queue.id,
            limit=1,
            idle=1,
            worker_id=worker_id,
            lease=timedelta(hours=1),
            ageing=timedelta(seconds=settings().AGEING_SECONDS),
            max_crashes=settings().MAX_CRASHES,
            suspects=1,
            using=alias,
        )
        if leases:
            return queue, leases[0]
    return None


def _resolve(alias: str) -> bool:
    """Do what the upkeep of a worker does for jobs that wait; tells whether there was anything to do."""
    page = resolve_deferred(limit=PAGE, using=alias)
    settled = page.settled
    while page.last is not None:
        page = resolve_deferred(after=page.last, limit=PAGE, using=alias)
        settled += page.settled
    return resolve(limit=PAGE, using=alias).looked_at > 0 or settled > 0


def _run(lease: Lease, queue: QueueRow, job_type: JobType | None, alias: str) -> Ran:
    if job_type is None or lease.type_version > job_type.task.version:
        release([(lease, None)], code="unknown_job_type", using=alias)
        raise AssertionError(
            f"job {lease.job_id} is of a type, or of a version of one, that this process has not registered"
        )
    attempt = Attempt(lease, job_type, time.monotonic(), settings(), alias)
    attempt.started = attempt.claimed_at
    keys = {
        "job_id": lease.job_id,
        "job_type": job_type.key,
        "queue": queue.name,
        "tenant_id": lease.tenant_id,
        "attempt_no": lease.attempt_count,
        "lease_token": lease.lease_token,
        "worker_id": lease.worker_id,
        "correlation_id": lease.correlation_id,
    }
    ended = _call(attempt, keys, alias)
    decisions = settle([ended], using=alias)
    assert decisions, f"job {lease.job_id} changed hands while it ran"
    if ended.result_body is not None:
        custody = Custody(ended.result_body, chosen_storage(), job_id=lease.job_id, using=alias)
        custody.keep_with(job_id=lease.job_id)
    status = Status(decisions[0].status)
    tell_ended(keys, attempt, ended, status)
    return Ran(
        job_id=lease.job_id,
        job_type=job_type.key,
        state=ended.state,
        status=status,
        error=attempt.error,
        attempt_no=lease.attempt_count,
        result=_result_of(ended),
    )


def _result_of(ended: Ended) -> Any:
    value = json.loads(ended.result or "null")
    if ended.result_body is None:
        return value
    return Reference(ended.result_body, value, ended.lease.tenant_id).read()


def _call(attempt: Attempt, keys: dict[str, Any], alias: str) -> Ended:
    """Call a handler as a worker does, but keep the surrounding transaction usable when it breaks it."""
    connection = connections[alias]
    block = transaction.atomic(using=alias) if connection.in_atomic_block else nullcontext()
    with block:
        ended = _outcome_of_call(attempt, keys)
        # A handler that caught the database's error left the transaction broken all the same.
        if connection.in_atomic_block and connection.connection.info.transaction_status.name == "INERROR":
            transaction.set_rollback(True, using=alias)
    return ended


def _outcome_of_call(attempt: Attempt, keys: dict[str, Any]) -> Ended:
    job_type = attempt.job_type
    tokens = enter(attempt)
    try:
        fetch_arguments(attempt)
        telemetry.emit("attempt.started", **keys, attempt=attempt)
        args, kwargs = decode(job_type.signature, attempt.lease.args)
        call = async_to_sync(call_handler_async) if job_type.is_async else call_handler
        ended = attempt.completed(call(attempt, args, kwargs), settings())
        return save_result(attempt, ended, settings()) if is_too_large(ended, settings()) else ended
    except UndecodableArgument as error:
        return attempt.undecodable(error, settings())
    except (KeyboardInterrupt, AssertionError):
        raise  # the test's own
    except BaseException as error:
        return attempt.failed(error, settings())
    finally:
        leave(tokens)

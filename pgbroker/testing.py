"""
For tests of a project that uses pgbroker: run jobs inside the test, let time pass for rows, empty the tables.

Nothing here is a fake: jobs go through the same statements as in a worker, on the test's own
connection, so it works inside a `TestCase` transaction too.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

import pgtrigger
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.db.models import DateTimeField, F

from pgbroker.bodies import chosen_storage
from pgbroker.conf import settings
from pgbroker.custody import Custody
from pgbroker.errors import UndecodableArgument
from pgbroker.ids import new_id
from pgbroker.lease import Lease
from pgbroker.lifecycle.claim import claim
from pgbroker.lifecycle.declare import list_queues
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.release import release
from pgbroker.lifecycle.settle import settle
from pgbroker.models import Execution, Job, JobEvent, JobState, Pause
from pgbroker.outcomes import Ended
from pgbroker.payload import decode
from pgbroker.registry import JobType, synchronise, types
from pgbroker.removals import removals
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.attempt_bodies import fetch_arguments, is_too_large, save_result
from pgbroker.runtime.isolation import enter, leave
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import scope_all

# What a test fills. Queues and job types stay: code knows their numbers.
TABLES = (
    "job",
    "job_payload",
    "job_state",
    "idempotency",
    "execution",
    "job_event",
    "worker",
    "job_counter",
    "pause",
)


class Ran(NamedTuple):
    """One attempt that `run_jobs` made: how it ended, and the exception its handler raised, if any."""

    job_id: UUID
    job_type: str
    state: AttemptState
    status: Status
    error: BaseException | None


def run_jobs(
    *, queues: Sequence[str] | None = None, limit: int = 1000, using: str | None = None
) -> list[Ran]:
    """
    Run ready jobs of all tenants here and now, one after another, until none is left or *limit* have run.

    Jobs that are due are promoted first, and jobs that a job enqueues are run too; what is scheduled for
    later waits (see `age`). Handlers run in their job's tenant. Returns the attempts in order.
    """
    alias = using or settings().DATABASES[0]
    ids = synchronise(using=alias)
    known = {number: types()[key] for key, number in ids.items()}
    served = [queue for queue in list_queues(using=alias) if queues is None or queue.name in queues]
    worker_id = new_id()
    ran: list[Ran] = []
    while len(ran) < limit:
        promote([queue.id for queue in served], limit=limit, using=alias)
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
                ran.append(_run(leases[0], known, alias))
                break
        else:
            return ran
    return ran


def _run(lease: Lease, known: dict[int, JobType], alias: str) -> Ran:
    job_type = known.get(lease.job_type_id)
    if job_type is None:
        release([(lease, None)], code="unknown_job_type", using=alias)
        raise AssertionError(f"job {lease.job_id} is of a type that this process has not registered")
    attempt = Attempt(lease, job_type, time.monotonic(), settings())
    attempt.started = attempt.claimed_at
    ended = _call(attempt, alias)
    decisions = settle([ended], using=alias)
    assert decisions, f"job {lease.job_id} changed hands while it ran"
    if ended.result_body is not None:
        custody = Custody(ended.result_body, chosen_storage(), job_id=lease.job_id, using=alias)
        custody.keep_with(job_id=lease.job_id)
    return Ran(lease.job_id, job_type.key, ended.state, Status(decisions[0].status), attempt.error)


def _call(attempt: Attempt, alias: str) -> Ended:
    """Call a handler as a worker does, but keep the surrounding transaction usable when it breaks it."""
    connection = connections[alias]
    block = transaction.atomic(using=alias) if connection.in_atomic_block else nullcontext()
    with block:
        ended = _outcome_of_call(attempt)
        # A handler that caught the database's error left the transaction broken all the same.
        if connection.in_atomic_block and connection.connection.info.transaction_status.name == "INERROR":
            transaction.set_rollback(True, using=alias)
    return ended


def _outcome_of_call(attempt: Attempt) -> Ended:
    job_type = attempt.job_type
    tokens = enter(attempt)
    try:
        fetch_arguments(attempt)
        args, kwargs = decode(job_type.signature, attempt.lease.args)
        handler = async_to_sync(job_type.task.func) if job_type.is_async else job_type.task.func
        context = (attempt.context(),) if job_type.task.takes_context else ()
        ended = attempt.completed(handler(*context, *args, **kwargs), settings())
        return save_result(attempt, ended, settings()) if is_too_large(ended, settings()) else ended
    except UndecodableArgument as error:
        return attempt.undecodable(error, settings())
    except (KeyboardInterrupt, AssertionError):
        raise  # the test's own
    except BaseException as error:
        return attempt.failed(error, settings())
    finally:
        leave(tokens)


def settle_bodies(*, seconds: float = 10.0) -> None:
    """
    Wait until bodies of what was rolled back or refused so far are removed; raises `TimeoutError`.

    A thread of its own removes them, moments after the rollback.
    """
    if not removals.settle(seconds):
        raise TimeoutError(f"the storage or the database did not answer within {seconds} s")


def age(job: UUID | str | None = None, *, using: str | None = None, **duration: float) -> None:
    """
    Let time pass for a job (or for all): move the times of its rows back by *duration* (`hours=1`).

    No clock is faked: what was due in an hour is due now, a lease of a minute has expired. Events and
    executions of the job move along.
    """
    alias = using or settings().DATABASES[0]
    back = timedelta(**duration)
    with guards_off(using=alias):
        for model, link in ((Job, "pk"), (JobState, "job"), (Execution, "job"), (JobEvent, "job")):
            rows = model._base_manager.using(alias)
            if job is not None:
                rows = rows.filter(**{link: job})
            rows.update(**_moved(model, back))
        if job is None:
            Pause.objects.using(alias).update(**_moved(Pause, back))


@contextmanager
def guards_off(*, using: str | None = None) -> Iterator[None]:
    """
    Write rows that no verb makes, in all tenants, without events and in one transaction.

    Policies and constraints hold as ever. By the guards' own switch, set here and not by
    `pgtrigger.ignore()`: that one puts a second statement into each, which a pipeline refuses.
    """
    alias = using or settings().DATABASES[0]
    guards = ",".join(trigger.get_pgid(model) for model, trigger in pgtrigger.registered())
    names = ("pgtrigger.ignore", "pgbroker.events")
    write = "select set_config('pgtrigger.ignore', %s, true), set_config('pgbroker.events', %s, true)"
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute(
            "select coalesce(nullif(current_setting(%s, true), ''), '{}'), "
            "coalesce(current_setting(%s, true), '')",
            names,
        )
        before = cursor.fetchone()
        cursor.execute(write, ("{" + guards + "}", "off"))
        with scope_all():
            yield
        cursor.execute(write, before)


def _moved(model: type, back: timedelta) -> dict[str, object]:
    return {
        field.name: F(field.name) - back
        for field in model._meta.concrete_fields  # type: ignore[attr-defined]
        if isinstance(field, DateTimeField)
    }


def flush(*, using: str | None = None) -> None:
    """
    Empty pgbroker's tables, but for queues and job types.

    Django's own flush (`TransactionTestCase`) does not see tables outside of the search path.
    """
    alias = using or settings().DATABASES[0]
    names = ", ".join(f"pgbroker.{name}" for name in TABLES)
    with connections[alias].cursor() as cursor:
        cursor.execute(f"truncate {names}")

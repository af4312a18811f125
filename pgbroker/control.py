"""What a program or an operator does with jobs that exist: look, link, unblock, cancel, retry, pause, resume."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db import OperationalError, transaction
from psycopg.errors import LockNotAvailable

from pgbroker.conf import settings
from pgbroker.errors import (
    EnqueueRefused,
    InvalidOption,
    JobNotFound,
    JobNotRetryable,
    KeyHeldByNewerJob,
    PrerequisiteFailed,
    QueueInUse,
    UnknownJobType,
    UnknownQueue,
)
from pgbroker.lifecycle import explain as explaining
from pgbroker.lifecycle import pause as pausing
from pgbroker.lifecycle.add_edge import add_edge
from pgbroker.lifecycle.cancel import Cancelled, cancel_many
from pgbroker.lifecycle.clock import database_time
from pgbroker.lifecycle.declare import list_queues, type_ids
from pgbroker.lifecycle.delete_queue import delete_queue as deleting
from pgbroker.lifecycle.delete_queue import queue_reference
from pgbroker.lifecycle.look import Job, look
from pgbroker.lifecycle.retry import Ending, Retried, find_ended, retry_many
from pgbroker.lifecycle.unblock import Unblocked, unblock_many
from pgbroker.obstacles import find_obstacle
from pgbroker.options import Keyed, checked_tag
from pgbroker.policy.job_facts import upper
from pgbroker.policy.values import duration as checked_duration
from pgbroker.policy.values import remark, string, whole
from pgbroker.policy.why_not_running import Explanation
from pgbroker.references import AnyPrerequisite, CallRef, HasId, as_json, checked_policy, references_of
from pgbroker.registry import names
from pgbroker.states import Status
from pgbroker.tenancy import checked_tenant
from pgbroker.wakeups import tell_freed, wake_after_commit

# Jobs that one statement of a redrive takes.
PAGE = 500
_START = Ending(UUID(int=0), datetime(1970, 1, 1, tzinfo=UTC))


def job_id_of(job: UUID | str | HasId) -> UUID:
    """Return the id of a job given as id, text of an id, or something that has one. Raises `JobNotFound`."""
    value = getattr(job, "id", job) if not isinstance(job, (UUID, str)) else job
    if isinstance(value, UUID):
        return value
    try:
        return UUID(str(value))
    except ValueError:
        raise JobNotFound(value) from None


class FoundJob(Job):
    """Everything that is known about one job, and a way to ask why it does not run."""

    __slots__ = ()

    def explain(self) -> Explanation:
        """
        Tell the one reason why the job does not run, as it is now: a `code`, a `sentence`, `ids` and a `cure`.

        In the current tenant; raises `JobNotFound` when the job is not there any more.
        """
        return explain(self.id, using=self.database)


def get_job(job: UUID | str | HasId, *, using: str | None = None) -> FoundJob:
    """Read one job of the current tenant with its executions; raises `JobNotFound`."""
    job_id = job_id_of(job)
    found = look(job_id, using=using or settings().DATABASES[0])
    if found is None:
        raise JobNotFound(job_id)
    return FoundJob._make(found)


def explain(job: UUID | str | HasId, *, using: str | None = None) -> Explanation:
    """Tell the one reason why a job of the current tenant does not run, or that it does; raises `JobNotFound`."""
    job_id, chosen = job_id_of(job), settings()
    ageing = timedelta(seconds=chosen.AGEING_SECONDS)
    told = explaining.explain(job_id, ageing=ageing, using=using or chosen.DATABASES[0])
    if told is None:
        raise JobNotFound(job_id)
    return told


def cancel(job: UUID | str | HasId, *, reason: str = "", by: str = "", using: str | None = None) -> Cancelled:
    """
    Cancel a job: any live status but running -> cancelled; a running one is asked to stop.

    Returns what was done: cancelled, requested, or unchanged when it has ended. Raises `JobNotFound`.
    """
    job_id = job_id_of(job)
    remark("reason", reason), remark("by", by)
    answers = cancel_many([job_id], reason=reason, by=by, using=using or settings().DATABASES[0])
    if not answers:
        raise JobNotFound(job_id)
    return answers[0]


def retry(job: UUID | str | HasId, *, attempts: int = 1, using: str | None = None) -> Retried:
    """
    Run an ended job again: failed, dead_letter, cancelled -> ready, with so many attempts more.

    Raises `JobNotFound`, `JobNotRetryable` when it is live or completed, `KeyHeldByNewerJob` when a newer job
    holds its idempotency key, and `PrerequisiteFailed` when what it waits for has ended without success.
    """
    job_id = job_id_of(job)
    alias = using or settings().DATABASES[0]
    whole("attempts", attempts, 1, 10_000)
    answers = retry_many([job_id], attempts=attempts, using=alias)
    if not answers:
        raise JobNotFound(job_id)
    answer = answers[0]
    if answer.outcome == "unchanged":
        raise JobNotRetryable(
            f"job {job_id} is {Status(answer.status).label}. Only failed, dead_letter and cancelled jobs are retried.",
            job_id=job_id,
        )
    if answer.outcome == "key_held_by_newer_job":
        raise KeyHeldByNewerJob(
            f"job {answer.holder_id} holds the idempotency key of job {job_id} now. Wait for it, or cancel it first.",
            job_id=job_id,
            holder_id=answer.holder_id,
        )
    if answer.outcome == "prerequisite_failed":
        obstacle = find_obstacle(answer, using=alias)
        raise PrerequisiteFailed(
            f"job {job_id} is not retried: {obstacle.words}",
            cure=f"Retry that first ({obstacle.cure}): what waited for it comes back by itself."
            if obstacle.label
            else f"{upper(obstacle.cure)}, then retry the job; or enqueue the job anew without it.",
        )
    wake_queues([answer], using=alias)
    return answer


def add_dependency(
    job: UUID | str | HasId,
    depends_on: Iterable[AnyPrerequisite],
    *,
    on_failure: str = "cancel",
    using: str | None = None,
) -> int:
    """
    Make a job that has not started wait for more: ready, scheduled -> waiting. Returns how many edges are new.

    Raises `JobNotFound`, `DependencyTooLate` when it runs or is over, and what enqueueing with such *depends_on*
    would; nothing has changed then.
    """
    job_id, alias = job_id_of(job), using or settings().DATABASES[0]
    references = references_of("depends_on", depends_on)
    checked_policy("on_failure", on_failure)
    if any(isinstance(getattr(each, "to", each), CallRef) for each in references):
        raise InvalidOption("depends_on", "has a call", "Enqueue it first, and give what it returned.")
    try:
        # A savepoint in a caller's transaction, which goes on after a refusal.
        with transaction.atomic(using=alias):
            return add_edge(
                job_id, [as_json(each) for each in references], on_failure=on_failure, using=alias
            )
    except EnqueueRefused as refused:
        if refused.reason == JobNotFound.code:
            raise JobNotFound(job_id) from refused
        raise


def unblock(*jobs: UUID | str | HasId, using: str | None = None) -> list[Unblocked]:
    """
    Let blocked jobs go on although a prerequisite ended without success: blocked -> ready, waiting, scheduled.

    Returns one answer for each: unblocked, or unchanged when it is not blocked, and its status then. Raises
    `JobNotFound`, and nothing has changed then.
    """
    alias, wanted = using or settings().DATABASES[0], [job_id_of(each) for each in jobs]
    with transaction.atomic(using=alias):
        found = {answer.job_id: answer for answer in unblock_many(wanted, using=alias)}
        if missing := [job_id for job_id in wanted if job_id not in found]:
            raise JobNotFound(missing[0])
    tell_freed(using=alias)
    return [found[job_id] for job_id in wanted]


def wake_queues(answers: list[Retried], *, using: str) -> None:
    """Wake the workers of the queues whose jobs became ready again."""
    retried = {answer.queue_id for answer in answers if answer.outcome == "retried"}
    if retried:
        for queue in list_queues(using=using):
            if queue.id in retried:
                wake_after_commit(queue.name, using=using)


def redrive(
    *,
    status: Status = Status.DEAD_LETTER,
    queue: str | None = None,
    job_type: Keyed | str | None = None,
    error_code: str | None = None,
    tag: str | None = None,
    attempts: int | None = None,
    limit: int | None = None,
    using: str | None = None,
) -> int:
    """
    Make all ended jobs that match ready again, oldest end first; returns how many.

    Each gets *attempts* more (None: as many as were declared for it). In pages, each committed by
    itself unless the caller has a transaction open; what ends meanwhile is not taken a second time.
    Raises `UnknownQueue`, `UnknownJobType`, `InvalidOption`.
    """
    return sum(
        len([answer for answer in page if answer.outcome == "retried"])
        for page in redrive_pages(
            status=status,
            queue=queue,
            job_type=job_type,
            error_code=error_code,
            tag=tag,
            attempts=attempts,
            limit=limit,
            using=using,
        )
    )


def _key_of(job_type: Keyed | str | None) -> str | None:
    """Return the name of a job type, which may be given as its task; raises `InvalidOption`."""
    if job_type is None or isinstance(job_type, str):
        return job_type
    if not hasattr(type(job_type), "key"):
        raise InvalidOption("job_type", f"is a {type(job_type).__name__}", "Give a job, or its name.")
    return job_type.key


def resolve(queue: str | None, job_type: str | None, *, using: str) -> tuple[int | None, int | None]:
    """Return the ids behind names, which a filter must not mistype; raises `UnknownQueue` or `UnknownJobType`."""
    queue_id = type_id = None
    if queue is not None:
        known = {each.name: each.id for each in list_queues(using=using)}
        queue_id = known.get(string("queue", queue))
        if queue_id is None:
            raise UnknownQueue(queue, known)
    if job_type is not None:
        type_id = type_ids([job_type], using=using).get(job_type)
        if type_id is None:
            raise UnknownJobType(job_type, names())
    return queue_id, type_id


def redrive_pages(
    *,
    status: Status = Status.DEAD_LETTER,
    queue: str | None = None,
    job_type: Keyed | str | None = None,
    error_code: str | None = None,
    tag: str | None = None,
    attempts: int | None = None,
    limit: int | None = None,
    using: str | None = None,
) -> Iterator[list[Retried]]:
    """Redrive page by page, for callers that show progress; raises what `redrive` raises with the first page."""
    alias = using or settings().DATABASES[0]
    type_name = _key_of(job_type)
    resolve(queue, type_name, using=alias)
    if limit is not None:
        whole("limit", limit, 0, 2**31 - 1)
    if status not in (Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED):
        raise InvalidOption("status", f"is {status!r}", "Choose failed, dead_letter or cancelled.")
    if attempts is not None:
        whole("attempts", attempts, 1, 10_000)
    if tag is not None:
        checked_tag("tag", tag)
    if error_code is not None:
        string("error_code", error_code)
    before, after, left = database_time(using=alias), _START, limit
    while left is None or left > 0:
        page = find_ended(
            status=status,
            before=before,
            after=after,
            limit=PAGE if left is None else min(PAGE, left),
            queue=queue,
            job_type=type_name,
            error_code=error_code,
            tag=tag,
            using=alias,
        )
        if not page:
            return
        answers = retry_many([each.job_id for each in page], attempts=attempts, using=alias)
        wake_queues(answers, using=alias)
        yield answers
        after = page[-1]
        if left is not None:
            left -= len(page)


def pause(
    *,
    queue: str | None = None,
    job_type: Keyed | str | None = None,
    tenant: str | None = None,
    duration: timedelta | float | None = None,
    by: str = "",
    reason: str = "",
    using: str | None = None,
) -> datetime | None:
    """
    Stop claims for a queue, a job type, a tenant, or a tenant in a queue, for *duration* or until resumed.

    Running jobs go on; nothing is lost. Returns when it ends by itself, or None. Raises `UnknownQueue`,
    `UnknownJobType`, `InvalidOption`.
    """
    target = _target(queue, job_type, tenant)
    remark("by", by), remark("reason", reason)
    made = pausing.pause(
        target,
        duration=None
        if duration is None
        else checked_duration("duration", duration, longest=timedelta(days=3660)),
        by=by,
        reason=reason,
        using=using or settings().DATABASES[0],
    )
    if made is None:
        if queue is None:
            raise UnknownJobType(target.job_type or "", names())
        raise UnknownQueue(queue, [each.name for each in list_queues(using=using or settings().DATABASES[0])])
    return made[1]


def resume(
    *,
    queue: str | None = None,
    job_type: Keyed | str | None = None,
    tenant: str | None = None,
    using: str | None = None,
) -> bool:
    """End a pause; tells whether there was one."""
    alias = using or settings().DATABASES[0]
    ended = pausing.resume(_target(queue, job_type, tenant), using=alias)
    if ended is None:
        return False
    for each in list_queues(using=alias):
        if ended in (0, each.id):
            wake_after_commit(each.name, using=alias)
    return True


# Why a queue stays, and what to do about it.
_REFERENCES = {
    "is_default": ("it is the one that calls go to by default", "Leave it."),
    "is_declared": (
        "a job type is declared with it",
        "Change queue_name= in the code, then run migrate or start a worker.",
    ),
    "has_jobs": ("it has jobs, of this or another tenant", "Pause it instead."),
    "has_history": ("jobs have run in it, and counters keep that", "Pause it instead."),
    "is_scheduled": (
        "the schedule {schedule!r} enqueues into it",
        "Let the schedule's jobs go elsewhere, or delete it with broker_schedules delete NAME.",
    ),
}


def delete_queue(name: str, *, using: str | None = None) -> None:
    """
    Delete a queue that was made by mistake, with its pauses and settings.

    Raises `UnknownQueue`, and `QueueInUse` while jobs, history, a declaration or a schedule refer to it, or a
    transaction is open that may have enqueued into it. Wants no transaction around it.
    """
    alias = using or settings().DATABASES[0]
    # Asked before the table is locked: a queue that is in use must not stop others for a moment.
    outcome = queue_reference(name, using=alias)
    if outcome is None:
        try:
            outcome = deleting(name, using=alias)
        except OperationalError as error:
            if not isinstance(error.__cause__, LockNotAvailable):
                raise
            raise QueueInUse(
                name, "others have enqueued in transactions that are still open", "Try again in a while."
            ) from error
    if outcome == "unknown_queue":
        raise UnknownQueue(name, [each.name for each in list_queues(using=alias)])
    if outcome != "deleted":
        reference, _, schedule = outcome.partition(":")
        why, cure = _REFERENCES[reference]
        raise QueueInUse(name, why.format(schedule=schedule), cure)


def _target(queue: str | None, job_type: Keyed | str | None, tenant: str | None) -> pausing.Target:
    if tenant is not None:
        checked_tenant(tenant)
    if queue is not None:
        string("queue", queue)
    if job_type is not None and (queue is not None or tenant is not None):
        raise InvalidOption("job_type", "was given with a queue or a tenant", "Pause a type alone.")
    if queue is None and job_type is None and tenant is None:
        raise InvalidOption("queue", "is missing", "Name a queue, a job type or a tenant.")
    return pausing.Target(queue, _key_of(job_type), tenant)

"""From a call to a stored job: check it, make its row, enqueue it, wake who waits."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar
from uuid import UUID

from django.db import connections

from pgbroker import bodies, hooks, linked_rows, payload, telemetry
from pgbroker.custody import Custody
from pgbroker.errors import (
    IdempotencyConflict,
    InvalidOption,
    NotReplaceable,
    PgBrokerError,
    PrerequisiteRefused,
    UnknownJobType,
    UnknownQueue,
    refused,
)
from pgbroker.ids import new_id
from pgbroker.lifecycle.enqueue import Enqueued, enqueue_rows
from pgbroker.policy.body_names import name_of
from pgbroker.registry import Call, JobTask, names, synchronise_apart, types
from pgbroker.shared_rows import Shared, row_of, shared_of
from pgbroker.tenancy import tenant_context, tenant_of_statements
from pgbroker.wakeups import wake_after_commit

if TYPE_CHECKING:
    from pgbroker.compat import TaskResult

P = ParamSpec("P")
R = TypeVar("R")


class Submission(NamedTuple):
    """
    A call as it is enqueued: the row the database takes, the arguments, and the custody of their body, if any.

    *waiting* is what the row lacks until the ids of other calls of its list are known.
    """

    call: Call
    row: dict[str, Any]
    envelope: dict[str, Any]
    custody: Custody | None
    waiting: linked_rows.Waiting | None


def submission_of(
    call: Call, shared: Shared, job_id: str, *, alone: bool, group: str | None = None
) -> Submission:
    """
    Check one call and make the row that the database takes; arguments too large for it go to the storage.

    A call *alone* cannot wait for another one of its list; *group* is the run group of the whole list.
    Everything that can be refused without the database is refused here, before anything left the process:
    raises `InvalidArgument`, `InvalidOption`, `PayloadTooLarge`, or `BodyNotStored`.
    """
    envelope, size, text = payload.encode(
        shared.signature, call.args, call.kwargs, limit_bytes=shared.body_bytes
    )
    row = row_of(shared, job_id, text)
    waiting = None
    if shared.linked or shared.task is not call.task:
        waiting = linked_rows.write_links(row, call.task.call_options, group)
        if alone and waiting is not None:
            raise linked_rows.not_in_the_list()
    custody = _in_a_body(call, row, envelope, shared.database) if size > shared.limit_bytes else None
    return Submission(call, row, envelope, custody, waiting)


def _in_a_body(call: Call, row: dict[str, Any], envelope: dict[str, Any], using: str) -> Custody:
    """Save the arguments as a body, before any statement: whoever claims the job must find it."""
    # As the statement will. A database that is away leaves no body behind, and whoever doubts what became of the
    # statement knows the connection that it went over.
    connection = connections[using]
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    tenant = call.task.call_options.tenant or tenant_of_statements()
    job_id = UUID(row["id"])
    content = payload.envelope_body(envelope)
    body = bodies.save(content, name=name_of(tenant, "arguments", job_id), tenant=tenant)
    del row["args_text"]
    row["args"], row["args_body"] = body.stub.as_json(), body.name
    return Custody(body.name, body.storage, job_id=job_id, using=using)


def submit(call: Call, *, using: str | None = None) -> tuple[Submission, Enqueued]:
    """
    Enqueue one call in the current transaction; returns it and the answer. Raises what was refused.

    Nobody is woken yet: whoever called tells the world first, then calls `wake`.
    """
    call = hooks.changed(call)
    shared = shared_of(call.task, using=using)
    alias = shared.database
    submission = submission_of(call, shared, new_id().hex, alone=True)
    row = submission.row
    try:
        answer = enqueue_as(shared.tenant, [row], alias)[0]
    except BaseException:
        if submission.custody is not None:
            submission.custody.doubt()
        raise
    if submission.custody is not None:
        end_custody(submission.custody, row, answer)
    if (error := refusal(row, answer)) is not None:
        raise error
    tell_event(row, answer)
    return submission, answer


def wake(submission: Submission, *, using: str) -> None:
    """Wake the workers of a submitted job's queue once the current transaction has committed."""
    wake_after_commit(submission.row["queue"], using=using)


def end_custody(custody: Custody, row: Mapping[str, Any], answer: Enqueued) -> None:
    """Keep the body if the call made a job, as long as the transaction says so; otherwise remove it."""
    # A job with this call's own id that exists already has this very body.
    if answer.made or (not answer.refused and answer.job_id == UUID(row["id"])):
        custody.keep_with(job_id=answer.job_id)
    else:
        custody.remove()


def enqueue(task: JobTask[P, R], *args: P.args, **kwargs: P.kwargs) -> "TaskResult[P, R]":
    """Enqueue one call of *task* in the current transaction; the same as `task.enqueue(...)`."""
    if not hasattr(task, "enqueue"):
        raise InvalidOption(
            "task", f"is a {type(task).__name__}", "Decorate the function with @job, and give that."
        )
    return task.enqueue(*args, **kwargs)


def enqueue_as(tenant: str | None, rows: list[dict[str, Any]], alias: str) -> list[Enqueued]:
    """Enqueue rows in one statement, as *tenant* or as the current one."""
    if tenant is None:
        return _enqueue(rows, alias)
    with tenant_context(tenant):
        return _enqueue(rows, alias)


def _enqueue(rows: list[dict[str, Any]], alias: str) -> list[Enqueued]:
    """Enqueue rows; what only lacked its declaration, because no worker has started since, is declared first."""
    answers = enqueue_rows(rows, using=alias)
    late = [
        place
        for place, answer in enumerate(answers)
        if answer.outcome != "created" and _only_undeclared(rows[place], answer)
    ]
    if late:
        synchronise_apart(using=alias)
        stored = {}
        if any(answer.outcome == "prerequisite_refused" for answer in answers):
            # Refused with what was not declared, or with another one, which must be refused once more beside it.
            late = [place for place, answer in enumerate(answers) if answer.refused]
            stored = {
                row["id"]: answer.job_id.hex
                for row, answer in zip(rows, answers, strict=True)
                if not answer.refused
            }
        again = enqueue_rows([linked_rows.renamed(rows[place], stored) for place in late], using=alias)
        for place, answer in zip(late, again, strict=True):
            answers[place] = answer._replace(ordinal=answers[place].ordinal)
    _tell_batch(rows, answers)
    return answers


def _only_undeclared(row: Mapping[str, Any], answer: Enqueued) -> bool:
    """Tell whether the code has declared what the database does not know; a mistyped queue is not declared."""
    if answer.outcome not in ("unknown_job_type", "unknown_queue"):
        return False
    declared = types().get(row["job_type"])
    if declared is None:
        return False
    if answer.outcome == "unknown_job_type":
        return (after := _after(row)) is None or after in names()
    return row["queue"] in (declared.task.queue_name, "default")


def _after(row: Mapping[str, Any]) -> str | None:
    """Return the job type that the row's on_exhausted names."""
    after: str | None = row.get("options", {}).get("on_exhausted")
    return after


def refusal(row: Mapping[str, Any], answer: Enqueued) -> PgBrokerError | None:
    """Translate a refused answer to the error of its code; None when the job is stored."""
    if answer.outcome == "created" or not answer.refused:
        return None
    match answer.outcome:
        case "unknown_queue":
            return UnknownQueue(row["queue"], {each.task.queue_name for each in types().values()})
        case "unknown_job_type":
            meant = _after(row) if (answer.detail or "").startswith("options.") else None
            return UnknownJobType(meant or row["job_type"], types())
        case "idempotency_conflict":
            same_body = "different body" not in (answer.detail or "")
            return IdempotencyConflict(row["idempotency_key"], answer.job_id, same_body=same_body)
        case "not_replaceable":
            return NotReplaceable(row["idempotency_key"], answer.job_id)
        case "prerequisite_refused":
            return PrerequisiteRefused("a call of this list, which it depends on, was refused")
        case code:
            return refused(code, answer.detail or code)


def _tell_batch(rows: Sequence[Mapping[str, Any]], answers: Sequence[Enqueued]) -> None:
    """Tell how many jobs a statement made, by queue and type."""
    if not telemetry.wanted("batch.enqueued"):
        return
    # No Counter: to make one takes longer than to count a single job, which most statements make.
    created: dict[tuple[str, str], int] = {}
    for row, answer in zip(rows, answers, strict=True):
        if answer.made:
            pair = row["queue"], row["job_type"]
            created[pair] = created.get(pair, 0) + 1
    if created:
        telemetry.emit("batch.enqueued", count=sum(created.values()), created=created)


def tell_event(row: Mapping[str, Any], answer: Enqueued) -> None:
    """Tell of a job that was made."""
    if answer.made and telemetry.wanted("job.enqueued"):
        telemetry.emit(
            "job.enqueued",
            job_id=answer.job_id,
            job_type=row["job_type"],
            queue=row["queue"],
            correlation_id=row.get("correlation_id"),
        )

"""From a call to a stored job: check it, make its row, enqueue it, wake who waits."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar
from uuid import UUID

from django.db import connections, transaction

from pgbroker import bodies, correlation, hooks, payload, telemetry
from pgbroker.custody import Custody
from pgbroker.errors import (
    EnqueueRefused,
    IdempotencyConflict,
    InvalidOption,
    NotReplaceable,
    PgBrokerError,
    UnknownJobType,
    UnknownQueue,
)
from pgbroker.ids import new_id, new_id_texts
from pgbroker.lifecycle.enqueue import Enqueued, enqueue_rows
from pgbroker.policy.body_names import name_of
from pgbroker.registry import Call, JobTask, names, synchronise_apart, types
from pgbroker.shared_rows import Shared, row_of, shared_of
from pgbroker.tenancy import current_tenant, tenant_context
from pgbroker.wakeups import wake_after_commit

if TYPE_CHECKING:
    from pgbroker.compat import TaskResult

P = ParamSpec("P")
R = TypeVar("R")

# Rows of a bulk call that go in one statement: big enough to be cheap, small enough to stay in memory.
ROWS_PER_STATEMENT = 2500
# ... and what their arguments may weigh together; a single row may weigh more.
CHARACTERS_PER_STATEMENT = 8 * 1024 * 1024


class _Group(NamedTuple):
    """Rows, and the place of each among the calls; no pairs, which would be work for the garbage collector."""

    places: list[int]
    rows: list[dict[str, Any]]


# By what the rows of a statement have in common: database and tenant.
_Groups = dict[tuple[str, str | None], _Group]


class Outcome(NamedTuple):
    """
    What became of one call of `enqueue_many`.

    *outcome* is created, replaced (created, and the key's former job is cancelled), existing (the
    idempotency key's job is *job_id*) or an error code; then *error* is the exception that a single
    enqueue would have raised.
    """

    job_id: UUID | None
    outcome: str
    error: PgBrokerError | None = None


_PENDING = Outcome(None, "pending")


class Submission(NamedTuple):
    """A call as it is enqueued: the row the database takes, the arguments, and the custody of their body, if any."""

    call: Call
    row: dict[str, Any]
    envelope: dict[str, Any]
    custody: Custody | None


def _submission_of(call: Call, shared: Shared, job_id: str) -> Submission:
    """
    Check one call and make the row that the database takes; arguments too large for it go to the storage.

    Everything that can be refused without the database is refused here, before anything left the
    process: raises `InvalidArgument`, `InvalidOption`, `PayloadTooLarge`, or `BodyNotStored`.
    """
    envelope, size, text = payload.encode(
        shared.signature, call.args, call.kwargs, limit_bytes=shared.body_bytes
    )
    row = row_of(shared, job_id, text)
    custody = _in_a_body(call, row, envelope, shared.database) if size > shared.limit_bytes else None
    return Submission(call, row, envelope, custody)


def _in_a_body(call: Call, row: dict[str, Any], envelope: dict[str, Any], using: str) -> Custody:
    """Save the arguments as a body, before any statement: whoever claims the job must find it."""
    # As the statement will. A database that is away leaves no body behind, and whoever doubts what became of the
    # statement knows the connection that it went over.
    connection = connections[using]
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    tenant = call.task.call_options.tenant or _tenant_of_statements()
    job_id = UUID(row["id"])
    content = payload.envelope_body(envelope)
    body = bodies.save(content, name=name_of(tenant, "arguments", job_id), tenant=tenant)
    del row["args_text"]
    row["args"], row["args_body"] = body.stub.as_json(), body.name
    return Custody(body.name, body.storage, job_id=job_id, using=using)


def _tenant_of_statements() -> str:
    # A statement in scope all carries no tenant, which the database reads as the default one.
    return correlation.DEFAULT_TENANT if correlation.scope_all.get() else current_tenant()


def submit(call: Call, *, using: str | None = None) -> tuple[Submission, Enqueued]:
    """
    Enqueue one call in the current transaction; returns it and the answer. Raises what was refused.

    Nobody is woken yet: whoever called tells the world first, then calls `wake`.
    """
    call = hooks.changed(call)
    shared = shared_of(call.task, using=using)
    alias = shared.database
    submission = _submission_of(call, shared, new_id().hex)
    row = submission.row
    try:
        answer = _enqueue_as(shared.tenant, [row], alias)[0]
    except BaseException:
        if submission.custody is not None:
            submission.custody.doubt()
        raise
    if submission.custody is not None:
        _end_custody(submission.custody, row, answer)
    if (error := refusal(row, answer)) is not None:
        raise error
    _tell_event(row, answer)
    return submission, answer


def wake(submission: Submission, *, using: str) -> None:
    """Wake the workers of a submitted job's queue once the current transaction has committed."""
    wake_after_commit(submission.row["queue"], using=using)


def _end_custody(custody: Custody, row: Mapping[str, Any], answer: Enqueued) -> None:
    """Keep the body if the call made a job, as long as the transaction says so; otherwise remove it."""
    # A job with this call's own id that exists already has this very body.
    if answer.made or (not answer.refused and answer.job_id == UUID(row["id"])):
        custody.keep_with(job_id=answer.job_id)
    else:
        custody.remove()


def enqueue(task: JobTask[P, R], *args: P.args, **kwargs: P.kwargs) -> "TaskResult[P, R]":
    """Enqueue one call of *task* in the current transaction; the same as `task.enqueue(...)`."""
    return task.enqueue(*args, **kwargs)


def enqueue_many(calls: Iterable[Call], *, using: str | None = None) -> list[Outcome]:
    """
    Enqueue many calls (`task.bind(...)`) in one transaction and return one outcome each, in order.

    A call that is refused does not sink the others: its outcome carries the error. What is stored
    becomes visible together, with the caller's commit. Raises `InvalidOption`, with nothing stored, for
    what is no call at all.
    """
    outcomes: list[Outcome] = []
    pending: dict[int, Custody] = {}
    try:
        _enqueue_groups(_grouped(calls, outcomes, pending, using), outcomes, pending)
    except BaseException:
        for custody in pending.values():
            custody.doubt()
        raise
    return outcomes


def _grouped(
    calls: Iterable[Call], outcomes: list[Outcome], pending: dict[int, Custody], using: str | None
) -> _Groups:
    """Check each call and save its body, if it has one, before any statement."""
    groups: _Groups = {}
    # By the identity of a task: what they share holds it, so no other gets its place.
    known: dict[int, Shared] = {}
    ids = new_id_texts()
    for place, call in enumerate(calls):
        if not isinstance(call, Call):
            raise InvalidOption(f"calls[{place}]", f"is a {type(call).__name__}", "Give task.bind(...).")
        try:
            call = hooks.changed(call)
            if (shared := known.get(id(call.task))) is None:
                shared = known[id(call.task)] = shared_of(call.task, using=using)
            submission = _submission_of(call, shared, next(ids))
        except PgBrokerError as error:
            outcomes.append(Outcome(None, error.code, error))
            continue
        outcomes.append(_PENDING)
        if submission.custody is not None:
            pending[place] = submission.custody
        if (group := groups.get((shared.database, shared.tenant))) is None:
            group = groups[shared.database, shared.tenant] = _Group([], [])
        group.places.append(place)
        group.rows.append(submission.row)
    return groups


def _enqueue_groups(groups: _Groups, outcomes: list[Outcome], pending: dict[int, Custody]) -> None:
    for (alias, tenant), group in groups.items():
        parts = list(_statements(group.rows))
        if len(parts) > 1:
            # One statement takes its keys in order; several must too, or two big calls deadlock each other.
            group = _in_key_order(group)
            parts = list(_statements(group.rows))
        told = telemetry.wanted("job.enqueued")
        with transaction.atomic(using=alias, savepoint=False):
            for part in parts:
                rows, places = group.rows[part], group.places[part]
                for place, row, answer in zip(places, rows, _enqueue_as(tenant, rows, alias), strict=True):
                    if place in pending:
                        _end_custody(pending.pop(place), row, answer)
                    refused = refusal(row, answer)
                    outcomes[place] = Outcome(None if refused else answer.job_id, answer.outcome, refused)
                    if told and refused is None:
                        _tell_event(row, answer)
            for queue in {row["queue"] for row in group.rows}:
                wake_after_commit(queue, using=alias)


def _statements(rows: Sequence[Mapping[str, Any]]) -> Iterator[slice]:
    """Cut rows into what goes in one statement."""
    start = weight = 0
    for place, row in enumerate(rows):
        length = len(row.get("args_text", ""))
        if place > start and (
            place - start == ROWS_PER_STATEMENT or weight + length > CHARACTERS_PER_STATEMENT
        ):
            yield slice(start, place)
            start, weight = place, 0
        weight += length
    yield slice(start, len(rows))


def _in_key_order(group: _Group) -> _Group:
    order = sorted(range(len(group.rows)), key=lambda at: _key_order(group.rows[at]))
    return _Group([group.places[at] for at in order], [group.rows[at] for at in order])


def _key_order(row: Mapping[str, Any]) -> tuple[str, str]:
    key = row.get("idempotency_key")
    return ("", "") if key is None else (row["job_type"], key)


def _enqueue_as(tenant: str | None, rows: list[dict[str, Any]], alias: str) -> list[Enqueued]:
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
        again = enqueue_rows([rows[place] for place in late], using=alias)
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
            return UnknownJobType(meant or row["job_type"])
        case "idempotency_conflict":
            same_body = "different body" not in (answer.detail or "")
            return IdempotencyConflict(row["idempotency_key"], answer.job_id, same_body=same_body)
        case "not_replaceable":
            return NotReplaceable(row["idempotency_key"], answer.job_id)
        case code:
            return EnqueueRefused(code, answer.detail or code)


def _tell_batch(rows: Sequence[Mapping[str, Any]], answers: Sequence[Enqueued]) -> None:
    """Tell how many jobs a statement made, by queue and type."""
    if not telemetry.wanted("batch.enqueued"):
        return
    created = Counter(
        (row["queue"], row["job_type"]) for row, answer in zip(rows, answers, strict=True) if answer.made
    )
    if created:
        telemetry.emit("batch.enqueued", count=created.total(), created=created)


def _tell_event(row: Mapping[str, Any], answer: Enqueued) -> None:
    if answer.made and telemetry.wanted("job.enqueued"):
        telemetry.emit(
            "job.enqueued",
            job_id=answer.job_id,
            job_type=row["job_type"],
            queue=row["queue"],
            correlation_id=row.get("correlation_id"),
        )

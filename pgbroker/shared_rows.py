"""What a task says of each of its jobs: worked out once for all of its calls that are enqueued together."""

from datetime import datetime
from typing import Any, NamedTuple

from pgbroker import bodies, correlation, payload
from pgbroker.conf import settings
from pgbroker.errors import InvalidOption
from pgbroker.options import LINKS
from pgbroker.policy.backoff import Backoff
from pgbroker.policy.values import instant
from pgbroker.registry import JobTask, exhausted_name, signature_of


class Shared(NamedTuple):
    """
    What the calls of *task* have in common: where they go, how arguments are written, and the row but for the rest.

    Above *limit_bytes* arguments do not go into the row, and above *body_bytes* nowhere. What a call is linked to
    is its own, and is not here.
    """

    task: JobTask[Any, Any]
    database: str
    tenant: str | None
    correlation_id: str | None
    signature: payload.Signature
    limit_bytes: int
    body_bytes: int
    row: dict[str, Any]
    # Whether the task itself says what its calls are linked to.
    linked: bool


def shared_of(task: JobTask[Any, Any], *, using: str | None, group: str | None = None) -> Shared:
    """
    Work it out, for calls that go into the run group *group*, if any.

    Raises `InvalidOption` for options that mean nothing together, or nothing at all.
    """
    chosen, options = settings(), task.call_options
    options.refuse_if_at_odds(in_group=group)
    row = _shared_row(task, chosen.MAX_ATTEMPTS)
    if group is not None:
        row["group"] = group
    return Shared(
        task=task,
        database=using or database_of(task),
        tenant=options.tenant,
        correlation_id=options.correlation_id,
        signature=signature_of(task),
        limit_bytes=chosen.MAX_PAYLOAD_BYTES,
        body_bytes=bodies.row_limit(chosen.MAX_PAYLOAD_BYTES, chosen),
        row=row,
        linked=any(getattr(options, name) is not None for name in LINKS),
    )


def database_of(task: JobTask[Any, Any]) -> str:
    """Return the alias a task's jobs are stored in: its backend's DATABASE option, or the first of DATABASES."""
    alias = task.get_backend().options.get("DATABASE")
    return str(alias) if alias else settings().DATABASES[0]


def _shared_row(task: JobTask[Any, Any], attempts: int) -> dict[str, Any]:
    options = task.call_options
    row: dict[str, Any] = {
        "job_type": task.key,
        "queue": task.queue_name,
        "type_version": task.version,
        "priority": task.priority,
        "max_attempts": options.max_attempts or task.max_attempts or attempts,
    }
    if task.run_after is not None:
        row["available_at"] = instant("run_after", task.run_after).isoformat()
    elif task.run_after_delay is not None:
        row["delay_seconds"] = task.run_after_delay.total_seconds()
    _refuse_over_before_it_may_start(task)
    if isinstance(options.deadline, datetime):
        row["deadline_at"] = options.deadline.isoformat()
    elif options.deadline is not None:
        row["deadline_seconds"] = options.deadline.total_seconds()
    stored: dict[str, Any] = {}
    backoff = options.backoff or task.backoff
    if isinstance(backoff, Backoff):
        stored["backoff"] = backoff.as_json()
    if options.timeout is not None:
        stored["timeout"] = options.timeout.total_seconds()
    if options.on_exhausted is not None:
        stored["on_exhausted"] = exhausted_name(options.on_exhausted)
    if stored:
        row["options"] = stored
    for name in ("idempotency_key", "idempotency_scope", "on_conflict"):
        if (value := getattr(options, name)) is not None:
            row[name] = value
    if options.window is not None:
        row["window_seconds"] = options.window.total_seconds()
    if (tags := task.tags if options.tags is None else options.tags) or options.tags is not None:
        row["tags"] = list(tags)
    return row


def _refuse_over_before_it_may_start(task: JobTask[Any, Any]) -> None:
    """Refuse a deadline that is no later than the start; of an instant and a wait only the database could tell."""
    deadline = task.call_options.deadline
    start: Any = task.run_after if isinstance(deadline, datetime) else task.run_after_delay
    if deadline is not None and start is not None and deadline <= start:
        raise InvalidOption(
            "deadline",
            f"is {deadline}, and run_after {start}: the job would expire before it may start",
            "Give a later one.",
        )


def row_of(shared: Shared, job_id: str, args_text: str) -> dict[str, Any]:
    """
    Return the row of one call: with what is its own, and with what its context says.

    Nothing but text and numbers, where nothing else was asked for. The garbage collector looks at no such
    dictionary: to look at those of a large call again and again took a third of its time.
    """
    row = {"id": job_id, "args_text": args_text, **shared.row}
    if (value := correlation.principal.get()) is not None:
        row["principal"] = value
    if (value := correlation.traceparent.get()) is not None:
        row["traceparent"] = value
    if (value := shared.correlation_id or correlation.current_correlation_id()) is not None:
        row["correlation_id"] = value
    return row

"""
Job types: `@job`, the task it makes, and how a name becomes a handler.

A type's key is `name=` or `app_label.function`, never an import path: a row can only name what the
code registered.
"""

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast, overload
from uuid import UUID

from django.apps import apps
from django.conf import settings as django_settings
from django.db import transaction
from django.utils.module_loading import import_string

from pgbroker import correlation, payload, telemetry
from pgbroker.compat import DEFAULT_TASK_BACKEND_ALIAS, BaseTaskBackend, Task, TaskResult, task_backends
from pgbroker.conf import settings
from pgbroker.errors import (
    DuplicateJobType,
    EnqueueRefused,
    IdempotencyConflict,
    InvalidOption,
    PgBrokerError,
    UnknownJobType,
    UnknownQueue,
)
from pgbroker.ids import new_id
from pgbroker.lifecycle.declare import DeclaredType, declare_queues, declare_types, table_exists
from pgbroker.lifecycle.enqueue import Enqueued, enqueue_rows
from pgbroker.options import Options, duration, instant, whole
from pgbroker.policy.backoff import Backoff, backoff_from
from pgbroker.tenancy import tenant_context
from pgbroker.wakeups import wake_after_commit

P = ParamSpec("P")
R = TypeVar("R")

BackoffCallable = Callable[[BaseException, "TaskResult"], float | timedelta]
BACKEND = "pgbroker.backend.PgBrokerBackend"
# Rows of a bulk call that go in one statement: big enough to be cheap, small enough to stay in memory.
ROWS_PER_STATEMENT = 2500
QUEUE_NAME = r"[A-Za-z0-9._:-]{1,63}"


@dataclass(frozen=True, kw_only=True)
class JobTask(Task, Generic[P, R]):  # type: ignore[misc]
    """
    A Django task with pgbroker's options. `@job` makes it, and `@task` on a pgbroker backend.

    `.using()` keeps Django's four options, `.options()` carries ours; both return a new task.
    """

    type_name: str = ""
    version: int = 1
    aliases: tuple[str, ...] = ()
    max_attempts: int | None = None
    backoff: Backoff | BackoffCallable | None = None
    timeout: timedelta | None = None
    call_options: Options = field(default_factory=Options)
    lenient: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _types.add(self)

    # Django's Task finds its backend in TASKS, whose default runs a task at once, in the caller. A job
    # goes to pgbroker unless the project's TASKS says otherwise.
    def get_backend(self) -> BaseTaskBackend:
        """Return the backend that TASKS names for this task, or pgbroker's own when it names none."""
        if django_settings.is_overridden("TASKS") and self.backend in django_settings.TASKS:
            return task_backends[self.backend]
        if self.backend != DEFAULT_TASK_BACKEND_ALIAS:
            return task_backends[self.backend]  # raises what Django raises for an unknown alias
        return _own_backend()

    @property
    def key(self) -> str:
        """The registry key, as rows store it."""
        return self.type_name or _default_key(self.func)

    def options(self, **changes: Any) -> "JobTask[P, R]":
        """Return this task with pgbroker's options for the next call; see `Options`. Raises `InvalidOption`."""
        return replace(self, call_options=self.call_options.but(changes))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> "TaskResult":
        """Enqueue one call in the current transaction and return Django's `TaskResult` for it."""
        return self.get_backend().enqueue(self, args, kwargs)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> "TaskResult":
        """Enqueue one call from async code."""
        return await self.get_backend().aenqueue(self, args, kwargs)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> "Call":
        """Pair this task with its arguments, for `enqueue_many`. Nothing is checked or stored yet."""
        return Call(self, args, kwargs)


class Call(NamedTuple):
    """A task and the arguments of one call."""

    task: "JobTask[Any, Any]"
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class Outcome(NamedTuple):
    """
    What became of one call of `enqueue_many`.

    *outcome* is created, existing (the idempotency key's job is *job_id*) or an error code; then
    *error* is the exception that a single enqueue would have raised.
    """

    job_id: UUID | None
    outcome: str
    error: PgBrokerError | None = None


class JobType(NamedTuple):
    """A handler as a worker needs it: compiled once."""

    key: str
    task: "JobTask[Any, Any]"
    signature: payload.Signature
    is_async: bool

    @property
    def defaults(self) -> dict[str, Any]:
        """What SQL callers and statements without a worker must know of the declaration."""
        declared: dict[str, Any] = {
            "queue": self.task.queue_name,
            "priority": self.task.priority,
            "max_attempts": self.task.max_attempts or settings().MAX_ATTEMPTS,
        }
        if isinstance(self.task.backoff, Backoff):
            declared["backoff"] = self.task.backoff.as_json()
        if self.task.timeout is not None:
            declared["timeout"] = self.task.timeout.total_seconds()
        return declared


class _Types:
    """The registered types of this process, by function and, once apps are ready, by key."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_function: dict[Callable[..., Any], JobTask[Any, Any]] = {}
        self._by_key: dict[str, JobType] | None = None

    def add(self, task: JobTask[Any, Any]) -> None:
        """Register a declaration; what `.using()` and `.options()` derive from it is the same function."""
        if task.func in self._by_function:
            return
        with self._lock:
            self._by_function[task.func] = task
            self._by_key = None

    def by_key(self) -> dict[str, JobType]:
        """Return all types by key. Raises `DuplicateJobType`."""
        known = self._by_key
        if known is None:
            with self._lock:
                known = self._by_key = self._compile()
        return known

    def _compile(self) -> dict[str, JobType]:
        found: dict[str, JobType] = {}
        for function, task in list(self._by_function.items()):
            key = task.key
            other = found.get(key)
            if other is not None:
                if _place(other.task.func) != _place(function):
                    raise DuplicateJobType(
                        f"job type {key!r} is declared twice: by {_place(other.task.func)} and "
                        f"{_place(function)}. Give one of them another name=.",
                        job_type=key,
                    )
                # The same function of a reloaded module: the newer one counts.
            found[key] = JobType(
                key=key,
                task=task,
                signature=signature_of(task),
                is_async=inspect.iscoroutinefunction(function),
            )
        return found


_types = _Types()
_signatures: dict[Callable[..., Any], payload.Signature] = {}


def signature_of(task: JobTask[Any, Any]) -> payload.Signature:
    """Return the compiled signature of a task's function."""
    known = _signatures.get(task.func)
    if known is None:
        known = payload.signature_of(task.func, takes_context=task.takes_context, lenient=task.lenient)
        _signatures[task.func] = known
    return known


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _default_key(function: Callable[..., Any]) -> str:
    config = apps.get_containing_app_config(function.__module__)
    label = config.label if config else function.__module__.partition(".")[0]
    return f"{label}.{function.__name__}"


def _own_backend() -> BaseTaskBackend:
    # Found by name: the backend is an edge above this module.
    return cast(BaseTaskBackend, import_string(BACKEND)(DEFAULT_TASK_BACKEND_ALIAS, {"QUEUES": []}))


def types() -> dict[str, JobType]:
    """Return every registered type by key."""
    return _types.by_key()


def lookup(key: str) -> JobType:
    """Return the type of that key or alias; raises `UnknownJobType`."""
    known = types()
    if key in known:
        return known[key]
    for job_type in known.values():
        if key in job_type.task.aliases:
            return job_type
    raise UnknownJobType(key)


@overload
def job(function: Callable[P, R]) -> JobTask[P, R]: ...


@overload
def job(
    *,
    name: str | None = None,
    queue_name: str = "default",
    priority: int = 0,
    max_attempts: int | None = None,
    backoff: Backoff | float | Mapping[str, Any] | BackoffCallable | None = None,
    timeout: float | timedelta | None = None,
    version: int = 1,
    aliases: Iterable[str] = (),
    takes_context: bool = False,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
) -> Callable[[Callable[P, R]], JobTask[P, R]]: ...


def job(
    function: Callable[P, R] | None = None,
    *,
    name: str | None = None,
    queue_name: str = "default",
    priority: int = 0,
    max_attempts: int | None = None,
    backoff: Any = None,
    timeout: float | timedelta | None = None,
    version: int = 1,
    aliases: Iterable[str] = (),
    takes_context: bool = False,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
) -> Any:
    """
    Declare a job: makes a Django task of a function, sync or async.

    *name* is the registry key (default `app_label.function`), *aliases* its former keys. *version* rises
    when the meaning of the arguments changes: older workers leave newer jobs alone. *backoff* is
    seconds, a mapping, a `Backoff`, or a callable of (exception, task_result). *timeout* limits one
    attempt. Raises `InvalidOption` where it is written.
    """
    declared = {
        "type_name": _checked_name("name", name) if name is not None else "",
        "queue_name": checked_queue(queue_name),
        "priority": whole("priority", priority, -100, 100),
        "max_attempts": None if max_attempts is None else whole("max_attempts", max_attempts, 1, 10_000),
        "backoff": backoff if backoff is None or callable(backoff) else backoff_from(backoff),
        "timeout": None if timeout is None else duration("timeout", timeout),
        "version": whole("version", version, 1, 2**31 - 1),
        "aliases": tuple(_checked_name("aliases", alias) for alias in aliases),
        "takes_context": takes_context,
        "backend": backend,
        "lenient": False,
    }

    def declare(handler: Callable[P, R]) -> JobTask[P, R]:
        task = JobTask(func=handler, run_after=None, **declared)  # type: ignore[arg-type]
        # Compiled here, so that a parameter that cannot be stored is refused where it is written.
        signature_of(task)
        return task

    return declare(function) if function is not None else declare


def _checked_name(field_name: str, value: object) -> str:
    import re

    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._:-]{1,200}", value):
        raise InvalidOption(
            field_name, f"is {value!r}", "Use 1 to 200 characters of A-Z, a-z, 0-9, '.', '_', ':', '-'."
        )
    return value


def checked_queue(value: object) -> str:
    """Return *value* if it can name a queue; raises `InvalidOption`."""
    import re

    if not isinstance(value, str) or not re.fullmatch(QUEUE_NAME, value):
        raise InvalidOption(
            "queue_name", f"is {value!r}", "Use 1 to 63 characters of A-Z, a-z, 0-9, '.', '_', ':', '-'."
        )
    return value


# ------------------------------------------------------------------ from a call to a row


def row_of(call: Call) -> dict[str, Any]:
    """
    Check one call and make the row that the database takes.

    Everything that can be refused without the database is refused here, before anything left the
    process: raises `InvalidArgument`, `InvalidOption` or `PayloadTooLarge`.
    """
    task, options = call.task, call.task.call_options
    envelope, _ = payload.encode(
        signature_of(task), call.args, call.kwargs, limit_bytes=settings().MAX_PAYLOAD_BYTES
    )
    row: dict[str, Any] = {
        "id": str(new_id()),
        "job_type": task.key,
        "queue": task.queue_name,
        "args": envelope,
        "type_version": task.version,
        "priority": task.priority,
        "max_attempts": options.max_attempts or task.max_attempts or settings().MAX_ATTEMPTS,
    }
    if task.run_after is not None:
        row["available_at"] = instant("run_after", task.run_after).isoformat()
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
    if stored:
        row["options"] = stored
    for name in ("idempotency_key", "idempotency_scope", "on_conflict", "lane"):
        if (value := getattr(options, name)) is not None:
            row[name] = value
    for name, variable in (("principal", correlation.principal), ("traceparent", correlation.traceparent)):
        if (value := variable.get()) is not None:
            row[name] = value
    if (value := options.correlation_id or correlation.correlation_id.get()) is not None:
        row["correlation_id"] = value
    return row


def database_of(task: JobTask[Any, Any]) -> str:
    """Return the alias a task's jobs are stored in: its backend's DATABASE option, or the first of DATABASES."""
    alias = task.get_backend().options.get("DATABASE") if django_settings.is_overridden("TASKS") else None
    return str(alias) if alias else settings().DATABASES[0]


def submit(call: Call, *, using: str | None = None) -> tuple[dict[str, Any], Enqueued]:
    """Enqueue one call in the current transaction; returns the row and the answer. Raises what was refused."""
    row = row_of(call)
    alias = using or database_of(call.task)
    tenant = call.task.call_options.tenant
    if tenant is None:
        answer = enqueue_rows([row], using=alias)[0]
    else:
        with tenant_context(tenant):
            answer = enqueue_rows([row], using=alias)[0]
    if (error := refusal(row, answer)) is not None:
        raise error
    _tell(row, answer, alias)
    return row, answer


def enqueue(task: JobTask[P, R], *args: P.args, **kwargs: P.kwargs) -> "TaskResult":
    """Enqueue one call of *task* in the current transaction; the same as `task.enqueue(...)`."""
    return task.enqueue(*args, **kwargs)


def enqueue_many(calls: Iterable[Call], *, using: str | None = None) -> list[Outcome]:
    """
    Enqueue many calls (`task.bind(...)`) in one transaction and return one outcome each, in order.

    A call that is refused does not sink the others: its outcome carries the error. What is stored
    becomes visible together, with the caller's commit.
    """
    outcomes: list[Outcome] = []
    places: dict[tuple[str, str | None], list[tuple[int, dict[str, Any]]]] = {}
    for place, call in enumerate(calls):
        try:
            row = row_of(call)
        except PgBrokerError as error:
            outcomes.append(Outcome(None, error.code, error))
            continue
        outcomes.append(Outcome(None, "pending"))
        alias = using or database_of(call.task)
        places.setdefault((alias, call.task.call_options.tenant), []).append((place, row))
    for (alias, tenant), group in places.items():
        with transaction.atomic(using=alias, savepoint=False):
            for start in range(0, len(group), ROWS_PER_STATEMENT):
                chunk = group[start : start + ROWS_PER_STATEMENT]
                for (place, row), answer in zip(chunk, _enqueue_as(tenant, chunk, alias), strict=True):
                    error = refusal(row, answer)
                    outcomes[place] = Outcome(None if error else answer.job_id, answer.outcome, error)
                    if error is None:
                        _tell_event(row, answer)
            for queue in {row["queue"] for _, row in group}:
                wake_after_commit(queue, using=alias)
    return outcomes


def _enqueue_as(
    tenant: str | None, chunk: list[tuple[int, dict[str, Any]]], alias: str
) -> list[Enqueued]:
    rows = [row for _, row in chunk]
    if tenant is None:
        return enqueue_rows(rows, using=alias)
    with tenant_context(tenant):
        return enqueue_rows(rows, using=alias)


def refusal(row: Mapping[str, Any], answer: Enqueued) -> PgBrokerError | None:
    """Translate a refused answer to the error of its code; None when the job is stored."""
    if not answer.refused:
        return None
    match answer.outcome:
        case "unknown_queue":
            return UnknownQueue(row["queue"])
        case "unknown_job_type":
            return UnknownJobType(row["job_type"])
        case "idempotency_conflict":
            return IdempotencyConflict(row["idempotency_key"], answer.job_id)
        case code:
            return EnqueueRefused(code, answer.detail or code)


def _tell(row: Mapping[str, Any], answer: Enqueued, alias: str) -> None:
    if answer.outcome == "created":
        wake_after_commit(row["queue"], using=alias)
    _tell_event(row, answer)


def _tell_event(row: Mapping[str, Any], answer: Enqueued) -> None:
    if answer.outcome == "created" and telemetry.wanted("job.enqueued"):
        telemetry.emit(
            "job.enqueued",
            job_id=answer.job_id,
            job_type=row["job_type"],
            queue=row["queue"],
            correlation_id=row.get("correlation_id"),
        )


# ------------------------------------------------------------------ making rows of declarations


def synchronise(*, using: str) -> dict[str, int]:
    """Make rows of all registered types and their queues; returns the types' ids by key."""
    known = types()
    declare_queues([*{each.task.queue_name for each in known.values()}, "default"], using=using)
    return declare_types(
        [
            DeclaredType(each.key, each.task.version, each.task.aliases, each.defaults)
            for each in sorted(known.values(), key=lambda each: each.key)
        ],
        using=using,
    )


def declare_after_migrate(*, using: str, plan: Any = None, **_: Any) -> None:
    """Make rows of what the code declares once the tables are there; receiver of `post_migrate`."""
    if using in settings().DATABASES and table_exists(using=using):
        synchronise(using=using)

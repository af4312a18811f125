"""
Job types: `@job`, the task it makes, and how a name becomes a handler.

A type's key is `name=` or `app_label.function`, never an import path: a row can only name what the
code registered.
"""

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, ParamSpec, TypeVar, cast, overload

from django.apps import apps
from django.conf import settings as django_settings
from django.utils.module_loading import import_string

from pgbroker import payload
from pgbroker.compat import DEFAULT_TASK_BACKEND_ALIAS, BaseTaskBackend, Task, task_backends
from pgbroker.conf import settings
from pgbroker.db import Session
from pgbroker.errors import DuplicateJobType, InvalidOption, UnknownJobType
from pgbroker.errors.near_names import did_you_mean
from pgbroker.exhausted import refuse_unless_it_takes_a_death
from pgbroker.lifecycle.declare import DeclaredType, declare_queues, declare_types
from pgbroker.options import (
    DJANGO_OPTIONS,
    LINKS,
    OPTION_NAMES,
    Keyed,
    Options,
    checked_exhausted,
    checked_name,
    checked_queue,
    checked_tags,
)
from pgbroker.policy.backoff import Backoff, backoff_from
from pgbroker.policy.durations import seconds_of
from pgbroker.policy.values import duration, elements, whole

if TYPE_CHECKING:
    from pgbroker.compat import TaskResult

P = ParamSpec("P")
R = TypeVar("R")

BackoffCallable = Callable[[BaseException, "TaskResult[..., Any]"], float | timedelta]
# Where a handler runs: in the worker's own process (async ones on its event loop), or in a child of it.
EXECUTORS = ("thread", "process")
BACKEND = "pgbroker.backend.PgBrokerBackend"
SCHEDULE_JOB = "pgbroker.schedules.declare.schedule_job"


@dataclass(frozen=True, kw_only=True)
class JobTask(Task, Generic[P, R]):  # type: ignore[type-arg] # generic in the stubs only
    """
    A Django task with pgbroker's options. `@job` makes it, and `@task` on a pgbroker backend.

    `.using()` keeps Django's four options, `.options()` carries ours; both return a new task.
    """

    type_name: str = ""
    version: int = 1
    aliases: tuple[str, ...] = ()
    executor: str | None = None
    max_attempts: int | None = None
    backoff: Backoff | BackoffCallable | None = None
    timeout: timedelta | None = None
    tags: tuple[str, ...] = ()
    on_exhausted: "JobTask[Any, Any] | str | None" = None
    # A run_after that was given as a timedelta: the database's clock turns it into an instant.
    run_after_delay: timedelta | None = None
    call_options: Options = field(default_factory=Options)
    lenient: bool = True

    def __post_init__(self) -> None:
        # Here, not in @job: Django's @task and .using() come through it too.
        for name, check in _DECLARED.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if not self.lenient:
            # Before Django's own look: @job refuses a parameter with pgbroker's error, @task with Django's.
            signature_of(self)
        for after in (self.on_exhausted, self.call_options.on_exhausted):
            if isinstance(after, JobTask):
                refuse_unfit(after)
        super().__post_init__()
        _types.add(self)

    # Django's Task finds its backend in TASKS, whose default runs a task at once, in the caller. A job
    # goes to pgbroker unless the project's TASKS says otherwise.
    def get_backend(self) -> BaseTaskBackend:
        """Return the backend that TASKS names for this task, or pgbroker's own when it names none."""
        if _tasks_configured() or self.backend != DEFAULT_TASK_BACKEND_ALIAS:
            return task_backends[self.backend]
        return _own_backend()

    if not TYPE_CHECKING:
        # Where others call it so; a type checker knows without.
        def __getattr__(self, name: str) -> Any:
            """Name `.enqueue()` to whoever looks for another library's word; raises `AttributeError`."""
            cure = ". Write task.enqueue(...)." if name in ("delay", "apply_async", "send", "defer") else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{cure}")

    @property
    def key(self) -> str:
        """The registry key, as rows store it."""
        return self.type_name or _default_key(self.func)

    def using(self, **changes: Any) -> "JobTask[P, R]":
        """
        Return this task with Django's options for the next call: priority, queue_name, run_after, backend.

        *run_after* may be a timedelta too: so long from now by the database's clock.
        """
        unknown = sorted(set(changes) - DJANGO_OPTIONS)
        if unknown:
            raise InvalidOption(unknown[0], "is not an option of .using()", _cure_of_using(unknown[0]))
        given = {name: value for name, value in changes.items() if value is not None}
        if isinstance(given.get("run_after"), timedelta):
            delay = given.pop("run_after")
            if delay < timedelta(0):
                raise InvalidOption(
                    "run_after", f"is negative ({seconds_of(delay)})", "Give a timedelta of zero or more."
                )
            given.update(run_after_delay=delay, run_after=None)
        elif "run_after" in given:
            # Django only looks whether it is aware, and fails on anything that is no datetime.
            if not isinstance(given["run_after"], datetime):
                raise InvalidOption(
                    "run_after",
                    f"is {given['run_after']!r}",
                    "Give a timezone-aware datetime, or a timedelta from now such as timedelta(seconds=30).",
                )
            given["run_after_delay"] = None
        if not isinstance(given.get("priority", 0), (int, float)):
            # Django compares it with numbers, whatever it is.
            raise InvalidOption(
                "priority", f"is {given['priority']!r}", "Give a whole number from -100 to 100."
            )
        return replace(self, **given)

    def options(self, **changes: Any) -> "JobTask[P, R]":
        """Return this task with pgbroker's options for the next call; see `Options`. Raises `InvalidOption`."""
        options = self.call_options.but(changes)
        if isinstance(options.on_exhausted, JobTask):
            refuse_unfit(options.on_exhausted)
        # A copy, without another look at what has not changed: calls that are linked have a task each.
        task: JobTask[P, R] = object.__new__(type(self))
        for name in _FIELDS_OF_DJANGO:
            object.__setattr__(task, name, getattr(self, name))
        task.__dict__.update(self.__dict__)
        task.__dict__["call_options"] = options
        if changes.keys() <= LINKS:
            task.__dict__["_unlinked"] = self.unlinked
        else:
            task.__dict__.pop("_unlinked", None)
        return task

    @property
    def unlinked(self) -> "JobTask[P, R]":
        """The task that says the same of its calls, but for what each is linked to; one for many."""
        known: JobTask[P, R] = self.__dict__.get("_unlinked", self)
        return known

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> "TaskResult[P, R]":
        """Enqueue one call in the current transaction and return Django's `TaskResult` for it."""
        return self.get_backend().enqueue(self, args, kwargs)  # type: ignore[arg-type]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> "TaskResult[P, R]":
        """Enqueue one call from async code."""
        return await self.get_backend().aenqueue(self, args, kwargs)  # type: ignore[arg-type]

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> "Call":
        """Pair this task with its arguments, for `enqueue_many`. Nothing is checked or stored yet."""
        return Call(self, args, kwargs)


def _cure_of_using(name: str) -> str:
    if name in OPTION_NAMES:
        return f"Give it to .options({name}=...)."
    near = did_you_mean(name, DJANGO_OPTIONS) or did_you_mean(name, OPTION_NAMES)
    return near or f"Known: {', '.join(sorted(DJANGO_OPTIONS))}."


# Slots; what is our own is in a task's dictionary.
_FIELDS_OF_DJANGO = tuple(each.name for each in fields(Task))


class Call(NamedTuple):
    """A task and the arguments of one call."""

    task: "JobTask[Any, Any]"
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


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
        if self.task.tags:
            declared["tags"] = list(self.task.tags)
        if self.task.on_exhausted is not None:
            declared["on_exhausted"] = exhausted_name(self.task.on_exhausted)
        if self.task.executor is not None:
            declared["executor"] = self.task.executor
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

    def declared(self, function: Callable[..., Any]) -> JobTask[Any, Any] | None:
        """Return the declaration of a function, without what `.using()` and `.options()` changed."""
        return self._by_function.get(function)

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
            # The same function of a reloaded module is no second declaration: the newer one counts.
            if other is not None and _place(other.task.func) != _place(function):
                raise DuplicateJobType(
                    f"job type {key!r} is declared twice: by {_place(other.task.func)} and "
                    f"{_place(function)}. Give one of them another name=.",
                    job_type=key,
                )
            found[key] = JobType(
                key=key,
                task=task,
                signature=signature_of(task),
                is_async=inspect.iscoroutinefunction(function),
            )
        for key, each in found.items():
            for alias in each.task.aliases:
                other = found.get(alias) or next(
                    (one for one in found.values() if one.key != key and alias in one.task.aliases), None
                )
                if other is not None and other is not each:
                    raise DuplicateJobType(
                        f"job type {alias!r} is declared twice: as an alias of {key!r}, and by {other.key!r}. "
                        "Take the alias away from one of them.",
                        job_type=alias,
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


def _tasks_configured() -> bool:
    # On the settings object, which the type stubs do not know.
    return bool(django_settings.is_overridden("TASKS"))  # type: ignore[misc]


@cache
def _own_backend() -> BaseTaskBackend:
    # Found by name: the backend is an edge above this module.
    return cast(BaseTaskBackend, import_string(BACKEND)(DEFAULT_TASK_BACKEND_ALIAS, {"QUEUES": []}))


def types() -> dict[str, JobType]:
    """Return every registered type by key."""
    return _types.by_key()


def exhausted_name(value: Keyed | str) -> str:
    """Return the name of the job type that `on_exhausted` means; raises `InvalidOption` where it cannot take one."""
    key = value if isinstance(value, str) else value.key
    known = names().get(key)
    if known is not None:
        refuse_unfit(known.task)
    return key


def refuse_unfit(task: JobTask[Any, Any]) -> None:
    """Refuse a task that `on_exhausted` cannot mean; raises `InvalidOption`."""
    declared = _types.declared(task.func)
    if declared is not None and declared != task:
        raise InvalidOption(
            "on_exhausted", f"is {task.func.__name__} with options of a call", "Declare them with @job."
        )
    refuse_unless_it_takes_a_death(signature_of(task))


def names() -> dict[str, JobType]:
    """Return every registered type by its key, and by each of its former names that is nobody's key now."""
    known = types()
    return {alias: each for each in known.values() for alias in each.task.aliases} | known


def lookup(key: str) -> JobType:
    """Return the type of that key or alias; raises `UnknownJobType`."""
    known = types()
    if key in known:
        return known[key]
    for job_type in known.values():
        if key in job_type.task.aliases:
            return job_type
    raise UnknownJobType(key, known)


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
    tags: Iterable[str] = (),
    on_exhausted: "JobTask[Any, Any] | str | None" = None,
    version: int = 1,
    aliases: Iterable[str] = (),
    executor: Literal["thread", "process"] | None = None,
    schedule: "Mapping[str, Any] | Sequence[Mapping[str, Any]] | None" = None,
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
    tags: Iterable[str] = (),
    on_exhausted: "JobTask[Any, Any] | str | None" = None,
    version: int = 1,
    aliases: Iterable[str] = (),
    executor: Literal["thread", "process"] | None = None,
    schedule: "Mapping[str, Any] | Sequence[Mapping[str, Any]] | None" = None,
    takes_context: bool = False,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
) -> Any:
    """
    Declare a job: makes a Django task of a function, sync or async.

    *name* is the registry key (default `app_label.function`), *aliases* its former keys. *version* rises
    when the meaning of the arguments changes: older workers leave newer jobs alone. *backoff* is
    seconds, a mapping, a `Backoff`, or a callable of (exception, task_result). *timeout* limits one
    attempt. *tags* are those of a job whose call gives none. *on_exhausted* is a job, or its name: it is
    enqueued with a `DeadLetter` when a job of this type becomes one. *executor* is "process" for a child
    process, "thread" for the worker's own (async handlers: its event loop), default what the worker says.
    Raises `InvalidOption` where it is written.
    """
    if function is not None and not callable(function):
        raise InvalidOption("function", f"is {function!r}", "Write @job, or @job(name=..., queue_name=...).")
    declared: dict[str, Any] = {
        "type_name": "" if name is None else checked_name("name", name),
        "queue_name": queue_name,
        "priority": whole("priority", priority, -100, 100),
        "max_attempts": max_attempts,
        "backoff": backoff,
        "timeout": timeout,
        "tags": tags,
        "on_exhausted": on_exhausted,
        "version": version,
        "aliases": aliases,
        "executor": executor,
        "takes_context": takes_context,
        "backend": backend,
        "lenient": False,
    }

    def declare(handler: Callable[P, R]) -> JobTask[P, R]:
        task: JobTask[P, R] = JobTask(func=handler, run_after=None, **declared)
        if schedule is not None:
            # Found by name: schedules are a side system above this module.
            import_string(SCHEDULE_JOB)(task, schedule)
        return task

    return declare(function) if function is not None else declare


def _one_of_executors(field_name: str, value: object) -> str:
    if value not in EXECUTORS:
        raise InvalidOption(field_name, f"is {value!r}", f"Choose one of: {', '.join(EXECUTORS)}.")
    return str(value)


def _checked_aliases(field_name: str, value: Any) -> tuple[str, ...]:
    names = elements(field_name, value, "Give a list of names.")
    return tuple(checked_name(field_name, alias) for alias in names)


def _declared_backoff(field_name: str, value: Any) -> Any:
    return value if value is None or callable(value) else backoff_from(value, field=field_name)


_DECLARED: dict[str, Callable[[str, Any], Any]] = {
    "queue_name": lambda _, value: checked_queue(value),
    "max_attempts": lambda name, value: None if value is None else whole(name, value, 1, 10_000),
    "backoff": _declared_backoff,
    "timeout": lambda name, value: None if value is None else duration(name, value),
    "tags": checked_tags,
    "on_exhausted": lambda name, value: None if value is None else checked_exhausted(name, value),
    "version": lambda name, value: whole(name, value, 1, 2**31 - 1),
    "executor": lambda name, value: None if value is None else _one_of_executors(name, value),
    "aliases": _checked_aliases,
}


# ------------------------------------------------------------------ making rows of declarations


def synchronise(*, using: "str | Session") -> dict[str, int]:
    """Make rows of all registered types and their queues; returns the types' ids by key."""
    declare_queues(declared_queues(), using=using)
    return declare_types(declared_types(), using=using)


def declared_queues() -> list[str]:
    """Name the queues of all registered types, and the default one."""
    return sorted({each.task.queue_name for each in types().values()} | {"default"})


def declared_types() -> list[DeclaredType]:
    """List what the code declares about its types, by keys."""
    return [
        DeclaredType(each.key, each.task.version, each.task.aliases, each.defaults)
        for each in sorted(types().values(), key=lambda each: each.key)
    ]


def synchronise_apart(*, using: str) -> None:
    """
    Make the same rows on a connection of its own, whatever transaction the caller is in.

    A declaration in the caller's transaction would make every worker that starts wait for its end.
    """
    session = Session(using, purpose="declare")
    try:
        synchronise(using=session)
    finally:
        session.drop()

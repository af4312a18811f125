"""
Run code of the project's own around enqueue, run and settle: each function here registers a hook.

Register in `jobs.py` or in `AppConfig.ready()`, so that every process has them. They are called in the order
of registration. Without hooks nothing is asked and nothing is paid.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from pgbroker import telemetry
from pgbroker.errors import InvalidOption
from pgbroker.registry import Call

if TYPE_CHECKING:
    from pgbroker.context import JobContext

__all__ = [
    "EnqueuedJob",
    "SettledAttempt",
    "after_enqueue",
    "after_settle",
    "around_run",
    "before_enqueue",
    "remove",
]


class EnqueuedJob(NamedTuple):
    """A job that was stored, in a transaction that may still roll back."""

    job_id: UUID
    job_type: str
    queue: str
    correlation_id: str | None


class SettledAttempt(NamedTuple):
    """
    An attempt whose outcome was written.

    *outcome* tells how the attempt ended (completed, failed, timed_out, crashed, cancelled, snoozed), *status*
    where that left the job: scheduled when it will be tried again. *exception* is what the handler raised; of a
    child process it is a stand-in, whose text is the traceback from there.
    """

    job_id: UUID
    job_type: str | None
    queue: str | None
    tenant_id: str
    attempt_no: int
    outcome: str
    status: str
    duration_seconds: float
    error_code: str | None
    error: str | None
    exception: BaseException | None
    correlation_id: str | None


BeforeEnqueue = Callable[[Call], Call | None]
AfterEnqueue = Callable[[EnqueuedJob], object]
AfterSettle = Callable[[SettledAttempt], object]
AroundRun = Callable[
    ["JobContext"], AbstractContextManager[object] | AbstractAsyncContextManager[object] | None
]

B = TypeVar("B", bound=BeforeEnqueue)
A = TypeVar("A", bound=AfterEnqueue)
S = TypeVar("S", bound=AfterSettle)
R = TypeVar("R", bound=AroundRun)

_before_enqueue: list[BeforeEnqueue] = []
_around_run: list[AroundRun] = []
# How to remove those that are listeners of telemetry.
_unsubscribe: dict[Callable[..., Any], Callable[[], None]] = {}


# ------------------------------------------------------------------ registration


def before_enqueue(hook: B) -> B:
    """
    Call *hook(call)* before a call is checked and stored, in the caller's transaction.

    It returns None to leave the call as it is, or another call of the same job, made with
    `call.task.options(...).bind(...)`. It refuses the call by raising `EnqueueRefused`, or an error of its own
    that derives from `PgBrokerError`; in `enqueue_many` the others go on. Any other error is the caller's.
    Jobs that SQL enqueues pass it by.
    """
    if hook not in _before_enqueue:
        _before_enqueue.append(hook)
    return hook


def after_enqueue(hook: A) -> A:
    """
    Call *hook(job)* with an `EnqueuedJob` for each new job; one that existed already is none.

    In the caller's thread and transaction, which may still roll back. What it raises goes to the log
    `pgbroker.telemetry`.
    """

    def listener(event: str, keys: dict[str, Any]) -> None:
        hook(EnqueuedJob(keys["job_id"], keys["job_type"], keys["queue"], keys["correlation_id"]))

    _listen(hook, listener, frozenset({"job.enqueued"}))
    return hook


def around_run(hook: R) -> R:
    """
    Enter the context manager that *hook(context)* returns around each handler, in its thread or task.

    *hook* gets the `JobContext` of the attempt, as a handler does that takes one; returning None leaves this
    attempt alone. An asynchronous context manager is entered around coroutines and left out around
    functions, which have no event loop to enter it in; a plain one is entered around both. What it raises ends
    the attempt, as if the handler had raised it.
    """
    if hook not in _around_run:
        _around_run.append(hook)
    return hook


def after_settle(hook: S) -> S:
    """
    Call *hook(attempt)* with a `SettledAttempt` once its outcome is committed.

    In the thread that settles for the whole worker, so it must be quick. What it raises goes to the log
    `pgbroker.telemetry`.
    """

    def listener(event: str, keys: dict[str, Any]) -> None:
        hook(
            SettledAttempt(
                **{name: keys[name] for name in _SAME},
                outcome=keys["state"],
                error=keys["ended"].error,
                exception=keys["attempt"].error,
            )
        )

    _listen(hook, listener, telemetry.SETTLED)
    return hook


_SAME = (
    "job_id",
    "job_type",
    "queue",
    "tenant_id",
    "attempt_no",
    "status",
    "duration_seconds",
    "error_code",
    "correlation_id",
)


def _listen(hook: Callable[..., Any], listener: telemetry.Listener, events: frozenset[str]) -> None:
    if hook not in _unsubscribe:
        _unsubscribe[hook] = telemetry.subscribe(listener, wants=events.__contains__)


def remove(hook: Callable[..., Any]) -> None:
    """Take a hook out again, wherever it was registered; for tests."""
    for known in (_before_enqueue, _around_run):
        if hook in known:
            known.remove(hook)
    if (unsubscribe := _unsubscribe.pop(hook, None)) is not None:
        unsubscribe()


# ------------------------------------------------------------------ where they are called


def changed(call: Call) -> Call:
    """Return a call as the hooks before enqueue leave it; raises what refuses it."""
    for hook in _before_enqueue:
        answer = hook(call)
        if answer is None:
            continue
        other: object = answer
        if not isinstance(other, Call) or other.task.func is not call.task.func:
            raise InvalidOption(
                "before_enqueue",
                f"hook {getattr(hook, '__qualname__', hook)} returned {answer!r}",
                "Return None, or call.task.options(...).bind(...): another call of the same job.",
            )
        call = other
    return call


def any_before_enqueue() -> bool:
    """Tell whether calls may be changed or refused before they are enqueued."""
    return bool(_before_enqueue)


def any_around_run() -> bool:
    """Tell whether a handler has hooks around it."""
    return bool(_around_run)


def entered(context: "JobContext") -> ExitStack:
    """Enter the hooks around an attempt whose handler is a function; the caller leaves them, with `with`."""
    with ExitStack() as stack:
        for hook in _around_run:
            manager = hook(context)
            if isinstance(manager, AbstractContextManager):
                stack.enter_context(manager)
            elif not isinstance(manager, AbstractAsyncContextManager):
                _check(hook, manager)
        return stack.pop_all()


async def entered_async(context: "JobContext") -> AsyncExitStack:
    """Enter the hooks around an attempt whose handler is a coroutine; the caller leaves them."""
    async with AsyncExitStack() as stack:
        for hook in _around_run:
            manager = hook(context)
            if isinstance(manager, AbstractAsyncContextManager):
                await stack.enter_async_context(manager)
            elif isinstance(manager, AbstractContextManager):
                stack.enter_context(manager)
            else:
                _check(hook, manager)
        return stack.pop_all()


def _check(hook: AroundRun, manager: object) -> None:
    if manager is not None:
        raise InvalidOption(
            "around_run",
            f"hook {getattr(hook, '__qualname__', hook)} returned {manager!r}",
            "Return a context manager, or None; is @contextmanager missing?",
        )

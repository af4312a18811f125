"""What a handler with `takes_context=True` is given: its attempt, and whether it should stop."""

import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast
from uuid import UUID

from asgiref.sync import sync_to_async

from pgbroker.compat import TaskContext, TaskResult, TaskResultStatus
from pgbroker.conf import settings
from pgbroker.errors import AttemptCancelled
from pgbroker.groups import group_of
from pgbroker.lease import Lease
from pgbroker.prerequisites import Prerequisites, prerequisites_of
from pgbroker.registry import JobTask, JobType
from pgbroker.task_results import JobResult, call_parts
from pgbroker.tenancy import tenant_context

P = ParamSpec("P")
R = TypeVar("R")
StopReason = Literal["cancelled", "timed_out", "lease_lost", "shutdown"]

# One for all: it is held for a moment, and most attempts are never asked to stop.
_stop_lock = threading.Lock()


class Stop:
    """Whether and why an attempt should stop. Set once; the first reason stays."""

    __slots__ = ("_event", "reason", "shutting_down")

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        # The worker drains: no reason to stop yet, but it will be one.
        self.shutting_down = False
        # Made only when somebody waits: most attempts never do.
        self._event: threading.Event | None = None

    def set(self, reason: StopReason) -> None:
        """Ask the attempt to stop."""
        with _stop_lock:
            if self.reason is None:
                self.reason = reason
            if self._event is not None:
                self._event.set()

    def wait(self, seconds: float) -> bool:
        """Wait so many seconds, or until asked to stop; tells whether it was."""
        with _stop_lock:
            if self.reason is not None:
                return True
            if self._event is None:
                self._event = threading.Event()
        return self._event.wait(seconds)


if TYPE_CHECKING:
    AnyResult = TaskResult[..., Any]

    class _TaskContext(TaskContext[..., Any]):
        pass
else:
    _TaskContext = TaskContext


class JobContext(_TaskContext):
    """
    The first argument, `context`, of a handler declared with `takes_context=True`.

    A Django `TaskContext` with what pgbroker knows: the job, its tenant, and whether to stop.
    """

    __slots__ = ("_job_type", "_result", "_stop", "_using", "lease")

    lease: Lease
    _job_type: JobType
    _result: "AnyResult | None"
    _stop: Stop
    _using: str | None

    def __init__(self, lease: Lease, job_type: JobType, stop: Stop, using: str | None = None) -> None:
        # The base is a frozen dataclass around a TaskResult, which is made here only when it is asked for.
        object.__setattr__(self, "lease", lease)
        object.__setattr__(self, "_job_type", job_type)
        object.__setattr__(self, "_stop", stop)
        object.__setattr__(self, "_using", using)
        object.__setattr__(self, "_result", None)

    @property
    def task_result(self) -> "AnyResult":  # type: ignore[override]
        """Django's view of this job: running, with its arguments as they are stored."""
        if self._result is None:
            object.__setattr__(self, "_result", running_result(self.lease, self._job_type))
        assert self._result is not None
        return self._result

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.lease.attempt_count

    @property
    def job_id(self) -> UUID:
        """The job's id."""
        return self.lease.job_id

    @property
    def tenant_id(self) -> str:
        """The tenant the handler works as."""
        return self.lease.tenant_id

    @property
    def tags(self) -> tuple[str, ...]:
        """The job's tags, in the order in which they were given."""
        return tuple(self.lease.tags or ())

    @property
    def correlation_id(self) -> str | None:
        """The id that follows the work across jobs, as the enqueuing call set it."""
        return self.lease.correlation_id

    @property
    def deadline_at(self) -> datetime | None:
        """The instant after which the job is not worth doing, by the database's clock."""
        return self.lease.deadline_at

    @property
    def using(self) -> str:
        """The alias of the database that the job is stored in."""
        return self._using or settings().DATABASES[0]

    @property
    def prerequisites(self) -> Prerequisites:
        """
        What the job waited for, with results: `for` or `async for` each, read from the database then, in pages.

        An edge to a run group is one prerequisite; its `members` are the jobs of the group.
        """
        return prerequisites_of(self.lease.job_id, tenant=self.lease.tenant_id, using=self.using)

    def graft(self, task: JobTask[P, R], *args: P.args, **kwargs: P.kwargs) -> "TaskResult[P, R]":
        """
        Enqueue a call into the run group of this job, which must be open still, and return Django's `TaskResult`.

        A job that runs twice grafts twice, unless the call has an idempotency key. Raises `GroupNotFound` when the
        job is in no group, `GroupSealed`, and `AttemptCancelled` when the attempt has lost its lease.
        """
        with tenant_context(self.lease.tenant_id):
            group = group_of(self.lease, using=self.using)
            return cast("TaskResult[P, R]", group.enqueue(task.bind(*args, **kwargs)))

    async def agraft(self, task: JobTask[P, R], *args: P.args, **kwargs: P.kwargs) -> "TaskResult[P, R]":
        """Enqueue a call into the run group of this job, from async code."""
        return await sync_to_async(self.graft, thread_sensitive=True)(task, *args, **kwargs)

    @property
    def scheduled_for(self) -> datetime | None:
        """The tick of the schedule that created this job, or its run group; None for a job that no schedule created."""
        told = self.lease.options.get("scheduled_for") if isinstance(self.lease.options, dict) else None
        try:
            return None if told is None else datetime.fromisoformat(told)
        except (TypeError, ValueError):
            # Somebody else's words: whoever enqueues in SQL may write there what he likes.
            return None

    @property
    def job_type(self) -> str:
        """The key of the job's type."""
        return self._job_type.key

    @property
    def is_async(self) -> bool:
        """True when the handler is a coroutine function, which runs in an event loop."""
        return self._job_type.is_async

    @property
    def is_last_attempt(self) -> bool:
        """True when a failure now makes the job a dead letter."""
        return self.lease.attempt_count >= self.lease.max_attempts

    @property
    def cancelled(self) -> bool:
        """True once the attempt should stop; a thread cannot be stopped from outside, so look now and then."""
        return self._stop.reason is not None

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it should stop: cancelled, timed_out, lease_lost or shutdown."""
        return self._stop.reason

    @property
    def shutting_down(self) -> bool:
        """True from the worker's signal to end on: `SHUTDOWN_TIMEOUT_SECONDS` are left, then it should stop."""
        return self._stop.shutting_down

    def raise_if_cancelled(self) -> None:
        """Raise `AttemptCancelled` once the attempt should stop."""
        if self._stop.reason is not None:
            raise AttemptCancelled(f"the attempt was asked to stop: {self._stop.reason}")

    def wait(self, seconds: float) -> bool:
        """Sleep, but wake when asked to stop; tells whether that happened. For threads only."""
        return self._stop.wait(seconds)


def running_result(lease: Lease, job_type: JobType) -> "AnyResult":
    """Make Django's `TaskResult` of an attempt that runs, without asking the database."""
    args, kwargs = call_parts(lease.args, lease.args_body, lease.tenant_id)
    return JobResult(
        task=job_type.task,
        id=str(lease.job_id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=lease.created_at,
        started_at=lease.leased_at,
        finished_at=None,
        last_attempted_at=lease.leased_at,
        args=args,
        kwargs=kwargs,
        backend=job_type.task.backend,
        errors=[],
        worker_ids=[str(lease.worker_id)] * lease.attempt_count,
    ).of_tenant(lease.tenant_id)

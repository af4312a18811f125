"""`PgBrokerBackend`: Django's task framework on pgbroker."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.core import checks
from django.db import connections

from pgbroker import telemetry
from pgbroker.bodies import Reference
from pgbroker.compat import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from pgbroker.conf import settings
from pgbroker.context import running_result
from pgbroker.errors import InvalidOption, PgBrokerError
from pgbroker.lifecycle.enqueue import Enqueued
from pgbroker.lifecycle.look import Job, look
from pgbroker.outcomes import Ended
from pgbroker.registry import Call, JobTask, lookup, signature_of
from pgbroker.states import AttemptState, Status
from pgbroker.submission import submit, wake
from pgbroker.task_results import JobResult, call_parts
from pgbroker.tenancy import current_tenant, tenant_context

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
    AnyResult = TaskResult[..., Any]

_STATUSES = {
    Status.RUNNING: TaskResultStatus.RUNNING,
    Status.COMPLETED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.DEAD_LETTER: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,
}
OPTIONS = frozenset({"DATABASE"})


class PgBrokerBackend(BaseTaskBackend):
    """
    `TASKS = {"default": {"BACKEND": "pgbroker.backend.PgBrokerBackend", "QUEUES": [...]}}`.

    Without QUEUES, or with `[]`, any queue is allowed. OPTIONS: `DATABASE`, the alias that stores the jobs (default:
    the first of `PGBROKER["DATABASES"]`). Django's four statuses show ours: scheduled, waiting, suspended and
    blocked are READY; failed, dead_letter and cancelled are FAILED, with the reason among the errors.
    """

    task_class = JobTask

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        # Jobs declare their queues. Django's own default would refuse each but one.
        super().__init__(alias, {"QUEUES": [], **params})

    # Neither __init__ nor validate_task may touch models or the database: both run while apps load.
    @property
    def database(self) -> str:
        """The alias that stores this backend's jobs."""
        return str(self.options.get("DATABASE") or settings().DATABASES[0])

    def validate_task(self, task: "AnyTask") -> None:
        """Refuse a task that could not run; raises Django's InvalidTask."""
        super().validate_task(task)
        if isinstance(task, JobTask):
            try:
                signature_of(task)
            except InvalidOption as error:
                raise InvalidTask(str(error)) from error

    def enqueue(  # type: ignore[override] # the stubs say list, Django hands a tuple over
        self, task: "AnyTask", args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> "AnyResult":
        """Enqueue in the current transaction; an idempotency key's holder is returned as it is."""
        self.validate_task(task)
        job_task = task if isinstance(task, JobTask) else self._as_job_task(task)
        submission, answer = submit(Call(job_task, tuple(args), dict(kwargs)), using=self.database)
        tenant = submission.call.task.call_options.tenant or current_tenant()
        if answer.made:
            result = self._new_result(task, submission.envelope, answer, tenant)
            try:
                task_enqueued.send(type(self), task_result=result)
            finally:
                wake(submission, using=self.database)
            return result
        with tenant_context(tenant):
            return self.get_result(str(answer.job_id))

    @staticmethod
    def _as_job_task(task: "AnyTask") -> JobTask[Any, Any]:
        return JobTask(
            func=task.func,
            priority=task.priority,
            backend=task.backend,
            queue_name=task.queue_name,
            run_after=task.run_after,
            takes_context=task.takes_context,
        )

    def _new_result(
        self, task: "AnyTask", envelope: Mapping[str, Any], answer: Enqueued, tenant: str
    ) -> "AnyResult":
        return JobResult(
            task=task,
            id=str(answer.job_id),
            status=TaskResultStatus.READY,
            enqueued_at=answer.created_at,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=envelope["args"],
            kwargs=envelope["kwargs"],
            backend=self.alias,
            errors=[],
            worker_ids=[],
        ).of_tenant(tenant)

    def get_result(self, result_id: str) -> "AnyResult":
        """Read a result of the current tenant; raises Django's TaskResultDoesNotExist."""
        try:
            job_id = UUID(str(result_id))
        except ValueError:
            raise TaskResultDoesNotExist(result_id) from None
        found = look(job_id, using=self.database)
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return self._result_of(found)

    def _result_of(self, job: Job) -> "AnyResult":
        args, kwargs = call_parts(job.args, job.args_body, job.tenant_id)
        starts = [each for each in job.executions if each["state"] != AttemptState.RELEASED]
        worker_ids = [str(each["worker_id"]) for each in starts]
        times = [datetime.fromisoformat(each["started_at"]) for each in starts if each["started_at"]]
        if job.status == Status.RUNNING:
            worker_ids.append(str(job.worker_id))
            times.append(job.leased_at)  # type: ignore[arg-type]
        task = lookup(job.job_type).task.using(
            priority=job.priority, queue_name=job.queue, run_after=job.available_at, backend=self.alias
        )
        result: AnyResult = JobResult(
            task=task,
            id=str(job.id),
            status=_STATUSES.get(job.status, TaskResultStatus.READY),
            enqueued_at=job.created_at,
            started_at=times[0] if times else None,
            finished_at=job.finished_at,
            last_attempted_at=times[-1] if times else None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=list(_errors(job)),
            worker_ids=worker_ids,
        ).of_tenant(job.tenant_id)
        object.__setattr__(result, "_return_value", job.stored_result)
        return result

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Check the backend's own options; the app's checks see to the rest."""
        return list(self._troubles())

    def _troubles(self) -> Iterable[checks.CheckMessage]:
        if unknown := sorted(set(self.options) - OPTIONS):
            yield checks.Error(
                f"TASKS[{self.alias!r}]['OPTIONS'] has unknown keys: {', '.join(map(str, unknown))}.",
                hint=f"Known: {', '.join(sorted(OPTIONS))}.",
                id="pgbroker.E010",
            )
        elif self.database not in connections.settings:
            yield checks.Error(
                f"TASKS[{self.alias!r}]['OPTIONS']['DATABASE'] is {self.database!r}, not an alias of DATABASES.",
                hint=f"Known: {', '.join(connections.settings)}.",
                id="pgbroker.E011",
            )


def _errors(job: Job) -> Iterable[TaskError]:
    for each in job.executions:
        if each["error_code"] and each["state"] not in (AttemptState.RELEASED, AttemptState.SNOOZED):
            yield TaskError(
                exception_class_path=exception_path(each["error_code"]),
                traceback=each["traceback"] or each["error"] or each["error_code"],
            )
    if job.reason_code and job.status in (Status.FAILED, Status.CANCELLED):
        yield TaskError(
            exception_class_path=exception_path(job.reason_code), traceback=job.reason or job.reason_code
        )


def exception_path(error_code: str) -> str:
    """Return the path of the exception class behind an error code; a class path is its own."""
    from pgbroker import errors

    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, PgBrokerError) and value.code == error_code:
            return f"pgbroker.errors.{name}"
    return error_code if "." in error_code else "pgbroker.errors.PgBrokerError"


# ------------------------------------------------------------------ Django's signals, from our events


def send_signals(event: str, keys: dict[str, Any]) -> None:
    """Send Django's task signals; a telemetry listener in worker processes."""
    attempt = keys.get("attempt")
    if attempt is None:
        return
    result = running_result(attempt.lease, attempt.job_type)
    if event == "attempt.started":
        task_started.send(PgBrokerBackend, task_result=result)
        return
    status = Status[keys["status"].upper()]
    if status not in _STATUSES or status == Status.RUNNING:
        return
    ended = keys["ended"]
    object.__setattr__(result, "status", _STATUSES[status])
    if ended.result is not None:
        object.__setattr__(result, "_return_value", _returned(ended))
    if ended.error_code:
        result.errors.append(
            TaskError(
                exception_class_path=exception_path(ended.error_code),
                traceback=ended.traceback or ended.error or ended.error_code,
            )
        )
    if attempt.error is None:
        task_finished.send(PgBrokerBackend, task_result=result)
        return
    # Django's own receiver logs with sys.exc_info(): the error must be the one being handled.
    try:
        raise attempt.error
    except BaseException:
        task_finished.send(PgBrokerBackend, task_result=result)


def _returned(ended: Ended) -> Any:
    value = json.loads(ended.result or "null")
    if ended.result_body is None:
        return value
    return Reference(ended.result_body, value, ended.lease.tenant_id)


def wants_signals(event: str) -> bool:
    """Tell whether somebody besides Django's own log receivers listens, so that hot paths stay cheap."""
    if event == "attempt.started":
        return len(task_started.receivers) > _OWN_RECEIVERS
    return event in _FINISHED and len(task_finished.receivers) > _OWN_RECEIVERS


# Django (and the backport) connect one receiver of their own to each signal, which writes a log line; the
# same line is pgbroker's own event already.
_OWN_RECEIVERS = 1
_FINISHED = frozenset({"attempt.settled", "job.discarded", "job.gave_up"})


def serve_signals() -> None:
    """Connect Django's signals to the events of this process."""
    telemetry.subscribe(send_signals, wants=wants_signals)

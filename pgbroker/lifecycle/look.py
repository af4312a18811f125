"""look: read one job, and change nothing."""

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pgbroker import db
from pgbroker.bodies import Reference
from pgbroker.states import Status


class Job(NamedTuple):
    """Everything that is known about one job at one instant."""

    id: UUID
    job_type: str
    queue: str
    tenant_id: str
    status: Status
    priority: int
    ready_at: datetime | None
    available_at: datetime | None
    attempt_count: int
    max_attempts: int
    crash_count: int
    worker_id: UUID | None
    # The name of that worker, and its process as host:pid, while its row is there.
    worker: str | None
    worker_process: str | None
    leased_at: datetime | None
    cancel_requested_at: datetime | None
    deadline_at: datetime | None
    created_at: datetime
    finished_at: datetime | None
    type_version: int
    # Any: an object, or `Undecodable` where an SQL caller stored what Python cannot read. With args_body, the
    # name of a body, it is the body's stub.
    args: Any
    args_body: str | None
    options: dict[str, Any] | None
    idempotency_key: str | None
    correlation_id: str | None
    # None: it has none.
    tags: list[str] | None
    reason_code: str | None
    reason: str | None
    # The job whose bad end is the reason, where it was a prerequisite's.
    cause_id: UUID | None
    # The run group that it is in, and its own name there.
    run_group_id: UUID | None
    run_group: str | None
    name: str | None
    executions: list[dict[str, Any]]
    # The alias that it was read from.
    database: str

    @property
    def stored_call(self) -> Any:
        """The call as its row has it: the envelope of its arguments, or the `Reference` of a body."""
        if self.args_body is None:
            return self.args
        return Reference(self.args_body, self.args, self.tenant_id)

    @property
    def stored_result(self) -> Any:
        """What the handler returned as its row has it: a JSON value, or the `Reference` of a body."""
        completed = [each for each in self.executions if each["state"] == 1]
        if not completed or self.status != Status.COMPLETED:
            return None
        last = completed[-1]
        if last["result_body"] is None:
            return last["result"]
        return Reference(last["result_body"], last["result"], self.tenant_id)

    @property
    def call(self) -> Any:
        """The call, `{"v": 1, "args": [...], "kwargs": {...}}`. Reads a body: may raise `BodyUnreadable`."""
        return _read(self.stored_call)

    @property
    def result(self) -> Any:
        """
        What the handler returned, as JSON values; None until the job is completed.

        Reads a body, each time: may raise `BodyUnreadable`.
        """
        return _read(self.stored_result)

    @property
    def error(self) -> str | None:
        """The text of the last error, or None."""
        errors = [each["error"] for each in self.executions if each["error"]]
        return errors[-1] if errors else None


def _read(value: Any) -> Any:
    return value.read() if isinstance(value, Reference) else value


def look(job_id: UUID, *, using: str | db.Session = "default") -> Job | None:
    """Read one job of the current tenant; None when it has none of that id."""
    alias = using.alias if isinstance(using, db.Session) else using
    found = db.fetch("get_job", {"job_id": job_id}, lambda row: Job._make((*row, alias)), using=using)
    return found[0]._replace(status=Status(found[0].status)) if found else None

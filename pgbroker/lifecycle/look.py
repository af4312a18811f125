"""look: read one job, and change nothing."""

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pgbroker import db
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
    leased_at: datetime | None
    cancel_requested_at: datetime | None
    deadline_at: datetime | None
    created_at: datetime
    finished_at: datetime | None
    type_version: int
    # Any: an object, or `Undecodable` where an SQL caller stored what Python cannot read.
    args: Any
    options: dict[str, Any] | None
    idempotency_key: str | None
    correlation_id: str | None
    reason_code: str | None
    reason: str | None
    executions: list[dict[str, Any]]

    @property
    def result(self) -> Any:
        """What the handler returned, as JSON values; None until the job is completed."""
        completed = [each for each in self.executions if each["state"] == 1]
        return completed[-1]["result"] if completed and self.status == Status.COMPLETED else None

    @property
    def error(self) -> str | None:
        """The text of the last error, or None."""
        errors = [each["error"] for each in self.executions if each["error"]]
        return errors[-1] if errors else None


def look(job_id: UUID, *, using: str | db.Session = "default") -> Job | None:
    """Read one job of the current tenant; None when it has none of that id."""
    found = db.fetch("get_job", {"job_id": job_id}, lambda row: Job(*row), using=using)
    return found[0]._replace(status=Status(found[0].status)) if found else None

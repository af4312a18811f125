"""What a claim hands over: one attempt of one job, and the fence that every write about it presents."""

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pgbroker.stored_json import read_json


class Fence(NamedTuple):
    """Who may write about an attempt; the part of a lease that a release needs."""

    job_id: UUID
    lease_token: int
    worker_id: UUID


class Lease(NamedTuple):
    """
    The right to run one attempt until `lease_expires_at`.

    `(job_id, lease_token, worker_id)` is the fence. A named tuple, since a worker makes tens of
    thousands a second. All instants are the database's.
    """

    job_id: UUID
    lease_token: int
    queue_id: int
    job_type_id: int
    type_version: int
    tenant_id: str
    priority: int
    attempt_count: int
    max_attempts: int
    declared_attempts: int
    crash_count: int
    ready_at: datetime
    leased_at: datetime
    deadline_at: datetime | None
    created_at: datetime
    # As JSON text: a worker holds many jobs, and a value takes five times as much. None: there is no such row.
    stored_args: Any
    options: dict[str, Any] | None
    principal: str | None
    correlation_id: str | None
    traceparent: str | None
    # The name of arguments that are too large for the row; args is their stub until they are read.
    args_body: str | None
    tags: list[str] | None
    worker_id: UUID

    @property
    def args(self) -> Any:
        """The arguments, read anew each time: a value of JSON, or `Undecodable`."""
        return read_json(self.stored_args) if type(self.stored_args) is str else self.stored_args

    @property
    def failures_before(self) -> int:
        """How many attempts counted against the job before this one: snoozes and releases do not."""
        return max(0, self.attempt_count - (self.max_attempts - self.declared_attempts) - 1)

    @property
    def fragile(self) -> bool:
        """True for a job that must not share a crash with others: it crashed a worker, or has no attempt left."""
        return self.crash_count > 0 or self.attempt_count >= self.max_attempts

    def is_suspect(self, max_crashes: int) -> bool:
        """True for a job that has crashed a worker, or shared a crash, and that another crash would end."""
        return self.crash_count > 0 and (
            self.crash_count + 1 >= max_crashes or self.attempt_count >= self.max_attempts
        )

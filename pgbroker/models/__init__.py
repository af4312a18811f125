"""The tables, as ordinary Django models with read-only querysets. A row of a job changes only through a verb."""

from pgbroker.models.fleet import JobType, Leader, Pause, Queue, QueuePriority, Worker
from pgbroker.models.groups import (
    DeferredReference,
    EdgeCheck,
    GraphTurn,
    JobDependency,
    RunGroup,
    Unresolved,
)
from pgbroker.models.history import Execution, JobCounter, JobEvent, QueueSample
from pgbroker.models.jobs import Idempotency, Job, JobPayload, JobState, JobTag
from pgbroker.models.schedules import Schedule, ScheduleDeclarer, ScheduleRun

__all__ = [
    "DeferredReference",
    "EdgeCheck",
    "Execution",
    "GraphTurn",
    "Idempotency",
    "Job",
    "JobCounter",
    "JobDependency",
    "JobEvent",
    "JobPayload",
    "JobState",
    "JobTag",
    "JobType",
    "Leader",
    "Pause",
    "Queue",
    "QueuePriority",
    "QueueSample",
    "RunGroup",
    "Schedule",
    "ScheduleDeclarer",
    "ScheduleRun",
    "Unresolved",
    "Worker",
]

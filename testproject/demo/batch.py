"""A batch of the demo's jobs: what it enqueued, and how to find it in the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import Count, QuerySet

from pgbroker import enqueue_many
from pgbroker.models import Execution, Job
from pgbroker.registry import Call, JobTask
from pgbroker.states import Status
from pgbroker.tenancy import scope_all

Task = JobTask[Any, Any]
LAST_ID = UUID(int=2**128 - 1)


class Batch:
    """
    Jobs that carry its *name* as their correlation id.

    `ids` are the jobs it made; `existing` counts the calls that an idempotency key answered with a job that
    was there.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ids: list[UUID] = []
        self.existing = 0

    def named(self, task: Task) -> Task:
        """Return the task, whose jobs will belong to this batch."""
        return task.options(correlation_id=self.name)

    def one(self, task: Task, *args: Any, **kwargs: Any) -> UUID:
        """Enqueue one call."""
        job_id = UUID(self.named(task).enqueue(*args, **kwargs).id)
        self.ids.append(job_id)
        return job_id

    def many(self, calls: Sequence[Call]) -> None:
        """Enqueue calls of tasks that are `named`, in one transaction; raises what refused one of them."""
        for outcome in enqueue_many(calls):
            if outcome.error is not None:
                raise outcome.error
            assert outcome.job_id is not None
            if outcome.outcome == "created":
                self.ids.append(outcome.job_id)
            else:
                self.existing += 1

    @property
    def _first_id(self) -> UUID:
        """No index leads to a correlation id. Ids rise with time, more or less, so this keeps a look short."""
        return min(self.ids, default=LAST_ID)

    def jobs(self) -> QuerySet[Job]:
        """Return its jobs, those of all tenants inside `scope_all()`."""
        return Job.objects.filter(id__gte=self._first_id, payload__correlation_id=self.name)

    def executions(self) -> QuerySet[Execution]:
        """Return the ended attempts of its jobs."""
        return Execution.objects.filter(job_id__gte=self._first_id, job__payload__correlation_id=self.name)

    def counts(self) -> dict[Status, int]:
        """Count its jobs by status."""
        with scope_all():
            counted = self.jobs().values_list("status").annotate(number=Count("id"))
            return {Status(status): number for status, number in counted}

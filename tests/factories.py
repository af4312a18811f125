"""
Rows for tests in any state, each consistent for its state: what the verbs would have left behind.

`JobFactory(running=True)`. Traits are named after states. The guards allow no such insert, so rows are
written with the guards' switch; constraints and policies hold.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import factory
from django.db import models

from pgbroker.correlation import DEFAULT_TENANT
from pgbroker.models import Execution, Job, JobPayload, Worker
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import current_tenant
from tests.support.jobs import WORKER, guards_off, queue_id, type_id


def now() -> datetime:
    """An instant for rows; statements decide by the database's clock, so leave them a margin."""
    return datetime.now(UTC)


class GuardedFactory(factory.django.DjangoModelFactory):
    """Write the row past the guards."""

    class Meta:
        abstract = True

    @classmethod
    def _create(cls, model_class: type[models.Model], *args: Any, **kwargs: Any) -> models.Model:
        with guards_off():
            return super()._create(model_class, *args, **kwargs)


class JobFactory(GuardedFactory):
    """A job with its payload; ready unless a trait says otherwise."""

    class Meta:
        model = Job
        skip_postgeneration_save = True

    id = factory.LazyFunction(uuid4)
    queue_id = factory.LazyFunction(queue_id)
    job_type_id = factory.LazyFunction(type_id)
    tenant_id = factory.LazyFunction(lambda: current_tenant() or DEFAULT_TENANT)
    status = Status.READY
    ready_at = factory.LazyFunction(lambda: now() - timedelta(seconds=1))

    class Params:
        live_again_later = factory.Trait(
            ready_at=None, available_at=factory.LazyFunction(lambda: now() + timedelta(hours=1))
        )
        over = factory.Trait(
            attempt_count=1,
            lease_token=1,
            leased_at=factory.LazyFunction(lambda: now() - timedelta(seconds=2)),
            finished_at=factory.LazyFunction(now),
        )
        scheduled = factory.Trait(status=Status.SCHEDULED, live_again_later=True)
        waiting = factory.Trait(status=Status.WAITING, ready_at=None)
        ready = factory.Trait(status=Status.READY)
        running = factory.Trait(
            status=Status.RUNNING,
            attempt_count=1,
            lease_token=1,
            worker_id=WORKER,
            leased_at=factory.LazyFunction(now),
            lease_expires_at=factory.LazyFunction(lambda: now() + timedelta(minutes=1)),
        )
        suspended = factory.Trait(status=Status.SUSPENDED, attempt_count=1, lease_token=1)
        blocked = factory.Trait(status=Status.BLOCKED, ready_at=None)
        completed = factory.Trait(status=Status.COMPLETED, over=True)
        failed = factory.Trait(status=Status.FAILED, over=True)
        dead_letter = factory.Trait(
            status=Status.DEAD_LETTER, over=True, attempt_count=5, max_attempts=5, lease_token=5
        )
        cancelled = factory.Trait(status=Status.CANCELLED, finished_at=factory.LazyFunction(now))

    @factory.post_generation
    def payload(self: Job, create: bool, extracted: dict[str, Any] | None, **fields: Any) -> None:
        if create:
            JobPayloadFactory(job=self, tenant_id=self.tenant_id, **fields)

    @factory.post_generation
    def history(self: Job, create: bool, extracted: Any, **fields: Any) -> None:
        """One execution for each ended attempt."""
        if not create:
            return
        last = {
            Status.COMPLETED: AttemptState.COMPLETED,
            Status.SUSPENDED: AttemptState.SUSPENDED,
        }.get(Status(self.status), AttemptState.FAILED)
        ended = self.attempt_count - (1 if self.status == Status.RUNNING else 0)
        for attempt_no in range(1, ended + 1):
            ExecutionFactory(
                job=self,
                tenant_id=self.tenant_id,
                attempt_no=attempt_no,
                state=last if attempt_no == ended else AttemptState.FAILED,
            )


class JobPayloadFactory(GuardedFactory):
    """What a job was asked to do: nothing, with no arguments."""

    class Meta:
        model = JobPayload

    args = factory.LazyFunction(lambda: {"v": 1, "args": [], "kwargs": {}})


class ExecutionFactory(GuardedFactory):
    """One ended attempt, which failed unless told otherwise."""

    class Meta:
        model = Execution

    attempt_no = 1
    state = AttemptState.FAILED
    worker_id = WORKER
    started_at = factory.LazyFunction(lambda: now() - timedelta(seconds=1))
    duration_seconds = 0.5
    error_code = factory.LazyAttribute(
        lambda attempt: "boom" if attempt.state == AttemptState.FAILED else None
    )


class WorkerFactory(factory.django.DjangoModelFactory):
    """A worker process that is alive; `silent` did not beat for a lease."""

    class Meta:
        model = Worker

    id: UUID = factory.LazyFunction(uuid4)
    name = factory.Sequence(lambda n: f"worker-{n}")
    host = "host"
    pid = 1
    version = "0"
    queues = factory.LazyFunction(lambda: ["default"])
    slots = 4
    expires_at = factory.LazyFunction(lambda: now() + timedelta(minutes=1))

    class Params:
        silent = factory.Trait(
            heartbeat_at=factory.LazyFunction(lambda: now() - timedelta(hours=1)),
            expires_at=factory.LazyFunction(lambda: now() - timedelta(minutes=59)),
        )

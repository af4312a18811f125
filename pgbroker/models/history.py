"""History: ended attempts and events, append-only and partitioned by time; counters and samples."""

from typing import ClassVar

import pgtrigger
from django.db import models
from django.db.models.functions import Now

from pgbroker.models.fleet import JobType, Queue
from pgbroker.models.jobs import Job
from pgbroker.models.tenants import TenantManager
from pgbroker.models.triggers import append_only
from pgbroker.states import EVENT_LABELS, AttemptState


class Execution(models.Model):
    """One ended attempt: how it ended, where it ran, what it returned or what went wrong."""

    # In the database rows are found by (job_id, attempt_no); a partitioned table has no global key.
    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(
        Job, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="executions"
    )
    tenant_id = models.CharField(max_length=63)
    attempt_no = models.IntegerField()
    state = models.SmallIntegerField(choices=[(int(state), state.label) for state in AttemptState])
    worker_id = models.UUIDField(null=True)
    started_at = models.DateTimeField(null=True)
    completed_at = models.DateTimeField(db_default=Now())
    duration_seconds = models.FloatField(null=True)
    error_code = models.TextField(null=True)  # noqa: DJ001 - null: it did not fail
    error = models.TextField(null=True)  # noqa: DJ001
    traceback = models.TextField(null=True)  # noqa: DJ001
    result = models.JSONField(null=True)
    # The name in BODY_STORAGE of a result that is too large for the row; result is its stub then.
    result_body = models.TextField(null=True)  # noqa: DJ001
    log_tail = models.TextField(null=True)  # noqa: DJ001

    objects: ClassVar[TenantManager["Execution"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."execution'
        base_manager_name = "objects"
        triggers: ClassVar[list[pgtrigger.Trigger]] = [append_only("execution")]

    def __str__(self) -> str:
        return f"{self.job_id} attempt {self.attempt_no}"


class JobEvent(models.Model):
    """A change of a job's status, or a request to cancel it, as `PGBROKER["EVENTS"]` chose to record."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(
        Job, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="events"
    )
    tenant_id = models.CharField(max_length=63)
    event = models.SmallIntegerField(choices=list(EVENT_LABELS.items()))
    occurred_at = models.DateTimeField(db_default=Now())
    metadata = models.JSONField(null=True)

    objects: ClassVar[TenantManager["JobEvent"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."job_event'
        base_manager_name = "objects"
        triggers: ClassVar[list[pgtrigger.Trigger]] = [append_only("job_event")]

    def __str__(self) -> str:
        return f"{self.job_id}: {self.get_event_display()}"


class JobCounter(models.Model):
    """
    What was done to one type in one queue in the minute, hour or day that begins at *bucket*. Readers add up.

    A worker counts by minutes; once they are old the leader folds them, and *worker_id* is zero from then on.
    """

    class Fold(models.IntegerChoices):
        WORKER_MINUTE = 0
        MINUTE = 1
        HOUR = 2
        DAY = 3

    pk = models.CompositePrimaryKey("job_type_id", "queue_id", "worker_id", "bucket", "fold")
    job_type = models.ForeignKey(JobType, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    queue = models.ForeignKey(Queue, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    worker_id = models.UUIDField()
    bucket = models.DateTimeField()
    fold = models.SmallIntegerField(default=Fold.WORKER_MINUTE, choices=Fold.choices)
    done = models.BigIntegerField(default=0)
    retried = models.BigIntegerField(default=0)
    snoozed = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    dead = models.BigIntegerField(default=0)
    cancelled = models.BigIntegerField(default=0)
    run_seconds = models.FloatField(default=0)
    wait_seconds = models.FloatField(default=0)

    class Meta:
        db_table = 'pgbroker"."job_counter'

    def __str__(self) -> str:
        return f"{self.job_type_id} at {self.bucket}"


class QueueSample(models.Model):
    """How much stood in a queue at one moment; counts stop at a bound."""

    pk = models.CompositePrimaryKey("queue_id", "sampled_at")
    queue = models.ForeignKey(Queue, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    sampled_at = models.DateTimeField(db_default=Now())
    ready = models.BigIntegerField()
    scheduled = models.BigIntegerField()
    running = models.BigIntegerField()
    oldest_ready_seconds = models.FloatField(null=True)
    coarse = models.BooleanField(default=False)

    class Meta:
        db_table = 'pgbroker"."queue_sample'

    def __str__(self) -> str:
        return f"{self.queue_id} at {self.sampled_at}"

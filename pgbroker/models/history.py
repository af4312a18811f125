"""History: one row per ended attempt, one per event, and the counters. Append-only and partitioned by time."""

from typing import ClassVar

import pgtrigger
from django.db import models
from django.db.models.functions import Now

from pgbroker.models.fleet import JobType, Queue
from pgbroker.models.jobs import Job
from pgbroker.models.tenants import TenantManager
from pgbroker.models.triggers import append_only
from pgbroker.states import AttemptState, Status

CANCEL_REQUESTED = 20


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
    event = models.SmallIntegerField(
        choices=[*((int(status), status.label) for status in Status), (CANCEL_REQUESTED, "cancel_requested")]
    )
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
    """What one worker did to one type in one queue in one minute. Readers add up."""

    pk = models.CompositePrimaryKey("job_type_id", "queue_id", "worker_id", "bucket")
    job_type = models.ForeignKey(JobType, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    queue = models.ForeignKey(Queue, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    worker_id = models.UUIDField()
    bucket = models.DateTimeField()
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

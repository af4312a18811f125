"""Jobs: the hot row, its payload, what only some of them need, and the idempotency keys."""

from typing import ClassVar

import pgtrigger
from django.db import models
from django.db.models.functions import Now

from pgbroker.models.fields import TextArrayField
from pgbroker.models.fleet import JobType, Queue
from pgbroker.models.tenants import TenantManager
from pgbroker.models.triggers import (
    ended_is_final,
    kept_with_its_job,
    legal_entry,
    legal_transition,
    numbers_only_rise,
    refuse_live_delete,
    stays_in_its_group,
    stays_the_job_it_is,
    waited_for,
    written_once,
)
from pgbroker.states import Status


class Job(models.Model):
    """The hot row of a job: where it is, when it may run, who holds it. Changed by verbs only."""

    id = models.UUIDField(primary_key=True)
    queue = models.ForeignKey(Queue, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    job_type = models.ForeignKey(JobType, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    tenant_id = models.CharField(max_length=63)
    status = models.SmallIntegerField(choices=[(int(status), status.label) for status in Status])
    priority = models.SmallIntegerField(default=0)
    ready_at = models.DateTimeField(null=True)
    available_at = models.DateTimeField(null=True)
    attempt_count = models.IntegerField(default=0)
    max_attempts = models.IntegerField(default=5)
    declared_attempts = models.IntegerField(default=5)
    crash_count = models.IntegerField(default=0)
    lease_token = models.BigIntegerField(default=0)
    worker_id = models.UUIDField(null=True)
    leased_at = models.DateTimeField(null=True)
    lease_expires_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    deadline_at = models.DateTimeField(null=True)
    run_group_id = models.UUIDField(null=True)
    name = models.TextField(null=True)  # noqa: DJ001 - null: not named in a group
    lane = models.TextField(null=True)  # noqa: DJ001 - null: no lane of its own
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    objects: ClassVar[TenantManager["Job"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."job'
        base_manager_name = "objects"
        permissions: ClassVar = [
            ("retry_job", "Can retry and redrive jobs"),
            ("cancel_job", "Can cancel jobs"),
        ]
        triggers: ClassVar[list[pgtrigger.Trigger]] = [
            legal_entry(),
            legal_transition(),
            numbers_only_rise(),
            stays_the_job_it_is(),
            stays_in_its_group(),
            ended_is_final(),
            refuse_live_delete(),
            waited_for(),
        ]

    def __str__(self) -> str:
        return str(self.id)


class JobPayload(models.Model):
    """What a job was asked to do: written once with the job, read after each claim."""

    job = models.OneToOneField(
        Job, on_delete=models.DO_NOTHING, db_constraint=False, primary_key=True, related_name="payload"
    )
    tenant_id = models.CharField(max_length=63)
    type_version = models.IntegerField(default=1)
    args = models.JSONField()
    # The name in BODY_STORAGE of arguments that are too large for the row; args is their stub then.
    args_body = models.TextField(null=True)  # noqa: DJ001 - null: they are in the row
    options = models.JSONField(null=True)
    idempotency_key = models.TextField(null=True)  # noqa: DJ001 - null: no key
    # How it holds the key, so that a retry takes it back on the same terms.
    idempotency_scope = models.TextField(null=True)  # noqa: DJ001
    window_seconds = models.FloatField(null=True)
    principal = models.TextField(null=True)  # noqa: DJ001
    correlation_id = models.TextField(null=True)  # noqa: DJ001
    traceparent = models.TextField(null=True)  # noqa: DJ001
    tags = TextArrayField(null=True)

    objects: ClassVar[TenantManager["JobPayload"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."job_payload'
        base_manager_name = "objects"
        triggers: ClassVar[list[pgtrigger.Trigger]] = [
            written_once("job_payload"),
            kept_with_its_job("job_payload"),
        ]

    def __str__(self) -> str:
        return str(self.job_id)


class JobState(models.Model):
    """Why a job was cancelled, blocked or given up without an attempt, and by whom."""

    job = models.OneToOneField(
        Job, on_delete=models.DO_NOTHING, db_constraint=False, primary_key=True, related_name="state"
    )
    tenant_id = models.CharField(max_length=63)
    reason_code = models.TextField()
    reason = models.TextField(default="")
    by = models.TextField(default="")
    # The job whose bad end was the beginning of it.
    cause_id = models.UUIDField(null=True)
    changed_at = models.DateTimeField(db_default=Now())

    objects: ClassVar[TenantManager["JobState"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."job_state'
        base_manager_name = "objects"

    def __str__(self) -> str:
        return self.reason_code


class JobTag(models.Model):
    """One tag of one job: what `JobPayload.tags` says, in the order in which jobs are found by it."""

    pk = models.CompositePrimaryKey("tag", "tenant_id", "job_id")
    tag = models.TextField()
    tenant_id = models.CharField(max_length=63)
    job_id = models.UUIDField()

    objects: ClassVar[TenantManager["JobTag"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."job_tag'
        base_manager_name = "objects"
        triggers: ClassVar[list[pgtrigger.Trigger]] = [
            written_once("job_tag"),
            kept_with_its_job("job_tag"),
        ]

    def __str__(self) -> str:
        return self.tag


class Idempotency(models.Model):
    """Who holds an idempotency key within a tenant and a job type."""

    pk = models.CompositePrimaryKey("tenant_id", "job_type_id", "key")
    tenant_id = models.CharField(max_length=63)
    job_type = models.ForeignKey(JobType, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    key = models.TextField()
    job_id = models.UUIDField()
    digest = models.BinaryField()
    scope = models.TextField(default="held")
    expires_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    objects: ClassVar[TenantManager["Idempotency"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."idempotency'
        base_manager_name = "objects"
        verbose_name_plural = "idempotency keys"

    def __str__(self) -> str:
        return self.key

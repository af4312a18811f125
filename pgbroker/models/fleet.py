"""What is declared and who is alive: queues, job types, pauses, workers, leaders. No tenant owns these."""

from typing import ClassVar

import pgtrigger
from django.db import models
from django.db.models.functions import Now

from pgbroker.models.fields import TextArrayField
from pgbroker.models.triggers import (
    deleted_by_its_verb,
    epoch_only_rises,
    keeps_its_name,
    kept_with_its_queue,
    only_added,
    refuse_delete,
)


class Queue(models.Model):
    """A named line of jobs. Rows are made at migrate, at worker start, by command or in the admin."""

    id = models.SmallAutoField(primary_key=True)
    name = models.CharField(max_length=63)
    ageing_seconds = models.FloatField(
        null=True, blank=True, help_text="One step of priority in seconds of waiting; empty: AGEING_SECONDS."
    )
    lease_seconds = models.FloatField(
        null=True, blank=True, help_text="How long a claim holds a job; empty: LEASE_SECONDS."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = 'pgbroker"."queue'
        ordering: ClassVar = ["name"]
        triggers: ClassVar[list[pgtrigger.Trigger]] = [deleted_by_its_verb(), keeps_its_name("queue")]

    def __str__(self) -> str:
        return self.name


class QueuePriority(models.Model):
    """A priority that a queue has seen, so that a claim looks for it at once. Rows may repeat."""

    id = models.BigAutoField(primary_key=True)
    queue = models.ForeignKey(Queue, on_delete=models.DO_NOTHING, db_constraint=False)
    priority = models.SmallIntegerField()

    class Meta:
        db_table = 'pgbroker"."queue_priority'
        triggers: ClassVar[list[pgtrigger.Trigger]] = [
            only_added("queue_priority"),
            kept_with_its_queue("queue_priority"),
        ]

    def __str__(self) -> str:
        return f"{self.queue_id}: {self.priority}"


class JobType(models.Model):
    """A registered, versioned handler name with what its code declared last."""

    id = models.AutoField(primary_key=True)
    name = models.CharField(max_length=200)
    version = models.IntegerField(default=1)
    aliases = TextArrayField(default=list)
    defaults = models.JSONField(default=dict)
    last_seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = 'pgbroker"."job_type'
        ordering: ClassVar = ["name"]
        triggers: ClassVar[list[pgtrigger.Trigger]] = [refuse_delete("job_type"), keeps_its_name("job_type")]

    def __str__(self) -> str:
        return self.name


class Pause(models.Model):
    """A stop of claims for a queue, a type, a tenant, or a tenant in a queue; ends by itself at *until*."""

    class Kind(models.TextChoices):
        QUEUE = "queue"
        JOB_TYPE = "job_type"
        TENANT = "tenant"
        QUEUE_TENANT = "queue_tenant"

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=20, choices=Kind.choices)
    queue = models.ForeignKey(Queue, null=True, on_delete=models.DO_NOTHING, db_constraint=False)
    job_type = models.ForeignKey(JobType, null=True, on_delete=models.DO_NOTHING, db_constraint=False)
    tenant = models.CharField(max_length=63, null=True)  # noqa: DJ001 - null is "not by tenant", '' is no tenant
    paused_at = models.DateTimeField(db_default=Now())
    until = models.DateTimeField(null=True)
    by = models.CharField(max_length=200, default="")
    reason = models.TextField(default="")

    class Meta:
        db_table = 'pgbroker"."pause'

    def __str__(self) -> str:
        return f"{self.kind} paused"


class Worker(models.Model):
    """One worker process start; a restart is a new row. Alive while *expires_at* is in the future."""

    id = models.UUIDField(primary_key=True)
    name = models.TextField()
    host = models.TextField()
    pid = models.IntegerField()
    version = models.TextField()
    queues = TextArrayField()
    slots = models.IntegerField()
    running = models.IntegerField(default=0)
    held = models.IntegerField(default=0)
    started_at = models.DateTimeField(db_default=Now())
    heartbeat_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    draining_at = models.DateTimeField(null=True)
    stopped_at = models.DateTimeField(null=True)

    class Meta:
        db_table = 'pgbroker"."worker'
        ordering: ClassVar = ["-started_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"


class Leader(models.Model):
    """Who does what only one has to do, until *expires_at*; *epoch* rises with each reign."""

    duty = models.TextField(primary_key=True)
    holder = models.UUIDField()
    name = models.TextField()
    epoch = models.BigIntegerField()
    since = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        db_table = 'pgbroker"."leader'
        triggers: ClassVar[list[pgtrigger.Trigger]] = [epoch_only_rises()]

    def __str__(self) -> str:
        return f"{self.duty}: {self.name}"

"""When jobs are created again and again, and what became of each tick."""

from typing import ClassVar

import pgtrigger
from django.db import models
from django.db.models.functions import Now

from pgbroker.models.fields import TextArrayField
from pgbroker.models.tenants import TenantManager
from pgbroker.models.triggers import created_is_final, stays_the_schedule_it_is
from pgbroker.policy import misfire, overlap
from pgbroker.policy.cron import Ambiguous, Nonexistent


class Schedule(models.Model):
    """A cron expression in a time zone, what it creates, and where it stands. Changed through `operate` alone."""

    id = models.UUIDField(primary_key=True)
    tenant_id = models.CharField(max_length=63)
    name = models.CharField(max_length=200)
    expression = models.CharField(max_length=255)
    time_zone = models.CharField(max_length=100)
    template = models.JSONField()
    ambiguous = models.CharField(max_length=20, choices=[(each, each) for each in Ambiguous], default="auto")
    nonexistent = models.CharField(
        max_length=20, choices=[(each, each) for each in Nonexistent], default="auto"
    )
    misfire = models.CharField(
        max_length=20, choices=[(each, each) for each in misfire.Policy], default="run_once"
    )
    misfire_count = models.IntegerField(default=100)
    misfire_window_seconds = models.FloatField(default=604_800)
    overlap = models.CharField(
        max_length=20, choices=[(each, each) for each in overlap.Policy], default="allow"
    )
    jitter_seconds = models.FloatField(default=0)
    starts_at = models.DateTimeField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    enabled = models.BooleanField(default=True)
    disabled_reason = models.TextField(default="")
    paused_at = models.DateTimeField(null=True)
    paused_until = models.DateTimeField(null=True)
    paused_by = models.TextField(default="")
    pause_reason = models.TextField(default="")
    # Null: nothing is to come, or not before the pause is over.
    next_run_at = models.DateTimeField(null=True)
    watermark = models.DateTimeField(db_default=Now())
    buffered_for = models.DateTimeField(null=True)
    last_dispatched_for = models.DateTimeField(null=True)
    last_dispatched_at = models.DateTimeField(null=True)
    zone_rules = models.TextField(default="")
    declared = models.BooleanField(default=False)
    declared_by = models.TextField(default="")
    declaration = models.TextField(default="")
    revision = models.BigIntegerField(default=0)
    failure_count = models.IntegerField(default=0)
    failed_at = models.DateTimeField(null=True)
    error_code = models.TextField(null=True)  # noqa: DJ001 - null: nothing went wrong
    error = models.TextField(null=True)  # noqa: DJ001
    forgotten_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())

    objects: ClassVar[TenantManager["Schedule"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."schedule'
        base_manager_name = "objects"
        permissions: ClassVar = [
            ("run_schedule", "Can run schedules now"),
            ("pause_schedule", "Can pause and resume schedules"),
            ("backfill_schedule", "Can backfill schedules"),
        ]
        triggers: ClassVar[list[pgtrigger.Trigger]] = [stays_the_schedule_it_is()]

    def __str__(self) -> str:
        return self.name


class ScheduleDeclarer(models.Model):
    """Which code speaks for the schedules that a project declares: the newest that was seen."""

    project = models.TextField(primary_key=True)
    digest = models.TextField()
    former = TextArrayField(default=list)
    since = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = 'pgbroker"."schedule_declarer'

    def __str__(self) -> str:
        return self.project


class ScheduleRun(models.Model):
    """What became of one tick, or of one run that was asked for."""

    class Kind(models.TextChoices):
        TICK = "tick"
        RUN_NOW = "run_now"
        BACKFILL = "backfill"

    class State(models.TextChoices):
        CREATED = "created"
        SKIPPED = "skipped"
        BUFFERED = "buffered"
        FAILED = "failed"
        # The last one of those that were, with how many in the text.
        MISSED = "missed"

    pk = models.CompositePrimaryKey("schedule_id", "scheduled_for")
    schedule = models.ForeignKey(Schedule, on_delete=models.DO_NOTHING, db_constraint=False)
    scheduled_for = models.DateTimeField()
    tenant_id = models.CharField(max_length=63)
    kind = models.CharField(max_length=20, choices=Kind.choices, default=Kind.TICK)
    state = models.CharField(max_length=20, choices=State.choices)
    job_id = models.UUIDField(null=True)
    run_group_id = models.UUIDField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    lateness_seconds = models.FloatField(null=True)
    error_code = models.TextField(null=True)  # noqa: DJ001 - null: nothing went wrong
    error = models.TextField(null=True)  # noqa: DJ001
    seen_over = models.BooleanField(default=False)

    objects: ClassVar[TenantManager["ScheduleRun"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."schedule_run'
        base_manager_name = "objects"
        triggers: ClassVar[list[pgtrigger.Trigger]] = [created_is_final()]

    def __str__(self) -> str:
        return f"{self.schedule_id} {self.scheduled_for}"

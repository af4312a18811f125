"""What waits for what: run groups, edges, references to what is still to come, and what passes have to look at."""

from typing import ClassVar

import pgtrigger
from django.db import models
from django.db.models.functions import Now

from pgbroker.models.fields import TextArrayField
from pgbroker.models.tenants import TenantManager
from pgbroker.models.triggers import (
    kept_with_its_dependent,
    kept_with_its_members,
    legal_group_state,
    stays_the_edge_it_is,
    stays_the_group_it_is,
)
from pgbroker.states import GroupState, OnFailure, Status


class RunGroup(models.Model):
    """Jobs that belong together: it ends when it is sealed and all its members have ended."""

    id = models.UUIDField(primary_key=True)
    tenant_id = models.CharField(max_length=63)
    name = models.CharField(max_length=255)
    state = models.SmallIntegerField(choices=[(int(state), state.label) for state in GroupState], default=0)
    tolerate_count = models.IntegerField(null=True)
    tolerate_percent = models.FloatField(null=True)
    level = models.IntegerField(default=0)
    on_completed = models.JSONField(null=True)
    on_failed = models.JSONField(null=True)
    completed_job_id = models.UUIDField(null=True)
    failed_job_id = models.UUIDField(null=True)
    callback_error = models.TextField(null=True)  # noqa: DJ001 - null: nothing went wrong with them
    cancel_requested_at = models.DateTimeField(null=True)
    # The transaction that made it.
    opened_in = models.BigIntegerField()
    created_at = models.DateTimeField(db_default=Now())
    sealed_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    objects: ClassVar[TenantManager["RunGroup"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."run_group'
        base_manager_name = "objects"
        permissions: ClassVar = [
            ("retry_rungroup", "Can retry the failed part of run groups"),
            ("cancel_rungroup", "Can cancel run groups"),
        ]
        triggers: ClassVar[list[pgtrigger.Trigger]] = [
            legal_group_state(),
            stays_the_group_it_is(),
            kept_with_its_members(),
        ]

    def __str__(self) -> str:
        return self.name


class JobDependency(models.Model):
    """An edge: its dependent, a job or a group, is held back until it is satisfied."""

    class Kind(models.IntegerChoices):
        JOB_ON_JOB = 0
        JOB_ON_GROUP = 1
        GROUP_ON_JOB = 2
        GROUP_ON_GROUP = 3

    id = models.BigAutoField(primary_key=True)
    dependent_id = models.UUIDField()
    prerequisite_id = models.UUIDField()
    kind = models.SmallIntegerField(choices=Kind.choices)
    tenant_id = models.CharField(max_length=63)
    on_failure = models.SmallIntegerField(choices=[(int(each), each.label) for each in OnFailure], default=0)
    outcome = models.SmallIntegerField(
        choices=[(0, "")] + [(int(status), status.label) for status in Status if status >= 10], default=0
    )
    satisfied_at = models.DateTimeField(null=True)
    level = models.IntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now())

    objects: ClassVar[TenantManager["JobDependency"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."job_dependency'
        base_manager_name = "objects"
        verbose_name_plural = "job dependencies"
        triggers: ClassVar[list[pgtrigger.Trigger]] = [stays_the_edge_it_is(), kept_with_its_dependent()]

    def __str__(self) -> str:
        return f"{self.dependent_id} waits for {self.prerequisite_id}"


class DeferredReference(models.Model):
    """What a job waits for that need not exist yet: a group or a job in one, by name, until a deadline."""

    id = models.BigAutoField(primary_key=True)
    dependent_id = models.UUIDField()
    tenant_id = models.CharField(max_length=63)
    group_name = models.TextField()
    job_name = models.TextField(null=True)  # noqa: DJ001 - null: the group itself
    on_failure = models.SmallIntegerField(choices=[(int(each), each.label) for each in OnFailure], default=0)
    deadline_at = models.DateTimeField()
    expired_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    objects: ClassVar[TenantManager["DeferredReference"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."deferred_reference'
        base_manager_name = "objects"

    def __str__(self) -> str:
        return self.group_name if self.job_name is None else f"{self.group_name}/{self.job_name}"


class Unresolved(models.Model):
    """A job or a group whose dependents a pass has to look at."""

    id = models.BigAutoField(primary_key=True)
    prerequisite_id = models.UUIDField()
    tenant_id = models.CharField(max_length=63)
    not_before = models.DateTimeField(db_default=Now())

    objects: ClassVar[TenantManager["Unresolved"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."unresolved'
        base_manager_name = "objects"
        verbose_name_plural = "unresolved"

    def __str__(self) -> str:
        return str(self.prerequisite_id)


class EdgeCheck(models.Model):
    """The live prerequisites of edges that a transaction has made. A row is gone before others could see it."""

    pk = models.CompositePrimaryKey("transaction_id", "id")
    transaction_id = models.BigIntegerField()
    id = models.BigIntegerField()
    tenant_id = models.CharField(max_length=63)
    prerequisite_ids = TextArrayField(base_field=models.UUIDField())

    objects: ClassVar[TenantManager["EdgeCheck"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."edge_check'
        base_manager_name = "objects"

    def __str__(self) -> str:
        return str(self.transaction_id)


class GraphTurn(models.Model):
    """How often turns were taken in adding what could close a cycle of a tenant."""

    tenant_id = models.CharField(primary_key=True, max_length=63)
    number = models.BigIntegerField(default=1)

    objects: ClassVar[TenantManager["GraphTurn"]] = TenantManager()

    class Meta:
        db_table = 'pgbroker"."graph_turn'
        base_manager_name = "objects"

    def __str__(self) -> str:
        return self.tenant_id

"""By what the admin narrows its list of schedules."""

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest

from pgbroker.changelists import broker_alias
from pgbroker.policy.misfire import GRACE
from pgbroker.schedules.undeclared import list_undeclared
from pgbroker.tenancy import current_tenant

# Schedules that the filter by job types finds.
FILTERED_MAX = 1_000
STATES: dict[str, Q] = {
    "active": Q(enabled=True, paused_at=None, next_run_at__isnull=False),
    "overdue": Q(enabled=True, paused_at=None, next_run_at__lt=Now() - GRACE),
    "paused": Q(enabled=True, paused_at__isnull=False),
    "disabled": Q(enabled=False),
    "ended": Q(enabled=True, paused_at=None, next_run_at=None),
}


class ByState(admin.SimpleListFilter):
    title, parameter_name = "state", "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(each, each) for each in STATES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = STATES.get(self.value() or "")
        return queryset.filter(chosen) if chosen is not None else queryset


class ByTypes(admin.SimpleListFilter):
    title, parameter_name = "job types", "types"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("undeclared", "not declared by the code")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() != "undeclared":
            return queryset
        found = list_undeclared(tenant=current_tenant(), limit=FILTERED_MAX, using=broker_alias())
        return queryset.filter(pk__in=[each.schedule_id for each in found])

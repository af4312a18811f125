"""The admin of schedules: what comes and what came, run now, pause, backfill; and what one says, where no code does."""

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from pgbroker.changelists import LookOnly, badge, broker_alias
from pgbroker.conf import project
from pgbroker.errors import InvalidOption, PgBrokerError, ScheduleNotFound
from pgbroker.forms import PauseForm
from pgbroker.models import Schedule
from pgbroker.schedule_filters import ByState, ByTypes
from pgbroker.schedule_forms import EXAMPLE, BackfillForm, ScheduleForm
from pgbroker.schedule_pages import describe_backfill, describe_schedule, line_of
from pgbroker.schedules import operate
from pgbroker.schedules.otherwise import read_otherwise
from pgbroker.schedules.remove import delete, may_delete
from pgbroker.schedules.shown import DRIFT, local_time, utc_time
from pgbroker.schedules.sync import declared_names, drift_of, missing
from pgbroker.schedules.undeclared import tell_undeclared
from pgbroker.tenancy import current_tenant

# Schedules that one action takes, and ticks that one click on "backfill" creates; the command takes more.
ACTION_MAX, BACKFILL_MAX = 100, 2_000


class ScheduleChangeList(ChangeList):
    """Schedules with where they differ from the code, and what it lacks, which costs no statement."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        found: QuerySet[Any] = super().get_queryset(request, exclude_parameters).annotate(seen_at=Now())
        return found

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        lines = {row.pk: line_of(row) for row in self.result_list}
        drifted = drift_of(lines.values(), using=broker_alias())
        for row in self.result_list:
            row.drift = drifted.get(row.pk)
            row.undeclared = tell_undeclared(lines[row.pk]) if row.enabled else ""


@admin.register(Schedule)
class ScheduleAdmin(LookOnly):
    """Schedules of the request's tenant, by name. What the code declares is only looked at, and paused."""

    form = ScheduleForm
    change_form_template = "admin/pgbroker/schedule/change_form.html"
    change_list_template = "admin/pgbroker/schedule/change_list.html"
    delete_confirmation_template = "admin/pgbroker/schedule/delete_confirmation.html"
    delete_selected_confirmation_template = "admin/pgbroker/schedule/delete_selected_confirmation.html"
    list_display = (
        "shown_name",
        "shown_state",
        "shown_next",
        "shown_failures",
        "shown_code",
        "shown_last",
    )
    list_filter = (ByState, ByTypes)
    list_per_page = 100
    ordering = ("name", "id")
    sortable_by = ()
    search_fields = ("name",)
    actions = ("run_selected", "pause_selected", "resume_selected")
    fieldsets = (
        (None, {"fields": ("name", "expression", "time_zone", "enabled", "template")}),
        ("The calendar", {"fields": ("ambiguous", "nonexistent", "starts_at", "ends_at")}),
        (
            "Late, and while another runs",
            {
                "fields": (
                    "misfire",
                    "misfire_count",
                    "misfire_window_seconds",
                    "overlap",
                    "jitter_seconds",
                )
            },
        ),
    )

    has_add_permission = admin.ModelAdmin.has_add_permission

    # -------------------------------------------------------------- the list

    @admin.display(description="schedule")
    def shown_name(self, row: Schedule) -> SafeString:
        # Below each other: beside Django's two side bars the list has room for no more columns.
        return format_html(
            '{}<span class="pgb-id">{}</span><span class="pgb-id">{}</span>',
            row.name,
            row.expression,
            row.time_zone,
        )

    @admin.display(description="state")
    def shown_state(self, row: Schedule) -> SafeString:
        line = line_of(row)
        return badge("overdue" if line.is_overdue else line.state)

    @admin.display(description="next tick")
    def shown_next(self, row: Schedule) -> SafeString | str:
        return _two_clocks(row.next_run_at, row.time_zone)

    @admin.display(description="last occurrence")
    def shown_last(self, row: Schedule) -> SafeString | str:
        return _two_clocks(row.last_dispatched_for, row.time_zone)

    @admin.display(description="failures")
    def shown_failures(self, row: Schedule) -> SafeString | str:
        if not row.failure_count:
            return "-"
        return format_html('{}<span class="pgb-id">{}</span>', row.failure_count, row.error_code or "")

    @admin.display(description="code")
    def shown_code(self, row: Any) -> SafeString | str:
        if row.undeclared:
            told = format_html('<span title="{}">{}</span>', row.undeclared, badge("undeclared"))
            return format_html("{}<br>{}", self._declared(row), told)
        return self._declared(row)

    def _declared(self, row: Any) -> SafeString | str:
        if row.drift is not None:
            return format_html('<span title="{}">{}</span>', DRIFT[row.drift.what], badge(row.drift.what))
        if row.declared and row.declared_by != project():
            return f"declared by {row.declared_by}"
        return "declared" if row.declared else "-"

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ScheduleChangeList

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        shown = {"title": f"Schedules of tenant {current_tenant()}", "missing": self._missing(request)}
        return super().changelist_view(request, {**shown, **(extra_context or {})})

    def _missing(self, request: HttpRequest) -> list[str]:
        """Name what the code declares and no row has."""
        if not (declared := declared_names(current_tenant(), using=broker_alias())):
            return []
        stored = set(self.rows(request).filter(name__in=declared).values_list("name", flat=True))
        return missing(current_tenant(), stored, using=broker_alias())

    # -------------------------------------------------------------- permissions

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """What the code declares would be written again by its next change: it is not edited here."""
        if obj is not None and obj.declared:
            return False
        return admin.ModelAdmin.has_change_permission(self, request, obj)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # Of the row: who may change schedules sees also those that nobody changes here.
        return super().has_view_permission(request)

    def has_run_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("pgbroker.run_schedule")

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("pgbroker.pause_schedule")

    def has_backfill_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("pgbroker.backfill_schedule")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """What the code declares would come back."""
        if obj is not None and not may_delete(line_of(obj), using=broker_alias()):
            return False
        return admin.ModelAdmin.has_delete_permission(self, request, obj)

    # -------------------------------------------------------------- one schedule

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        form.using = broker_alias()  # type: ignore[attr-defined]
        return form

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("name",) if obj else ()

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"template": EXAMPLE, "time_zone": "UTC", **super().get_changeform_initial_data(request)}

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        saved = operate.save(form.definition(), using=broker_alias())
        obj.pk = saved.schedule.id
        if (told := read_otherwise(form.definition(), saved.schedule.now.date())) is not None:
            self.message_user(request, f"Schedule {obj.name}: {told} It was saved.", messages.WARNING)

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        try:
            delete(obj.pk, using=broker_alias())
        except PgBrokerError as error:
            # Whoever was quicker has declared it, or deleted it.
            raise PermissionDenied(error.message) from error

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        for row in queryset:
            try:
                delete(row.pk, using=broker_alias())
            except PgBrokerError as error:
                self.message_user(request, error.message, messages.ERROR)

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[str], Any, set[str], list[str]]:
        """Nothing goes with a schedule. What the code declares is protected."""
        named = [str(each) for each in objs]
        kept = [str(each) for each in objs if not may_delete(line_of(each), using=broker_alias())]
        allowed = admin.ModelAdmin.has_delete_permission(self, request)
        needed = set() if allowed else {str(self.opts.verbose_name)}
        return named, {self.opts.verbose_name_plural: len(named)}, needed, kept

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        row = kwargs.get("obj")
        if row is not None:
            line = operate.get_schedule(row.pk, using=broker_alias())
            context |= describe_schedule(
                line, before=_moment(request.GET.get("before")), using=broker_alias()
            )
            context |= {
                "pause_form": PauseForm(auto_id="pause_%s"),
                "may_run": self.has_run_permission(request),
                "may_pause": self.has_pause_permission(request),
                "may_backfill": self.has_backfill_permission(request),
                "tenant": current_tenant(),
            }
        return super().render_change_form(request, context, *args, **kwargs)

    def get_urls(self) -> list[URLPattern]:
        posted = ("run", "pause", "resume", "enable", "disable")
        own: dict[str, Callable[..., HttpResponse]] = {
            f"<uuid:schedule_id>/{what}/": require_POST(partial(self.act_view, what)) for what in posted
        }
        own["<uuid:schedule_id>/backfill/"] = self.backfill_view
        return self.own_urls(own) + super().get_urls()

    # -------------------------------------------------------------- verbs

    def act_view(self, what: str, request: HttpRequest, schedule_id: UUID) -> HttpResponse:
        """Do one thing to one schedule."""
        allowed = self.has_run_permission if what == "run" else self.has_pause_permission
        if not allowed(request):
            raise PermissionDenied
        row = self.get_object(request, str(schedule_id))
        if row is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, str(schedule_id))  # type: ignore[attr-defined, no-any-return]
        form = PauseForm(request.POST)
        chosen = form.cleaned_data if form.is_valid() else {}
        self._act(request, what, [row], chosen)
        return redirect("admin:pgbroker_schedule_change", schedule_id)

    @admin.action(description="Run selected schedules now", permissions=["run"])
    def run_selected(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._act(request, "run", queryset[:ACTION_MAX])

    @admin.action(description="Pause selected schedules until resumed", permissions=["pause"])
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._act(request, "pause", queryset[:ACTION_MAX])

    @admin.action(description="Resume selected schedules", permissions=["pause"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._act(request, "resume", queryset[:ACTION_MAX])

    def _act(
        self, request: HttpRequest, what: str, rows: Iterable[Schedule], chosen: dict[str, Any] | None = None
    ) -> None:
        for row in rows:
            try:
                level, told = self._do(request, what, row, chosen or {})
            except PgBrokerError as error:
                level, told = messages.ERROR, error.message
            if level == messages.SUCCESS:
                self._note(request, row, told)
            self.message_user(request, f"Schedule {row.name}: {told}", level)

    def _do(self, request: HttpRequest, what: str, row: Schedule, chosen: dict[str, Any]) -> tuple[int, str]:
        """Do it and say what came of it; raises what the verb raises."""
        using, reason, by = broker_alias(), chosen.get("reason", ""), request.user.get_username()
        match what:
            case "run":
                made = operate.run_now(row.pk, using=using)
                if made.state != "created":
                    return messages.ERROR, f"could not run. [{made.error_code}] {made.error}"
                kind = "run group" if made.run_group_id else "job"
                return messages.SUCCESS, f"runs now, as {kind} {made.run_group_id or made.job_id}."
            case "pause":
                operate.pause(row.pk, until=chosen.get("duration"), by=by, reason=reason, using=using)
                return messages.SUCCESS, f"paused. {reason}".strip()
            case "resume" if row.paused_at is None:
                return messages.WARNING, "was not paused."
            case "resume":
                operate.resume(row.pk, using=using)
                return messages.SUCCESS, "resumed."
            case "enable":
                operate.enable(row.pk, using=using)
                return messages.SUCCESS, "enabled."
        operate.disable(row.pk, reason=reason or f"by {by}", using=using)
        return messages.SUCCESS, "disabled."

    def _note(self, request: HttpRequest, row: Schedule, what: str) -> None:
        LogEntry.objects.log_actions(request.user.pk, [row], CHANGE, what.capitalize())  # type: ignore[arg-type]

    # -------------------------------------------------------------- backfill

    def backfill_view(self, request: HttpRequest, schedule_id: UUID) -> HttpResponse:
        """Say what a range of the past would create, then create it."""
        if not self.has_backfill_permission(request):
            raise PermissionDenied
        try:
            line = operate.get_schedule(schedule_id, using=broker_alias())
        except ScheduleNotFound:
            return self._get_obj_does_not_exist_redirect(request, self.opts, str(schedule_id))  # type: ignore[attr-defined, no-any-return]
        is_sure = request.method == "POST"
        asked = request.POST if is_sure else request.GET
        form = BackfillForm(asked if asked.get("start") is not None else None, line=line)
        found = self._backfill(form, line, dry_run=not is_sure)
        if found is None or not is_sure:
            shown = {} if found is None else describe_backfill(found)
            sure = {name: form.cleaned_data[name].isoformat() for name in form.cleaned_data} if found else {}
            return self.page(
                request, "schedule/backfill.html", f"Backfill {line.name}", form=form, line=line, sure=sure,
                back=reverse("admin:pgbroker_schedule_change", args=[line.id]), **shown,
            )  # fmt: skip
        told = f"{len(found.created)} of {len(found.ticks)} ticks created."
        self._note(request, self.model(pk=line.id, name=line.name), f"Backfilled: {told}")
        self.message_user(request, told, messages.SUCCESS)
        if found.failed:
            first = found.failed[0]
            told = f"{len(found.failed)} could not be created. [{first.error_code}] {first.error}"
            self.message_user(request, told, messages.ERROR)
        return redirect("admin:pgbroker_schedule_change", line.id)

    def _backfill(
        self, form: BackfillForm, line: operate.ScheduleLine, *, dry_run: bool
    ) -> operate.Backfill | None:
        """Look at the range, or do it; None when there is none, or it cannot be."""
        if not form.is_bound or not form.is_valid():
            return None
        try:
            return operate.backfill(
                line.id, **form.cleaned_data, dry_run=dry_run, limit=BACKFILL_MAX, using=broker_alias()
            )
        except InvalidOption as error:
            form.refuse(error)
        except PgBrokerError as error:
            form.add_error(None, error.message)
        return None


def _two_clocks(at: datetime | None, zone: str) -> SafeString | str:
    """Show an instant on the clock of the schedule's zone, and in UTC below it."""
    if at is None:
        return "-"
    return format_html(
        '<span class="pgb-when">{}</span><span class="pgb-id">{} UTC</span>',
        local_time(at, zone),
        utc_time(at),
    )


def _moment(given: str | None) -> datetime | None:
    """Read where the history goes on; whatever else stands in the address counts as nothing."""
    try:
        read = datetime.fromisoformat(given) if given else None
    except ValueError:
        return None
    return read if read is not None and read.tzinfo is not None else None

"""The admin of what runs the jobs: queues, workers and job types. Only a queue's settings are filled in here."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Case, CharField, QuerySet, Value, When
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.views.decorators.http import require_POST

from pgbroker import control, reports
from pgbroker.changelists import LookOnly, QueueChangeList, badge, broker_alias, look_at_queues, time_column
from pgbroker.forms import PauseForm, QueueForm
from pgbroker.lifecycle.configure import configure_queue
from pgbroker.lifecycle.declare import declare_queues
from pgbroker.models import JobType, Queue, Worker
from pgbroker.pages import describe_queue
from pgbroker.tenancy import current_tenant

CHART_MINUTES = 60


def depth_column(name: str) -> Callable[[Queue], str]:
    """Make a column of bounded counts."""

    @admin.display(description=reports.heading(name).replace("_", " "))
    def show(queue: Any) -> str:
        return reports.at_most(queue.depth.counts[name])

    return show


@admin.register(Queue)
class QueueAdmin(LookOnly):
    """Queues: how deep, paused or not; with permission, pause and resume, ageing and lease."""

    form = QueueForm
    change_form_template = "admin/pgbroker/queue/change_form.html"
    list_display = ("name", *map(depth_column, reports.COUNTED), "shown_oldest", "shown_pause",
                    "ageing_seconds", "lease_seconds")  # fmt: skip
    fields = ("name", "ageing_seconds", "lease_seconds")
    sortable_by = ()
    actions = ("pause_selected", "resume_selected")

    has_add_permission = admin.ModelAdmin.has_add_permission
    has_change_permission = admin.ModelAdmin.has_change_permission

    @admin.display(description="oldest ready")
    def shown_oldest(self, queue: Any) -> str:
        seconds = queue.depth.oldest_ready_seconds
        return "-" if seconds is None else f"{seconds:.0f} s"

    @admin.display(description="state")
    def shown_pause(self, queue: Any) -> SafeString:
        return badge("paused") if any(pause.tenant is None for pause in queue.pauses) else badge("open")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return QueueChangeList

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("name",) if obj else ()

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        if not change:
            obj.pk = declare_queues([obj.name], using=broker_alias())[0].id
        configure_queue(
            obj.name, ageing_seconds=obj.ageing_seconds, lease_seconds=obj.lease_seconds, using=broker_alias()
        )

    def get_urls(self) -> list[URLPattern]:
        own = {
            "<int:queue_id>/pause/": require_POST(partial(self.pause_view, "pause")),
            "<int:queue_id>/resume/": require_POST(partial(self.pause_view, "resume")),
        }
        return self.own_urls(own) + super().get_urls()

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        queue = kwargs.get("obj")
        if queue is not None:
            minutes = reports.list_minutes(minutes=CHART_MINUTES, queue_id=queue.pk, using=broker_alias())
            context |= describe_queue(*look_at_queues()(queue.name), minutes)
            context |= {"pause_form": PauseForm(), "tenant": current_tenant()}
        return super().render_change_form(request, context, *args, **kwargs)

    def pause_view(self, what: str, request: HttpRequest, queue_id: int) -> HttpResponse:
        """Pause or resume one queue."""
        queue = self.get_object(request, str(queue_id))
        if not self.has_change_permission(request, queue):
            raise PermissionDenied
        if queue is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, str(queue_id))  # type: ignore[attr-defined, no-any-return]
        form = PauseForm(request.POST)
        chosen = form.cleaned_data if form.is_valid() else {"duration": None, "reason": ""}
        self._pause_or_resume(request, what, [queue], chosen)
        return redirect("admin:pgbroker_queue_change", queue_id)

    def _pause_or_resume(
        self, request: HttpRequest, what: str, queues: Iterable[Queue], chosen: dict[str, Any]
    ) -> None:
        alias = broker_alias()
        for queue in queues:
            if what == "pause":
                control.pause(queue=queue.name, by=request.user.get_username(), using=alias, **chosen)
                told = f"Queue {queue.name} is paused. Running jobs go on."
            elif control.resume(queue=queue.name, using=alias):
                told = f"Queue {queue.name} is resumed."
            else:
                self.message_user(request, f"Queue {queue.name} was not paused.", messages.WARNING)
                continue
            self.log(request, [queue.pk], f"{capfirst(what)}d. {chosen.get('reason', '')}".strip())
            self.message_user(request, told, messages.SUCCESS)

    @admin.action(description="Pause selected queues until resumed", permissions=["change"])
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Queue]) -> None:
        self._pause_or_resume(request, "pause", queryset, {"duration": None, "reason": ""})

    @admin.action(description="Resume selected queues", permissions=["change"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Queue]) -> None:
        self._pause_or_resume(request, "resume", queryset, {})


@admin.register(Worker)
class WorkerAdmin(LookOnly):
    """Worker processes, and whether they live, by the database's clock."""

    list_display = (
        "name",
        "shown_state",
        "host",
        "pid",
        "slots",
        "running",
        "held",
        "shown_queues",
        time_column("heartbeat_at"),
        time_column("started_at"),
    )
    ordering = ("-started_at",)
    sortable_by = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        state = Case(
            When(stopped_at__isnull=False, then=Value("stopped")),
            When(expires_at__lte=Now(), then=Value("silent")),
            When(draining_at__isnull=False, then=Value("draining")),
            default=Value("alive"),
            output_field=CharField(),
        )
        found: QuerySet[Any] = self.rows(request).annotate(state=state)
        return found

    @admin.display(description="state")
    def shown_state(self, worker: Any) -> SafeString:
        return badge(worker.state)

    @admin.display(description="queues")
    def shown_queues(self, worker: Worker) -> str:
        return ", ".join(worker.queues)


@admin.register(JobType)
class JobTypeAdmin(LookOnly):
    """Job types, as code declared them last."""

    list_display = ("name", "version", "aliases", time_column("last_seen_at"))
    sortable_by = ()

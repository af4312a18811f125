"""
The admin: rows to look at, and verbs as buttons and actions. No row of a job changes here but through a verb.

It works in the request's tenant. Lists of jobs are read by keyset: never a count of all rows, never an offset.
"""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import URLPattern, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from pgbroker import (  # noqa: F401 - the three admins register what else there is
    control,
    fleet_admin,
    group_admin,
    reports,
    schedule_admin,
)
from pgbroker.changelists import (
    ByQueue,
    ByStatus,
    ByTag,
    ByType,
    JobChangeList,
    LookOnly,
    badge,
    broker_alias,
    find_jobs,
    redrive_of_list,
    time_column,
)
from pgbroker.forms import ReasonForm, RedriveForm, bounded
from pgbroker.group_pages import describe_links, describe_preview
from pgbroker.group_reports import preview_cancel, read_links
from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.clock import database_time
from pgbroker.lifecycle.retry import Retried, retry_many
from pgbroker.lifecycle.unblock import unblock_many
from pgbroker.models import Job
from pgbroker.obstacle_links import tell_obstacles
from pgbroker.pages import describe_job
from pgbroker.states import LIVE, RETRYABLE, Status
from pgbroker.tenancy import current_tenant

PAGE = 100
# Jobs that one action takes, and that one click on "redrive" takes.
ACTION_MAX, REDRIVE_MAX = 1000, 5000


@admin.register(Job)
class JobAdmin(LookOnly):
    """Jobs of the request's tenant, newest first."""

    list_display = (
        "shown_job",
        "queue",
        "shown_status",
        "shown_attempts",
        "priority",
        time_column("created_at"),
        time_column("finished_at"),
        "shown_error",
    )
    list_filter = (ByStatus, ByTag, ByQueue, ByType)
    list_select_related = ("job_type", "queue")
    list_per_page = PAGE
    ordering = ("-id",)
    sortable_by = ()
    search_fields = ("id",)
    search_help_text = "The exact id of a job, or the exact idempotency key that it holds."
    # A redrive is no action: an action is for rows that are ticked, and it takes all that match.
    actions = ("retry_selected", "cancel_selected")

    @admin.display(description="job")
    def shown_job(self, job: Any) -> SafeString:
        tags = format_html_join("", '<span class="pgb-tag">{}</span>', ((tag,) for tag in job.tags))
        return format_html('{}<span class="pgb-id">{}</span>{}', job.job_type.name, job.pk, tags)

    @admin.display(description="status")
    def shown_status(self, job: Job) -> SafeString:
        cancelling = job.cancel_requested_at and job.status == Status.RUNNING
        return badge("cancelling" if cancelling else Status(job.status).label)

    @admin.display(description="attempts")
    def shown_attempts(self, job: Job) -> str:
        return f"{job.attempt_count}/{job.max_attempts}"

    @admin.display(description="error")
    def shown_error(self, job: Any) -> str:
        return job.error_code or "-"

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("pgbroker.retry_job")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("pgbroker.cancel_job")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return JobChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        return find_jobs(queryset, search_term.strip()), False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        shown = {
            "title": f"Jobs of tenant {current_tenant()}",
            "redrive": redrive_of_list(request.GET) if self.has_retry_permission(request) else None,
        }
        return super().changelist_view(request, {**shown, **(extra_context or {})})

    def get_urls(self) -> list[URLPattern]:
        own: dict[str, Callable[..., HttpResponse]] = {
            "redrive/": self.redrive_view,
            "<uuid:job_id>/retry/": require_POST(self.retry_view),
            "<uuid:job_id>/cancel/": self.cancel_view,
            "<uuid:job_id>/unblock/": require_POST(self.unblock_view),
        }
        return self.own_urls(own) + super().get_urls()

    # -------------------------------------------------------------- one job

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            story = reports.read_story(UUID(unquote(object_id)), using=broker_alias())
        except ValueError:
            story = None
        if story is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined, no-any-return]
        status = story.job.status
        return self.page(
            request,
            "job/detail.html",
            f"{story.job.job_type} {story.job.id}",
            **describe_job(story, now=database_time(using=broker_alias())),
            **describe_links(read_links(story.job.id, using=broker_alias())),
            explanation=control.explain(story.job.id, using=broker_alias()),
            may_retry=status in RETRYABLE and self.has_retry_permission(request),
            may_cancel=status in LIVE
            and not story.job.cancel_requested_at
            and self.has_cancel_permission(request),
            may_unblock=status == Status.BLOCKED and self.has_retry_permission(request),
        )

    def retry_view(self, request: HttpRequest, job_id: UUID) -> HttpResponse:
        """Retry one job, with one attempt more or with as many as were declared."""
        if not self.has_retry_permission(request):
            raise PermissionDenied
        self._retry(request, [job_id], attempts=None if request.POST.get("attempts") == "declared" else 1)
        return redirect("admin:pgbroker_job_change", job_id)

    def unblock_view(self, request: HttpRequest, job_id: UUID) -> HttpResponse:
        """Let one blocked job run without what blocks it."""
        if not self.has_retry_permission(request):
            raise PermissionDenied
        answers = unblock_many([job_id], using=broker_alias())
        self.log(request, [each.job_id for each in answers if each.outcome == "unblocked"], "Unblocked.")
        self._tell(request, [job_id], answers, {
            "unblocked": "no longer blocked", "unchanged": "left alone: not blocked",
        })  # fmt: skip
        return redirect("admin:pgbroker_job_change", job_id)

    def cancel_view(self, request: HttpRequest, job_id: UUID) -> HttpResponse:
        """Ask, then cancel one job."""
        back = reverse("admin:pgbroker_job_change", args=[job_id])
        return self._confirm_cancel(request, [job_id], back) or HttpResponseRedirect(back)

    # -------------------------------------------------------------- actions

    @admin.action(description="Retry selected jobs", permissions=["retry"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        self._retry(request, list(queryset.values_list("pk", flat=True)[:ACTION_MAX]), attempts=1)

    @admin.action(description="Cancel selected jobs…", permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self._confirm_cancel(
            request, list(queryset.values_list("pk", flat=True)[:ACTION_MAX]), request.get_full_path()
        )

    def _retry(self, request: HttpRequest, ids: Sequence[UUID], *, attempts: int | None) -> None:
        answers = retry_many(ids, attempts=attempts, using=broker_alias())
        control.wake_queues(answers, using=broker_alias())
        self.log(request, [each.job_id for each in answers if each.outcome == "retried"], "Retried.")
        self._tell(request, ids, answers, {
            "retried": "ready again",
            "unchanged": "left alone: not failed, dead-lettered or cancelled",
            "key_held_by_newer_job": "left alone: a newer job holds the idempotency key",
        })  # fmt: skip
        self._tell_barred(request, answers)

    def _confirm_cancel(self, request: HttpRequest, ids: Sequence[UUID], back: str) -> HttpResponse | None:
        """Show what would be cancelled; with the confirmation do it and return None."""
        if not self.has_cancel_permission(request):
            raise PermissionDenied
        form = ReasonForm(request.POST if request.POST.get("confirmed") else None)
        if not (request.method == "POST" and form.is_bound and form.is_valid()):
            return self.page(
                request, "confirm.html", "Cancel jobs?", form=form, back=back, button="Yes, cancel",
                question=f"{len(ids)} {'job' if len(ids) == 1 else 'jobs'} will be cancelled. "
                "A running job is asked to stop; it ends cancelled, whatever it then reports.",
                items=ids[:20], more=max(0, len(ids) - 20),
                hidden=[("action", "cancel_selected"), *((ACTION_CHECKBOX_NAME, each) for each in ids)],
                **describe_preview(preview_cancel(job_ids=ids, using=broker_alias())),
            )  # fmt: skip
        answers = cancel_many(
            ids, reason=form.cleaned_data["reason"], by=request.user.get_username(), using=broker_alias()
        )
        for outcome, what in (("cancelled", "Cancelled."), ("requested", "Asked to stop.")):
            ids_of_outcome = [each.job_id for each in answers if each.outcome == outcome]
            self.log(request, ids_of_outcome, f"{what} {form.cleaned_data['reason']}".strip())
        self._tell(request, ids, answers, {
            "cancelled": "cancelled",
            "requested": "running and asked to stop",
            "unchanged": "left alone: ended already",
        })  # fmt: skip
        return None

    def _tell(
        self, request: HttpRequest, ids: Sequence[UUID], answers: Sequence[Any], words: dict[str, str]
    ) -> None:
        for outcome, meaning in words.items():
            if count := len([each for each in answers if each.outcome == outcome]):
                level = messages.WARNING if meaning.startswith("left") else messages.SUCCESS
                self.message_user(request, f"{count} {'job' if count == 1 else 'jobs'} {meaning}.", level)
        if missing := len(ids) - len(answers):
            self.message_user(request, f"{missing} not found in tenant {current_tenant()}.", messages.WARNING)

    def _tell_barred(self, request: HttpRequest, answers: Sequence[Retried]) -> None:
        for told in tell_obstacles(answers, using=broker_alias()):
            self.message_user(request, told, messages.WARNING)

    def redrive_view(self, request: HttpRequest) -> HttpResponse:
        """Say how many ended jobs match, then retry them, at most REDRIVE_MAX at once."""
        if not self.has_retry_permission(request):
            raise PermissionDenied
        asked = request.POST if request.method == "POST" else request.GET
        given = {"status": "dead_letter", **asked.dict()}
        alias = broker_alias()
        form = RedriveForm(given, using=alias)
        if request.method != "POST" or not form.is_valid():
            count = reports.count_ended(**form.narrowed(), using=alias) if form.is_valid() else 0
            most = f" This takes the oldest {REDRIVE_MAX}." if count > REDRIVE_MAX else ""
            return self.page(
                request, "redrive.html", "Redrive ended jobs", form=form, count=count,
                question=f"{bounded(count)} jobs match.{most}",
            )  # fmt: skip
        answers = [
            each
            for page in control.redrive_pages(**form.narrowed(), limit=REDRIVE_MAX, using=alias)
            for each in page
        ]
        self.log(request, [each.job_id for each in answers if each.outcome == "retried"], "Redriven.")
        self._tell(request, [each.job_id for each in answers], answers, {
            "retried": "ready again", "key_held_by_newer_job": "left alone: a newer job holds the idempotency key",
        })  # fmt: skip
        self._tell_barred(request, answers)
        if not answers:
            self.message_user(request, "No job matched any more.", messages.WARNING)
        return redirect("admin:pgbroker_job_changelist")

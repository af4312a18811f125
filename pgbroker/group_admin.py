"""The admin of run groups: progress, the graph of what waits for what, retry of what failed, cancel with a preview."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from pgbroker import group_control, group_reports
from pgbroker.changelists import (
    ByState,
    GroupChangeList,
    LookOnly,
    badge,
    broker_alias,
    find_run_groups,
    time_column,
)
from pgbroker.forms import ReasonForm
from pgbroker.group_pages import LIST_BAR_WIDTH, describe_group, describe_preview, draw_bar
from pgbroker.group_reports import GroupLine
from pgbroker.lifecycle.retry import Retried
from pgbroker.models import RunGroup
from pgbroker.obstacle_links import link_to, tell_obstacles
from pgbroker.obstacles import obstacle_at
from pgbroker.states import GroupState, Status
from pgbroker.tenancy import current_tenant

# Fewer than of jobs: each has a progress to be counted.
PAGE = 50
# Members of a group that one click retries; pages of members that one click cancels.
RETRY_MAX, CANCEL_PAGES = 5000, 20


@admin.register(RunGroup)
class RunGroupAdmin(LookOnly):
    """Run groups of the request's tenant, newest first."""

    list_display = (
        "shown_group",
        "shown_state",
        "shown_progress",
        time_column("created_at"),
        time_column("finished_at"),
    )
    list_filter = (ByState,)
    list_per_page = PAGE
    ordering = ("-id",)
    sortable_by = ()
    search_fields = ("id",)
    search_help_text = "The exact id of a run group, or how its name begins."
    actions = ("retry_selected", "cancel_selected")

    @admin.display(description="run group")
    def shown_group(self, group: RunGroup) -> SafeString:
        return format_html('{}<span class="pgb-id">{}</span>', group.name, group.pk)

    @admin.display(description="state")
    def shown_state(self, group: RunGroup) -> SafeString:
        cancelling = group.cancel_requested_at and group.state == GroupState.SEALED
        return badge("cancelling" if cancelling else GroupState(group.state).label)

    @admin.display(description="progress")
    def shown_progress(self, group: Any) -> SafeString:
        bar = draw_bar(dict(group.progress.counts), width=LIST_BAR_WIDTH)
        shown = {"bar": bar, "told": group.progress.words}
        return render_to_string("admin/pgbroker/rungroup/progress.html", shown)

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("pgbroker.retry_rungroup")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("pgbroker.cancel_rungroup")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return GroupChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[RunGroup], search_term: str
    ) -> tuple[QuerySet[RunGroup], bool]:
        return find_run_groups(queryset, search_term.strip()), False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        shown = {"title": f"Run groups of tenant {current_tenant()}"}
        return super().changelist_view(request, {**shown, **(extra_context or {})})

    def get_urls(self) -> list[URLPattern]:
        own: dict[str, Callable[..., HttpResponse]] = {
            "<uuid:group_id>/retry/": require_POST(self.retry_view),
            "<uuid:group_id>/cancel/": self.cancel_view,
        }
        return self.own_urls(own) + super().get_urls()

    # -------------------------------------------------------------- one group

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        alias = broker_alias()
        try:
            found = group_reports.read_groups([UUID(unquote(object_id))], using=alias)
        except ValueError:
            found = []
        if not found:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined, no-any-return]
        (group,) = found
        progress = group_reports.count_members([group.id], using=alias)[group.id]
        members = group_reports.list_members(group.id, limit=group_reports.GRAPH_MAX, using=alias)
        return self.page(
            request,
            "rungroup/detail.html",
            group.name,
            **describe_group(
                group,
                progress,
                members,
                group_reports.read_graph(group, progress, members, using=alias),
                group_reports.read_links(group.id, using=alias),
            ),
            may_retry=bool(progress.bad) and self.has_retry_permission(request),
            may_cancel=bool(progress.live or group.state == GroupState.OPEN)
            and self.has_cancel_permission(request),
        )

    def retry_view(self, request: HttpRequest, group_id: UUID) -> HttpResponse:
        """Retry what failed in one group."""
        if not self.has_retry_permission(request):
            raise PermissionDenied
        self._retry(request, self._found(request, [group_id]))
        return redirect("admin:pgbroker_rungroup_change", group_id)

    def cancel_view(self, request: HttpRequest, group_id: UUID) -> HttpResponse:
        """Show what one group would take along, then cancel it."""
        back = reverse("admin:pgbroker_rungroup_change", args=[group_id])
        return self._confirm_cancel(request, [group_id], back) or redirect(back)

    # -------------------------------------------------------------- actions

    @admin.action(description="Retry the failed part of selected run groups", permissions=["retry"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[RunGroup]) -> None:
        self._retry(request, self._found(request, list(queryset.values_list("pk", flat=True)[:PAGE])))

    @admin.action(description="Cancel selected run groups…", permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[RunGroup]) -> HttpResponse | None:
        ids = list(queryset.values_list("pk", flat=True)[:PAGE])
        return self._confirm_cancel(request, ids, request.get_full_path())

    def _found(self, request: HttpRequest, ids: Sequence[UUID]) -> list[GroupLine]:
        found = group_reports.read_groups(ids, using=broker_alias())
        if missing := len(ids) - len(found):
            self.message_user(request, f"{missing} not found in tenant {current_tenant()}.", messages.WARNING)
        return found

    def _log_group(self, request: HttpRequest, group: GroupLine, what: str) -> None:
        self.log_rows(request, [RunGroup(pk=group.id, name=group.name)], what)

    def _retry(self, request: HttpRequest, groups: Sequence[GroupLine]) -> None:
        for group in groups:
            answers: dict[UUID, Retried] = {}
            # Of a cancelled group all members were meant, of another one those that were cancelled are left.
            cancelled = group.state == GroupState.CANCELLED
            for page in group_control.retry_failed_pages(
                group.id, cancelled=cancelled, limit=RETRY_MAX, using=broker_alias()
            ):
                answers |= {each.job_id: each for each in page}
            counts = Counter(each.outcome for each in answers.values())
            if retried := counts["retried"]:
                self._log_group(request, group, f"Retried {retried} jobs.")
                told = f"{jobs(retried)} of {group.name} live again. What was cancelled because of them comes back."
                self.message_user(request, told, messages.SUCCESS)
            if left := counts["key_held_by_newer_job"]:
                told = f"{jobs(left)} of {group.name} left alone: a newer job holds the idempotency key."
                self.message_user(request, told, messages.WARNING)
            for told in tell_obstacles(answers.values(), of=f" of {group.name}", using=broker_alias()):
                self.message_user(request, told, messages.WARNING)
            if not answers:
                self.message_user(request, self._why_nothing(group), messages.WARNING)

    def _why_nothing(self, group: GroupLine) -> str:
        """Say why there was nothing to retry in a group: it may have failed because of what it waited for."""
        bad = None
        if group.state == GroupState.FAILED:
            bad = group_reports.find_bad_prerequisite(group.id, using=broker_alias())
        if bad is None:
            return f"Nothing in {group.name} failed by itself."
        return format_html("{} is failed: {}", group.name, link_to(obstacle_at(bad, using=broker_alias())))

    def _confirm_cancel(self, request: HttpRequest, ids: Sequence[UUID], back: str) -> HttpResponse | None:
        """Show what would be cancelled and what goes along; with the confirmation do it and return None."""
        if not self.has_cancel_permission(request):
            raise PermissionDenied
        groups = self._found(request, ids)
        form = ReasonForm(request.POST if request.POST.get("confirmed") else None)
        if groups and not (request.method == "POST" and form.is_bound and form.is_valid()):
            alias = broker_alias()
            progress = group_reports.count_members([each.id for each in groups], using=alias)
            preview = group_reports.preview_cancel(group_ids=[each.id for each in groups], using=alias)
            return self.page(
                request, "rungroup/cancel.html", "Cancel run groups?", form=form, back=back,
                groups=[
                    {"id": each.id, "name": each.name, "live": jobs(progress[each.id].live),
                     "running": progress[each.id].counts.get(Status.RUNNING, 0)}
                    for each in groups
                ],
                hidden=[("action", "cancel_selected"), *((ACTION_CHECKBOX_NAME, each.id) for each in groups)],
                **describe_preview(preview),
            )  # fmt: skip
        for group in groups:
            self._cancel(request, group, form.cleaned_data["reason"])
        return None

    def _cancel(self, request: HttpRequest, group: GroupLine, reason: str) -> None:
        cancelled = requested = 0
        pages = group_control.cancel_group_pages(
            group.id, reason=reason, by=request.user.get_username(), using=broker_alias()
        )
        is_left = False
        for _, page in zip(range(CANCEL_PAGES), pages, strict=False):
            cancelled, requested = cancelled + page.cancelled, requested + page.requested
            is_left = page.is_left
        self._log_group(request, group, f"Cancelled. {reason}".strip())
        running = f", {jobs(requested)} running and asked to stop" if requested else ""
        self.message_user(request, f"{group.name}: {jobs(cancelled)} cancelled{running}.", messages.SUCCESS)
        if is_left:
            told = f"{group.name} has more members: the upkeep of a worker cancels the rest within minutes."
            self.message_user(request, told, messages.WARNING)


def jobs(count: int) -> str:
    """Write a bounded count of jobs."""
    if count == 1:
        return "1 job"
    return f"{count}+ jobs" if count >= group_reports.BOUND else f"{count} jobs"

"""How the admin lists: the filters, a page by keyset, and rows with what is cheap to know of them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.views.main import ERROR_FLAG, PAGE_VAR, SEARCH_VAR, ChangeList
from django.db import OperationalError
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from psycopg.errors import QueryCanceled

from pgbroker import group_reports, reports
from pgbroker.conf import settings
from pgbroker.lifecycle.declare import list_queues
from pgbroker.models import Execution, Idempotency, JobPayload, JobState, JobTag, JobType
from pgbroker.states import RETRYABLE, GroupState, Status
from pgbroker.tenancy import current_tenant

# A filtered list looks everywhere for so long; then only at so many jobs, with a link to look further.
LOOK = timedelta(milliseconds=800)
WINDOW = 100_000


def broker_alias() -> str:
    """Return the alias whose jobs the admin shows."""
    return settings().DATABASES[0]


def badge(word: str) -> SafeString:
    """Show a status in its colour."""
    return format_html('<span class="pgb-badge pgb-{}">{}</span>', word, word.replace("_", " "))


def day_and_time(at: datetime | None) -> SafeString | str:
    """Show an instant in two short lines: a list has room for no more."""
    if at is None:
        return "-"
    here = localtime(at)
    return format_html('<span class="pgb-when">{}</span> {}', f"{here:%Y-%m-%d}", f"{here:%H:%M:%S}")


def time_column(field: str) -> Callable[[Any], SafeString | str]:
    """Make a column of instants, named after its field without the "at"."""

    @admin.display(description=field.removesuffix("_at").replace("_", " "))
    def show(row: Any) -> SafeString | str:
        return day_and_time(getattr(row, field))

    return show


class LookOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that code and processes make: nobody adds, changes or deletes one here."""

    class Media:
        css = {"all": ["pgbroker/admin.css"]}

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        # PostgreSQL takes a NUL in no text. Django checks what is searched for itself, and says so.
        if any(
            "\0" in value for name in request.GET if name != SEARCH_VAR for value in request.GET.getlist(name)
        ):
            return redirect(f"{request.path}?{ERROR_FLAG}=1")
        return super().changelist_view(request, extra_context)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return self.rows(request)

    def rows(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows of the request's tenant, or all where no tenant owns them."""
        found: QuerySet[Any] = super().get_queryset(request).using(broker_alias())
        return found

    def page(self, request: HttpRequest, template: str, title: str, **context: Any) -> HttpResponse:
        """Render a page of this model's own."""
        shared = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media}
        return render(
            request,
            f"admin/pgbroker/{template}",
            {**shared, "title": title, "tenant": current_tenant(), **context},
        )

    def own_urls(self, views: Mapping[str, Callable[..., HttpResponse]]) -> list[URLPattern]:
        """Make URLs of `name/` (of the list) and `<id>/name/`; each is named after its view."""
        return [
            path(
                route,
                self.admin_site.admin_view(view),
                name=f"pgbroker_{self.opts.model_name}_{route.strip('/').rpartition('/')[2]}",
            )
            for route, view in views.items()
        ]

    def log(self, request: HttpRequest, ids: Iterable[Any], what: str) -> None:
        """Record who did it, a row a job."""
        self.log_rows(request, [self.model(pk=each) for each in ids], what)

    def log_rows(self, request: HttpRequest, objects: list[Any], what: str) -> None:
        """Record who did it to these rows."""
        if objects:
            LogEntry.objects.log_actions(request.user.pk, objects, CHANGE, what)  # type: ignore[arg-type]


class ByName(admin.SimpleListFilter):
    """A filter whose choices come from a small table: never `distinct` over the jobs."""

    column = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(number), name) for number, name in self.names()]

    def names(self) -> Iterable[tuple[int, str]]:
        """List numbers and names."""
        raise NotImplementedError

    def value(self) -> str | None:
        """Return the number of what was chosen, which a link may also give by its name."""
        given = super().value()
        by_name = {name: number for number, name in self.lookup_choices}
        return by_name.get((given or "").replace("_", " "), by_name.get(given or "", given))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        if not chosen:
            return queryset
        known = {number for number, _ in self.lookup_choices}
        # All of them would be taken for what was asked for.
        return queryset.filter(**{self.column: int(chosen)}) if chosen in known else queryset.none()


class ByStatus(ByName):
    title, parameter_name, column = "status", "status", "status"

    def names(self) -> Iterable[tuple[int, str]]:
        return [(int(status), status.label.replace("_", " ")) for status in reports.STATUSES]


class ByState(ByName):
    title, parameter_name, column = "state", "state", "state"

    def names(self) -> Iterable[tuple[int, str]]:
        return [(int(state), state.label) for state in GroupState]


class ByQueue(ByName):
    title, parameter_name, column = "queue", "queue", "queue_id"

    def names(self) -> Iterable[tuple[int, str]]:
        return [(queue.id, queue.name) for queue in list_queues(using=broker_alias())]


class ByType(ByName):
    title, parameter_name, column = "type", "type", "job_type_id"

    def names(self) -> Iterable[tuple[int, str]]:
        return JobType.objects.using(broker_alias()).order_by("name").values_list("id", "name")


class ByTag(admin.SimpleListFilter):
    """An exact tag, typed in: there may be as many as jobs, so none are offered."""

    title, parameter_name = "tag", "tag"
    template = "admin/pgbroker/job/tag_filter.html"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        # Without any, Django leaves the filter out.
        return [("", "")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        tag = self.value()
        if not tag:
            return queryset
        return queryset.filter(
            Exists(JobTag.objects.using(broker_alias()).filter(tag=tag, job_id=OuterRef("pk")))
        )

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Give the template one thing: what was typed, and what of the list's address stays."""
        gone = {self.parameter_name, PAGE_VAR}
        kept = [(name, value) for name, value in changelist.params.items() if name not in gone]
        yield {
            "value": self.value() or "",
            "kept": kept,
            "all": changelist.get_query_string(remove=[self.parameter_name, PAGE_VAR]),
        }


class KeysetChangeList(ChangeList):
    """One page and whether there is more. `p` is not a number here but the last id of the page before."""

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> QuerySet[Any]:
        queryset = super().get_queryset(request, exclude_parameters)
        try:
            self.after: UUID | None = UUID(request.GET.get(PAGE_VAR, ""))
        except ValueError:
            self.after = None
        return queryset.filter(pk__lt=self.after) if self.after else queryset

    def get_results(self, request: HttpRequest) -> None:
        rows, edge = self._look(), None
        if rows is None:
            rows, edge = self._look_near()
        self.result_list = rows[: self.list_per_page]
        self.add_to_rows([row.pk for row in self.result_list])
        after = rows[-2].pk if len(rows) > self.list_per_page else edge
        self.next_page = self.get_query_string({PAGE_VAR: str(after)}) if after else None
        self.looked_at = WINDOW if edge else None
        self.first_page = self.get_query_string(remove=[PAGE_VAR]) if PAGE_VAR in request.GET else None
        self.result_count = self.full_result_count = len(self.result_list)
        self.show_full_result_count = self.can_show_all = self.multi_page = False
        self.show_admin_actions = True

    def add_to_rows(self, ids: list[UUID]) -> None:
        """Add what the page shows beside the rows, with a statement for all of them."""

    def _look(self) -> list[Any] | None:
        """Read the page; None when what the filters want is too rare to be found in time."""
        page = self.queryset[: self.list_per_page + 1]
        if not self.has_active_filters:
            return list(page)
        try:
            with reports.limited_time(LOOK, using=broker_alias()):
                return list(page)
        except OperationalError as error:
            if not isinstance(error.__cause__, QueryCanceled):
                raise
            return None

    def _look_near(self) -> tuple[list[Any], UUID | None]:
        """Look only at the next WINDOW rows; also returns where they end, None where all were seen."""
        near = self.root_queryset.order_by("-pk").values_list("pk", flat=True)
        if self.after:
            near = near.filter(pk__lt=self.after)
        edge = next(iter(near[WINDOW : WINDOW + 1]), None)
        queryset = self.queryset if edge is None else self.queryset.filter(pk__gte=edge)
        return list(queryset[: self.list_per_page + 1]), edge


class JobChangeList(KeysetChangeList):
    """Jobs with their tags and what went wrong last."""

    def add_to_rows(self, ids: list[UUID]) -> None:
        errors, tags = find_errors(ids), find_tags(ids)
        for job in self.result_list:
            job.error_code, job.tags = errors.get(job.pk), tags.get(job.pk, [])


class GroupChangeList(KeysetChangeList):
    """Run groups with their progress."""

    def add_to_rows(self, ids: list[UUID]) -> None:
        progress = group_reports.count_members(ids, using=broker_alias())
        for group in self.result_list:
            group.progress = progress[group.pk]


class QueueChangeList(ChangeList):
    """Queues with their depths and pauses: two statements for all of them."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        look = look_at_queues()
        for queue in self.result_list:
            queue.depth, queue.pauses = look(queue.name)


def look_at_queues() -> Callable[[str], tuple[reports.QueueDepth | None, list[reports.PauseLine]]]:
    """Read depths and pauses of all queues and return how to find one's."""
    depths = {depth.queue: depth for depth in reports.list_depths(using=broker_alias())}
    pauses: dict[str | None, list[reports.PauseLine]] = defaultdict(list)
    for pause in reports.list_pauses(using=broker_alias()):
        if pause.tenant in (None, current_tenant()):
            pauses[pause.queue].append(pause)
    return lambda name: (depths.get(name), pauses[name])


def find_jobs(queryset: QuerySet[Any], term: str) -> QuerySet[Any]:
    """Find a job by its exact id, or by the idempotency key it holds."""
    if not term:
        return queryset
    try:
        return queryset.filter(pk=UUID(term))
    except ValueError:
        # The primary key of the keys begins with tenant and type: naming all types makes it serve.
        types = list(JobType.objects.using(broker_alias()).values_list("id", flat=True))
        holders = Idempotency.objects.using(broker_alias()).filter(job_type_id__in=types, key=term)
        return queryset.filter(pk__in=list(holders.values_list("job_id", flat=True)))


def find_run_groups(queryset: QuerySet[Any], term: str) -> QuerySet[Any]:
    """Find a run group by its exact id, or by how its name begins."""
    if not term:
        return queryset
    try:
        return queryset.filter(pk=UUID(term))
    except ValueError:
        # A range, since the index serves no "like" under the policy.
        return queryset.filter(name__gte=term, name__lt=f"{term}\U0010ffff")


def find_errors(ids: Sequence[UUID]) -> dict[UUID, str]:
    """Return the code of what went wrong last with each of these jobs, as `broker_jobs list` shows it."""
    using = broker_alias()
    last = (
        Execution.objects.using(using)
        .filter(job_id__in=ids)
        .order_by("job_id", "-attempt_no", "-completed_at")
        .distinct("job_id")
        .values_list("job_id", "error_code")
    )
    states = JobState.objects.using(using).filter(pk__in=ids).values_list("pk", "reason_code")
    return {job_id: code for job_id, code in (*last, *states) if code}


def find_tags(ids: Sequence[UUID]) -> dict[UUID, list[str]]:
    """Return the tags of those of these jobs that have any."""
    tagged = JobPayload.objects.using(broker_alias()).filter(pk__in=ids, tags__isnull=False)
    return {job_id: tags or [] for job_id, tags in tagged.values_list("pk", "tags")}


class Redrive(NamedTuple):
    """The button above a list of jobs: what it says, and where it leads."""

    label: str
    url: str


def redrive_of_list(chosen: QueryDict) -> Redrive:
    """Offer a redrive of what the filters of the list let through: dead letters unless another end is chosen."""
    narrowed = filter_by_name(chosen)
    ends = {str(int(status)): status for status in RETRYABLE}
    status = ends.get(chosen.get("status", ""), Status.DEAD_LETTER)
    what = "dead letters" if status == Status.DEAD_LETTER else f"{status.label} jobs"
    return Redrive(
        f"Redrive {what}{' of this filter' if narrowed else ''}…",
        f"{reverse('admin:pgbroker_job_redrive')}?{urlencode({'status': status.label, **narrowed})}",
    )


def filter_by_name(chosen: QueryDict) -> dict[str, str]:
    """Translate the filters of a list of jobs to names, as the form of a redrive takes them."""
    queues = {str(queue.id): queue.name for queue in list_queues(using=broker_alias())}
    types = {str(each.pk): each.name for each in JobType.objects.using(broker_alias())}
    found = {
        "queue": queues.get(chosen.get("queue", "")),
        "job_type": types.get(chosen.get("type", "")),
        "tag": chosen.get("tag"),
    }
    return {name: value for name, value in found.items() if value}

"""Look at what was enqueued: list it, assert that a job is there, or that none is."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from uuid import UUID

from django.db import connections
from django.db.models import OuterRef, Subquery

from pgbroker import models
from pgbroker.backend import PgBrokerBackend
from pgbroker.bodies import Reference
from pgbroker.compat import Task
from pgbroker.conf import settings
from pgbroker.errors import (
    GroupNotFound,
    InvalidArgument,
    InvalidOption,
    UndecodableArgument,
    UnknownJobType,
    UnknownQueue,
)
from pgbroker.errors.near_names import did_you_mean
from pgbroker.lifecycle.declare import list_queues, type_ids
from pgbroker.models import Job, JobPayload
from pgbroker.options import checked_tags
from pgbroker.payload import decode, refuse_unknown
from pgbroker.policy.body_names import LARGEST_BYTES
from pgbroker.policy.plain_json import Refused, Walk
from pgbroker.policy.values import elements, instant, named, whole
from pgbroker.references import GroupRef, checked_name, group_name_of
from pgbroker.registry import JobTask, JobType, names, types
from pgbroker.states import Status
from pgbroker.tenancy import checked_tenant, scope_all
from pgbroker.testing.differences import EnqueuedJob, Wanted, differences, most_similar_first, shown

if TYPE_CHECKING:
    from pgbroker.groups import RunGroup

    AnyTask = Task[..., Any]

# Live, and nobody runs it.
YET_TO_RUN = (Status.READY, Status.SCHEDULED, Status.WAITING, Status.BLOCKED)
TOLERANCE = timedelta(seconds=5)
# What a failing assertion compares, and what it shows.
COMPARED, SHOWN = 1000, 5

# Types that are no matcher. What holds others may hold one.
_SCALARS = (str, bytes, int, float, bool, Decimal, UUID, date, datetime)


class Filters(TypedDict, total=False):
    """
    What a job must have to match; what is not named may be anything.

    *args* and *kwargs* are some of its arguments, in the types that its handler takes. A parameter that was not
    given has its default; a matcher such as `unittest.mock.ANY` is asked whether it is equal. *run_after* is an
    aware datetime, or a timedelta since the job was enqueued (zero: at once), and may differ by *tolerance*,
    5 seconds by default. *tags* are some of its tags. *group* is the run group it is in, by its name or as a handle,
    and *name* its own name there. Without *tenant* jobs of all tenants are looked at.
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    queue: str
    priority: int
    run_after: datetime | timedelta
    tolerance: timedelta
    tenant: str
    tags: Sequence[str]
    group: "RunGroup | GroupRef | str"
    name: str
    using: str | None


def all_enqueued(job: "AnyTask | str | None" = None, **filters: Unpack[Filters]) -> list[EnqueuedJob]:
    """
    List the jobs that are yet to run and match, oldest first; without filters, all of them.

    *job* is a task or the name of a job type. Filters: args, kwargs, queue, priority, run_after, tolerance,
    tenant, tags, group, name, using. A filter that nothing can match, such as a queue that is not there or an
    argument of a wrong type, raises the error that enqueueing it would raise.
    """
    return _matching(_wanted(job, **filters), filters.get("using"))


def assert_enqueued(
    job: "AnyTask | str | None" = None, *, count: int | None = None, **filters: Unpack[Filters]
) -> list[EnqueuedJob]:
    """
    Assert that a job that matches is yet to run (with *count*: that many), and return those that do.

    Job and filters are those of `all_enqueued`. The `AssertionError` tells what was enqueued instead, the most
    similar first, and in what it differs.
    """
    __tracebackhide__ = True
    if count == 0:
        raise InvalidOption("count", "is 0", "Use refute_enqueued to assert that there is none.")
    if count is not None:
        whole("count", count, 1, 2**31 - 1)
    wanted = _wanted(job, **filters)
    found = _matching(wanted, filters.get("using"))
    if not found:
        raise AssertionError("\n".join(_why_none(wanted, filters.get("using"))))
    if count is not None and len(found) != count:
        first = f"{_jobs(len(found))} yet to run, not {count}, and match {wanted}:"
        raise AssertionError("\n".join([first, *_listed(found)]))
    return found


def refute_enqueued(job: "AnyTask | str | None" = None, **filters: Unpack[Filters]) -> None:
    """
    Assert that no job that matches is yet to run; the `AssertionError` lists those that are.

    Job and filters are those of `all_enqueued`; without any, nothing at all may be enqueued.
    """
    __tracebackhide__ = True
    wanted = _wanted(job, **filters)
    if found := _matching(wanted, filters.get("using")):
        first = f"{_jobs(len(found))} yet to run, though none should match {wanted}:"
        raise AssertionError("\n".join([first, *_listed(found)]))


def _matching(wanted: Wanted, using: str | None) -> list[EnqueuedJob]:
    with scope_all():
        rows = _rows(using).filter(status__in=YET_TO_RUN).order_by("created_at", "ready_at", "id")
        if wanted.job_type is not None:
            known = names().get(wanted.job_type)
            former = known.task.aliases if known is not None else ()
            rows = rows.filter(job_type__name__in=[wanted.job_type, *former])
        found = [_enqueued(row) for row in rows]
    return [each for each in found if not differences(wanted, each)]


# ------------------------------------------------------------------ what is wanted


def _wanted(
    job: "AnyTask | str | None",
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    run_after: datetime | timedelta | None = None,
    tolerance: timedelta = TOLERANCE,
    tenant: str | None = None,
    tags: Sequence[str] = (),
    group: "RunGroup | GroupRef | str | None" = None,
    name: str | None = None,
    using: str | None = None,
    **unknown: Any,
) -> Wanted:
    if unknown:
        name = min(unknown)
        known = sorted(Filters.__annotations__)
        raise InvalidOption(name, "is no filter", did_you_mean(name, known) or f"Known: {', '.join(known)}.")
    alias = using or settings().DATABASES[0]
    elements("args", args, "Give a list, or kwargs={...}.")
    if kwargs is not None:
        named("kwargs", kwargs)
    if run_after is not None and not isinstance(run_after, timedelta):
        instant("run_after", run_after)
    if queue is not None and queue not in (known := [row.name for row in list_queues(using=alias)]):
        raise UnknownQueue(queue, known)
    key, handler = (None, None) if job is None else _type_of(job, alias)
    return Wanted(
        job_type=key,
        arguments=_wanted_arguments(handler, args, kwargs or {}),
        queue=queue,
        priority=None if priority is None else whole("priority", priority, -100, 100),
        run_after=run_after,
        tolerance=tolerance,
        tenant=None if tenant is None else checked_tenant(tenant),
        tags=checked_tags("tags", tags),
        group=None if group is None else _known_group(group, tenant, alias),
        name=None if name is None else checked_name("name", name),
    )


def _known_group(group: "RunGroup | GroupRef | str", tenant: str | None, alias: str) -> str:
    wanted = group_name_of("group", group)
    with scope_all():
        rows = models.RunGroup._base_manager.using(alias)
        if tenant is not None:
            rows = rows.filter(tenant_id=tenant)
        if not rows.filter(name=wanted).exists():
            # The newest alone: what the test has made.
            known = rows.order_by("-created_at").values_list("name", flat=True)[:SHOWN]
            there = (
                f"The newest there are: {', '.join(map(repr, known))}." if known else "There is none at all."
            )
            raise GroupNotFound(f"there is no run group {wanted!r}", cure=there)
    return wanted


def _type_of(job: "AnyTask | str", alias: str) -> tuple[str, JobType | None]:
    if isinstance(job, Task):
        backend = job.get_backend()
        if not isinstance(job, JobTask) or not isinstance(backend, PgBrokerBackend):
            raise InvalidOption(
                "job",
                f"goes to {type(backend).__name__} by TASKS[{job.backend!r}], and never to pgbroker",
                "Let the settings of the tests name pgbroker's backend.",
            )
        return job.key, types()[job.key]
    if not isinstance(job, str):
        raise InvalidOption("job", f"is {shown(job)}", "Give a task, or the name of a job type.")
    handler = names().get(job)
    if handler is None and not type_ids([job], using=alias):
        # A name that is mistyped is never enqueued, and could be refuted for ever.
        raise UnknownJobType(job, names())
    return (job if handler is None else handler.key), handler


def _wanted_arguments(
    handler: JobType | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    if handler is None:
        return _by_place(args, kwargs)
    signature, context = _python_signature(handler)
    refuse_unknown(handler.signature, args, kwargs)
    bound = signature.bind_partial(*context, *args, **kwargs)
    named = _named(bound, signature, len(context))
    for name, value in named.items():
        _refuse_impossible(handler, name, value)
    return named


def _refuse_impossible(handler: JobType, name: str, value: Any) -> None:
    """Refuse a plain value that enqueueing would refuse: it matches nothing, and that would prove nothing."""
    codec = dict(handler.signature.positional).get(name) or handler.signature.keyword.get(name)
    if codec is None or type(value) not in _SCALARS:
        return
    try:
        codec.write(value, Walk(LARGEST_BYTES))
    except Refused as refused:
        refused.within(name)
        raise InvalidArgument(refused.path, refused.trouble, refused.cure) from None


# ------------------------------------------------------------------ what was enqueued


def _rows(using: str | None) -> Any:
    alias = using or settings().DATABASES[0]
    groups = models.RunGroup._base_manager.using(alias).filter(id=OuterRef("run_group_id"))
    rows = Job._base_manager.using(alias).select_related("queue", "job_type", "payload")
    return rows.annotate(group_name=Subquery(groups.values("name")))


def _enqueued(row: Any) -> EnqueuedJob:
    # A row that a test made by hand may have none.
    payload = getattr(row, "payload", None) or JobPayload()
    stored = payload.args
    if payload.args_body is not None:
        stored = Reference(payload.args_body, stored, row.tenant_id).read()
    handler = names().get(row.job_type.name)
    return EnqueuedJob(
        id=row.id,
        job_type=row.job_type.name if handler is None else handler.key,
        arguments=_arguments_of(handler, stored),
        queue=row.queue.name,
        priority=row.priority,
        status=Status(row.status),
        run_after=row.available_at,
        created_at=row.created_at,
        max_attempts=row.max_attempts,
        tenant_id=row.tenant_id,
        tags=tuple(payload.tags or ()),
        idempotency_key=payload.idempotency_key,
        correlation_id=payload.correlation_id,
        group=row.group_name,
        name=row.name,
    )


def _arguments_of(handler: JobType | None, stored: Any) -> Mapping[str, Any]:
    if handler is not None:
        signature, context = _python_signature(handler)
        try:
            args, kwargs = decode(handler.signature, stored)
            bound = signature.bind(*context, *args, **kwargs)
        except (UndecodableArgument, TypeError):
            pass
        else:
            bound.apply_defaults()
            return _named(bound, signature, len(context))
    if not isinstance(stored, dict):
        return {}
    return _by_place(stored.get("args") or (), stored.get("kwargs") or {})


def _python_signature(handler: JobType) -> tuple[inspect.Signature, tuple[Any, ...]]:
    """Return the handler's signature, and what stands for the context in a call of it."""
    return inspect.signature(handler.task.func), ((None,) if handler.task.takes_context else ())


def _named(bound: inspect.BoundArguments, signature: inspect.Signature, skipped: int) -> dict[str, Any]:
    named = dict(list(bound.arguments.items())[skipped:])
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
    return named


def _by_place(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {f"args[{place}]": value for place, value in enumerate(args)} | dict(kwargs)


# ------------------------------------------------------------------ what a failing assertion says


def _why_none(wanted: Wanted, using: str | None) -> Iterator[str]:
    with scope_all():
        newest_first = _rows(using).order_by("-created_at", "-id")
        rows = newest_first.filter(status__in=YET_TO_RUN)
        more = rows.count() - SHOWN
        waiting = [_enqueued(row) for row in rows[:COMPARED]]
        gone = [_enqueued(row) for row in newest_first.exclude(status__in=YET_TO_RUN)[:COMPARED]]
    yield f"no job that is yet to run matches {wanted}."
    if waiting:
        yield "Yet to run, the most similar first:"
        for each, why in most_similar_first(wanted, waiting)[:SHOWN]:
            yield f"  {each}"
            yield from (f"      {line}" for line in why)
        if more > 0:
            yield f"  … and {more} more"
    else:
        yield "Nothing is yet to run."
    if gone := [each for each in gone if not differences(wanted, each)]:
        yield "These match, but have run or do:"
        yield from _listed(gone)
    yield from _hint(connections[using or settings().DATABASES[0]])


def _hint(connection: Any) -> Iterator[str]:
    waiting = [hook for _, hook, *_ in connection.run_on_commit if not _is_ours(hook)]
    if connection.in_atomic_block and waiting:
        yield (
            f"{len(waiting)} call(s) of transaction.on_commit wait for a commit, and in a TestCase none comes: run "
            "the code inside of `with self.captureOnCommitCallbacks(execute=True):`."
        )


def _is_ours(hook: Any) -> bool:
    called = getattr(hook, "func", hook)
    return str(getattr(called, "__module__", type(called).__module__)).startswith("pgbroker.")


def _listed(jobs: Sequence[EnqueuedJob]) -> Iterator[str]:
    yield from (f"  {each}" for each in jobs[:SHOWN])
    if len(jobs) > SHOWN:
        yield f"  … and {len(jobs) - SHOWN} more"


def _jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"

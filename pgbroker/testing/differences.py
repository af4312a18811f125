"""How a wanted job differs from one that was enqueued, in words. Reads no row and no clock."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pgbroker.policy.durations import seconds_of
from pgbroker.states import Status

LONGEST_VALUE = 200
_AT_ONCE = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedJob:
    """
    A job as a test sees it.

    *arguments* are those its handler would get, by the names of its parameters and in their types. Where the
    handler is not known here, or does not take what is stored, they are JSON, those by position as `args[0]`.
    *group* is the name of the run group that the job is in, *name* its own name there.
    """

    id: UUID
    job_type: str
    arguments: Mapping[str, Any]
    queue: str
    priority: int
    status: Status
    run_after: datetime | None
    created_at: datetime
    max_attempts: int
    tenant_id: str
    tags: tuple[str, ...]
    idempotency_key: str | None
    correlation_id: str | None
    group: str | None
    name: str | None

    def __str__(self) -> str:
        when = self.status.label
        if self.status == Status.SCHEDULED and self.run_after is not None:
            when = f"scheduled for {self.run_after:%Y-%m-%d %H:%M:%S%z}"
        of = "" if self.tenant_id == "default" else f", tenant {self.tenant_id}"
        of += f", tags {', '.join(self.tags)}" if self.tags else ""
        of += f", group {self.group}" if self.group is not None else ""
        of += f", name {self.name}" if self.name is not None else ""
        return f"{self.job_type}{called(self.arguments)}: {when}, queue {self.queue}, priority {self.priority}{of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a test looks for; None and what is not named may be anything."""

    job_type: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None
    priority: int | None = None
    run_after: datetime | timedelta | None = None
    tolerance: timedelta = _AT_ONCE
    tenant: str | None = None
    tags: tuple[str, ...] = ()
    group: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        subject = "a job of any type" if self.job_type is None else self.job_type
        told = [f"{subject}{called(self.arguments) if self.arguments else ''}"]
        named = {"queue": self.queue, "priority": self.priority, "tenant": self.tenant}
        named |= {"group": self.group, "name": self.name}
        told += [f"{name} {value}" for name, value in named.items() if value is not None]
        if self.tags:
            told.append(f"tags {', '.join(self.tags)}")
        if self.run_after is not None:
            told.append(f"to be run {_when(self.run_after)}")
        return ", ".join(told)


def called(arguments: Mapping[str, Any]) -> str:
    """Write arguments as a call does."""
    return "(" + ", ".join(f"{name}={shown(value)}" for name, value in arguments.items()) + ")"


def shown(value: Any) -> str:
    """Write a value, however long it is and whatever its `repr` does."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}… ({len(text)} characters)"


def differences(wanted: Wanted, job: EnqueuedJob) -> list[str]:
    """Say in what a job is not the wanted one; nothing when it is."""
    if wanted.job_type is not None and wanted.job_type != job.job_type:
        return ["is another job"]
    return [
        *_arguments(wanted.arguments, job.arguments),
        *(
            f"{name} is {shown(is_)}, not {shown(want)}"
            for name, is_, want in (
                ("queue", job.queue, wanted.queue),
                ("priority", job.priority, wanted.priority),
                ("tenant", job.tenant_id, wanted.tenant),
                ("group", job.group, wanted.group),
                ("name", job.name, wanted.name),
            )
            if want is not None and want != is_
        ),
        *(f"tag {tag!r} is missing" for tag in wanted.tags if tag not in job.tags),
        *_time(wanted, job),
    ]


def _arguments(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterable[str]:
    for name, want in wanted.items():
        if name not in stored:
            yield f"{name} is not given, {shown(want)} is wanted"
        # The wanted value first: a matcher such as `unittest.mock.ANY` decides.
        elif not _equal(want, stored[name]):
            yield f"{name} is {shown(stored[name])}, not {shown(want)}"


def _equal(want: Any, is_: Any) -> bool:
    # True == 1, but not for a handler.
    if isinstance(want, bool) != isinstance(is_, bool) and isinstance(want, int) and isinstance(is_, int):
        return False
    return bool(want == is_)


def _time(wanted: Wanted, job: EnqueuedJob) -> Iterable[str]:
    if wanted.run_after is None:
        return
    planned = job.run_after or job.created_at
    if isinstance(wanted.run_after, timedelta):
        apart = planned - job.created_at - wanted.run_after
    else:
        apart = planned - wanted.run_after
    if abs(apart) > wanted.tolerance:
        is_ = "at once" if job.run_after is None else _when(_like(wanted.run_after, job))
        yield (
            f"is to be run {is_}, not {_when(wanted.run_after)} "
            f"({seconds_of(abs(apart))} apart, {seconds_of(wanted.tolerance)} allowed)"
        )


def _like(example: datetime | timedelta, job: EnqueuedJob) -> datetime | timedelta:
    """Return when a job is to be run, counted as *example* is."""
    assert job.run_after is not None
    if isinstance(example, timedelta):
        return job.run_after - job.created_at
    return job.run_after.astimezone(example.tzinfo)


def _when(time: datetime | timedelta) -> str:
    if isinstance(time, datetime):
        return f"at {time.isoformat(sep=' ')}"
    return f"{seconds_of(time)} after it was enqueued" if time else "at once"


def most_similar_first(wanted: Wanted, jobs: Iterable[EnqueuedJob]) -> list[tuple[EnqueuedJob, list[str]]]:
    """Pair each job with its differences: jobs of the wanted type first, then by how few they are."""
    pairs = [(job, differences(wanted, job)) for job in jobs]
    return sorted(pairs, key=lambda pair: (wanted.job_type not in (None, pair[0].job_type), len(pair[1])))

"""What a person wants to see of a broker: lists, depths, workers, rates. Reads only; every count has a bound."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from pgbroker import correlation, db
from pgbroker.conf import settings
from pgbroker.lifecycle.look import Job, look
from pgbroker.lifecycle.over_long import OverLong, find_over_long
from pgbroker.limited import limiting
from pgbroker.policy.timeline import Moment, Span, in_order
from pgbroker.states import EVENT_LABELS, ON_EXHAUSTED, AttemptState, Status

# A count that reaches it is told as "10000+".
BOUND = 10_000
# Attempts and events of one job that are shown.
HISTORY_MAX = 200
WORKERS_MAX = 200
# What lists are filtered by. No verb of this release suspends a job.
STATUSES = tuple(status for status in Status if status != Status.SUSPENDED)
WORKERS_SINCE = timedelta(days=1)
GONE_AFTER = timedelta(minutes=10)


def tenant_predicate() -> str | None:
    """Return the tenant that statements name explicitly, so that its index serves them; None in scope all."""
    if correlation.scope_all.get():
        return None
    return correlation.tenant.get() or correlation.DEFAULT_TENANT


def at_most(count: int) -> str:
    """Write a bounded count."""
    return f"{count}+" if count >= BOUND else str(count)


class JobLine(NamedTuple):
    """One job in a list."""

    id: UUID
    job_type: str
    queue: str
    tenant_id: str
    status: int
    priority: int
    attempt_count: int
    max_attempts: int
    created_at: datetime
    due_at: datetime | None
    finished_at: datetime | None
    error_code: str | None
    run_group: str | None
    name: str | None


def list_jobs(
    *,
    group_id: UUID | None = None,
    queue_id: int | None = None,
    type_id: int | None = None,
    status: Status | None = None,
    tag: str | None = None,
    after: UUID | None = None,
    limit: int,
    using: str,
) -> list[JobLine]:
    """List jobs, newest first, from *after* on; of a run group at the cost of all its members."""
    wanted: dict[str, Any] = {
        "queue_id": queue_id,
        "type_id": type_id,
        "status": status,
        "after": after,
        "limit": limit,
    }
    if group_id is not None:
        return db.fetch(
            "list_grouped", {**wanted, "group_id": group_id, "tag": tag}, JobLine._make, using=using
        )
    wanted["tenant"] = tenant_predicate()
    if tag is not None:
        return db.fetch("list_tagged", {**wanted, "tag": tag}, JobLine._make, using=using)
    return db.fetch("list_jobs", wanted, JobLine._make, using=using)


class EndedAttempt(NamedTuple):
    """One ended attempt with everything that was kept of it."""

    attempt_no: int
    state: int
    worker_id: UUID | None
    worker: str | None
    started_at: datetime | None
    completed_at: datetime
    duration_seconds: float | None
    error_code: str | None
    error: str | None
    traceback: str | None
    result: Any
    result_body: str | None
    log_tail: str | None


class Change(NamedTuple):
    """One recorded event of a job."""

    event: int
    occurred_at: datetime
    metadata: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Story:
    """A job with its history."""

    job: Job
    attempts: list[EndedAttempt]
    changes: list[Change]


def read_story(job_id: UUID, *, using: str) -> Story | None:
    """Read a job with its attempts and events; None when this tenant has none of that id."""
    job = look(job_id, using=using)
    if job is None:
        return None
    wanted = {"job_id": job_id, "limit": HISTORY_MAX}
    return Story(
        job,
        db.fetch("job_history", wanted, EndedAttempt._make, using=using),
        db.fetch("job_changes", wanted, Change._make, using=using),
    )


class QueueDepth(NamedTuple):
    """How much waits in a queue; a count of BOUND means that many or more."""

    id: int
    queue: str
    ageing_seconds: float | None
    lease_seconds: float | None
    ready: int
    scheduled: int
    # For what is not there yet, and behind what ended badly: up to BOUND of both, in all queues together.
    waiting: int
    blocked: int
    running: int
    failed: int
    dead_letter: int
    oldest_ready_seconds: float | None

    @property
    def counts(self) -> dict[str, int]:
        """The counts by status."""
        return {name: getattr(self, name) for name in COUNTED}


COUNTED = ("ready", "scheduled", "waiting", "blocked", "running", "failed", "dead_letter")
CLAIMED = "claimed: running, or held by a worker for its next free slot"


def heading(counted: str) -> str:
    """Name a count for people: jobs of status `running` are those claimed, and some still wait for a slot."""
    return "claimed" if counted == "running" else counted


def list_depths(*, using: str | db.Session) -> list[QueueDepth]:
    """Tell the depth of each queue."""
    return db.fetch(
        "queue_depths", {"tenant": tenant_predicate(), "bound": BOUND}, QueueDepth._make, using=using
    )


class ScheduleDepth(NamedTuple):
    """How many schedules of all tenants stand still, and for how long the tick that is due longest has waited."""

    disabled: int
    paused: int
    overdue_seconds: float


def read_schedule_depth(*, using: str | db.Session) -> ScheduleDepth:
    """Tell how the schedules stand."""
    return db.fetch("schedule_depths", {"bound": BOUND}, ScheduleDepth._make, using=using)[0]


class PauseLine(NamedTuple):
    """A pause in force, with names."""

    kind: str
    queue: str | None
    job_type: str | None
    tenant: str | None
    paused_at: datetime
    until: datetime | None
    by: str
    reason: str


def list_pauses(*, using: str | db.Session) -> list[PauseLine]:
    """List the pauses in force, oldest first."""
    return db.fetch("list_pauses", {}, PauseLine._make, using=using)


class WorkerLine(NamedTuple):
    """A worker; *state* is alive, draining, silent or stopped, by the database's clock."""

    id: UUID
    name: str
    host: str
    pid: int
    version: str
    queues: list[str]
    slots: int
    running: int
    held: int
    started_at: datetime
    heartbeat_at: datetime
    state: str
    silent_seconds: float

    @property
    def is_gone(self) -> bool:
        """It stopped, or has been silent for so long that nobody waits for it."""
        return self.state == "stopped" or (
            self.state == "silent" and self.silent_seconds > GONE_AFTER.total_seconds()
        )


def list_workers(*, using: str | db.Session, since: timedelta = WORKERS_SINCE) -> list[WorkerLine]:
    """List workers heard of within *since*, the living first."""
    return db.fetch("list_workers", {"since": since, "limit": WORKERS_MAX}, WorkerLine._make, using=using)


class LeaderLine(NamedTuple):
    """Who leads a duty, since when, and how long the lease still lasts: negative once nobody leads."""

    duty: str
    holder: UUID
    name: str
    epoch: int
    since: datetime
    seconds: float

    @property
    def leads(self) -> bool:
        """It led at the moment of the report."""
        return self.seconds > 0


def list_leaders(*, using: str | db.Session) -> list[LeaderLine]:
    """Tell who leads, or led last; nobody ever did before the first worker started."""
    return db.fetch("list_leaders", {}, LeaderLine._make, using=using)


def list_over_long(*, using: str | db.Session) -> list[OverLong]:
    """List attempts that run longer than they may, though their worker renews the lease, among BOUND of them."""
    grace, tenant = timedelta(seconds=settings().LEASE_SECONDS), tenant_predicate()
    timeout = settings().TIMEOUT_SECONDS
    return find_over_long(timeout=timeout, grace=grace, limit=BOUND, tenant=tenant, using=using)[0]


class Sample(NamedTuple):
    """How much stood in a queue at one moment; counts stop at a bound."""

    sampled_at: datetime
    ready: int
    scheduled: int
    running: int
    oldest_ready_seconds: float | None


def list_samples(queue_id: int, *, since: timedelta, using: str) -> list[Sample]:
    """List the samples of a queue, of all tenants together, oldest first: the newest BOUND of them."""
    wanted = {"queue_id": queue_id, "since": since, "limit": BOUND}
    return db.fetch("list_samples", wanted, Sample._make, using=using)


class Minute(NamedTuple):
    """What workers did in one minute."""

    bucket: datetime
    done: int
    retried: int
    failed: int
    dead: int
    cancelled: int
    run_seconds: float
    wait_seconds: float


def list_minutes(*, minutes: int, queue_id: int | None = None, using: str | db.Session) -> list[Minute]:
    """Tell what was done in each of the last minutes, of all tenants: counters know none."""
    assert 1 <= minutes <= 1440
    return db.fetch("throughput", {"queue_id": queue_id, "minutes": minutes}, Minute._make, using=using)


def count_ended(
    *,
    status: Status,
    queue: str | None = None,
    job_type: str | None = None,
    error_code: str | None = None,
    tag: str | None = None,
    limit: int = BOUND,
    using: str,
) -> int:
    """Count what a redrive with this filter would take, up to *limit*."""
    wanted = {
        "status": status,
        "queue": queue,
        "job_type": job_type,
        "error_code": error_code,
        "tag": tag,
        "limit": limit,
    }
    return int(db.fetch("count_ended", wanted, lambda row: row[0], using=using)[0])


class Server(NamedTuple):
    """What answers on an alias, and as whom pgbroker works there."""

    version: int
    username: str
    superuser: bool
    bypasses: bool
    schema: str | None


def read_server(*, using: str) -> Server:
    """Ask the server what the system checks must know."""
    return db.fetch("server", {}, Server._make, using=using)[0]


def total(minutes: Sequence[Minute]) -> dict[str, float]:
    """Add minutes up: counts, and mean run and wait of an attempt in seconds."""
    sums: dict[str, float] = {
        name: sum(getattr(each, name) for each in minutes)
        for name in ("done", "retried", "failed", "dead", "cancelled")
    }
    attempts = sum(sums.values())
    for name in ("run_seconds", "wait_seconds"):
        spent = sum(getattr(each, name) for each in minutes)
        sums[f"mean_{name}"] = round(spent / attempts, 6) if attempts else 0.0
    return sums


@contextmanager
def limited_time(limit: timedelta, *, using: str) -> Iterator[None]:
    """Let no statement inside take longer; raises Django's OperationalError. Nothing else is undone by it."""
    with limiting("statement_timeout", limit.total_seconds(), using=using):
        yield


# ------------------------------------------------------------------ a job's life in order


def moments(story: Story) -> list[Moment]:
    """Tell a job's life in order of time, as far as it was recorded."""
    job = story.job
    told = [Moment(job.created_at, "enqueued", f"in queue {job.queue}")]
    for each in story.attempts:
        where = f"on {each.worker}" if each.worker else ""
        if each.started_at is not None:
            told.append(Moment(each.started_at, f"attempt {each.attempt_no} started", where))
        ended = AttemptState(each.state).label
        if each.state == AttemptState.RELEASED:
            ended = "handed back, attempt not counted"
        told.append(Moment(each.completed_at, f"attempt {each.attempt_no} {ended}", each.error_code or ""))
    if job.status == Status.RUNNING and job.leased_at is not None:
        told.append(Moment(job.leased_at, f"attempt {job.attempt_count} claimed", f"by {who_runs(job)}"))
    told += [
        Moment(each.occurred_at, f"→ {EVENT_LABELS[each.event]}", _detail(each)) for each in story.changes
    ]
    if job.cancel_requested_at is not None and job.status == Status.RUNNING:
        told.append(Moment(job.cancel_requested_at, "cancel requested", job.reason or ""))
    return in_order(told)


def _detail(change: Change) -> str:
    if change.event != ON_EXHAUSTED or not isinstance(change.metadata, dict):
        return ""
    told = {name: change.metadata.get(name) for name in ("job_type", "job_id", "error_code", "error")}
    return " ".join(str(value) for value in told.values() if value)


def arguments_of(call: Any) -> Any:
    """Return what people are shown of a stored call: its arguments, or the `Reference` of a body as it is."""
    return {name: call.get(name) for name in ("args", "kwargs")} if isinstance(call, dict) else call


def who_runs(job: Job) -> str | None:
    """Name the worker that has a job as the list of workers does, with its process and id; None without one."""
    if job.worker_id is None:
        return None
    if job.worker is None:
        return str(job.worker_id)
    process = "" if job.worker == job.worker_process else f"{job.worker_process}, "
    return f"{job.worker} ({process}{job.worker_id})"


def spans(story: Story) -> list[Span]:
    """List a job's attempts as stretches of time; a running one has no end."""
    job = story.job
    found = []
    for each in story.attempts:
        state = AttemptState(each.state).label
        start = each.started_at or each.completed_at
        shown = "handed back, not counted" if each.state == AttemptState.RELEASED else state
        label = f"attempt {each.attempt_no}: {shown}"
        if each.duration_seconds is not None:
            label += f" after {each.duration_seconds:.3f} s"
        found.append(Span(start, max(start, each.completed_at), state, label))
    if job.status == Status.RUNNING and job.leased_at is not None:
        found.append(Span(job.leased_at, None, "running", f"attempt {job.attempt_count}: running"))
    return found

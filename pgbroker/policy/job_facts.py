"""What is true of a job, as far as it decides whether the job runs, and words for it. Pure."""

from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from pgbroker.policy.durations import roughly
from pgbroker.states import GroupState, Status

# Counts stop here, and are told as "10000+".
BOUND = 10_000
# Prerequisites, references and pauses that are named.
NAMED_MAX = 20


class Facts(NamedTuple):
    """What is true of a job at one moment, as `explain_job.sql` reads it."""

    job_id: UUID
    status: int
    queue: str
    job_type: str
    tenant_id: str
    now: datetime
    available_at: datetime | None
    deadline_at: datetime | None
    leased_at: datetime | None
    lease_expires_at: datetime | None
    cancel_requested_at: datetime | None
    finished_at: datetime | None
    attempt_count: int
    max_attempts: int
    worker_id: UUID | None
    worker: str | None
    reason_code: str | None
    reason: str | None
    by: str | None
    cause_id: UUID | None
    cause: dict[str, Any] | None
    last_state: int | None
    last_error_code: str | None
    unknown_times: int | None
    unknown_since: datetime | None
    pauses: list[dict[str, Any]] | None
    prerequisite_count: int
    prerequisites: list[dict[str, Any]] | None
    deferred: list[dict[str, Any]] | None
    expired: list[dict[str, Any]] | None
    workers: int
    draining: int
    slots: int
    busy: int
    ahead: int | None
    sees_all: bool


def prerequisite(each: dict[str, Any]) -> str:
    """Name something that is waited for, with where it is or how far."""
    if each["kind"] == "group":
        members, live, bad = each["members"], each["live"], each["bad"]
        done = (
            f"{many(live)} of {many(members)} members to end"
            if live
            else f"{many(members)} members, all over"
        )
        wrong = f", {many(bad)} ended badly" if bad else ""
        state = GroupState(each["status"]).label
        return f"run group {each['name']} ({each['id']}, {state}: {done}{wrong})"
    name = f"{each['group_name']}/{each['job_name']}, " if each["job_name"] else ""
    return f"job {each['id']} ({name}{each['name']}, {Status(each['status']).label})"


def reference(each: dict[str, Any], facts: Facts) -> str:
    """Name something that need not be there yet, with its deadline."""
    what = f"run group {each['group_name']}"
    if each["job_name"] is not None:
        what = f"job {each['job_name']} of {what}"
    return f"{what}, which is not there yet and must be {moment_words(time_of(each['deadline']), facts.now)}"


def named_cause(facts: Facts) -> str:
    """Name the job that was the first to go wrong; nothing where it is the prerequisite that was named already."""
    if facts.cause_id is None or facts.cause_id in ids_of(facts):
        return ""
    if facts.cause is None:
        return f" The cause is job {facts.cause_id}, which is not there any more."
    return f" The cause is job {facts.cause_id} ({facts.cause['job_type']}, {Status(facts.cause['status']).label})."


def because(facts: Facts) -> str:
    """Write the reason that was kept, after a colon; nothing where there is none."""
    return f": {facts.reason.rstrip('.')}" if facts.reason else ""


def slots_taken(facts: Facts) -> str:
    """Tell how busy the workers of the queue are."""
    workers = "1 worker" if facts.workers == 1 else f"{facts.workers} workers"
    return f"{min(facts.busy, facts.slots)} of the {facts.slots} slots of {workers} are taken"


def ids_of(facts: Facts, *more: UUID | None) -> tuple[UUID, ...]:
    """Return the ids of the prerequisites that are named, and of *more*, each once."""
    named = [UUID(each["id"]) for each in facts.prerequisites or []]
    return tuple(dict.fromkeys([*named, *filter(None, more)]))


def many(count: int) -> str:
    """Write a bounded count."""
    return f"{count}+" if count >= BOUND else str(count)


def time_of(text: str) -> datetime:
    """Read an instant as JSON has it."""
    return datetime.fromisoformat(text)


def moment_words(moment: datetime | None, now: datetime) -> str:
    """Write an instant, and how far from now it is."""
    if moment is None:
        return "at a time that is not known"
    seconds = (moment - now).total_seconds()
    away = f"in {roughly(seconds)}" if seconds > 0 else f"{roughly(-seconds)} ago"
    return f"at {moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({away})"


def since_words(moment: datetime | None, now: datetime) -> str:
    """Write an instant as what "since" is followed by."""
    return moment_words(moment, now).removeprefix("at ")


def upper(text: str) -> str:
    """Begin a sentence."""
    return text[:1].upper() + text[1:]

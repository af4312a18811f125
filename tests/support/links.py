"""Jobs and run groups that wait for each other: enqueue them, end them in each way, and let the passes come by."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction

from pgbroker.lease import Lease
from pgbroker.lifecycle.enqueue import Enqueued, enqueue_rows
from pgbroker.lifecycle.reconcile import START, reconcile, resolve_deferred
from pgbroker.lifecycle.release import release
from pgbroker.lifecycle.resolve import resolve
from pgbroker.lifecycle.settle import settle
from pgbroker.models import DeferredReference, Job, JobDependency, JobState, RunGroup, Unresolved
from pgbroker.states import GroupState, Status
from pgbroker.tenancy import scope_all
from tests.support.jobs import (
    TYPE,
    WORKER,
    claim_many,
    completed,
    failed,
    guards_off,
    queue_id,
    snoozed,
    type_id,
)

COMPLETED, FAILED, DEAD, CANCELLED = Status.COMPLETED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED
READY, WAITING, SCHEDULED, BLOCKED = Status.READY, Status.WAITING, Status.SCHEDULED, Status.BLOCKED

# Every table that an enqueue, a group or an edge may write to.
TABLES = (
    "job", "job_payload", "job_state", "job_tag", "job_event", "idempotency", "run_group", "job_dependency",
    "deferred_reference", "unresolved", "edge_check", "queue_priority",
)  # fmt: skip


def count_all() -> dict[str, int]:
    """Count the rows of all tenants in every table that a call may write to."""
    with scope_all(), connection.cursor() as cursor:
        counts = ", ".join(f"(select count(*) from pgbroker.{table})" for table in TABLES)
        cursor.execute(f"select {counts}")
        return dict(zip(TABLES, cursor.fetchone(), strict=True))


# ------------------------------------------------------------------ enqueue


def links(*rows: dict[str, Any]) -> list[Enqueued]:
    """Enqueue rows of the type `tests.ok` in one call, and return the answers."""
    queue_id(), type_id()
    return enqueue_rows([{"job_type": TYPE, **row} for row in rows])


def job(*depends_on: Any, **options: Any) -> UUID:
    """Enqueue one job that waits for these: ids, or references as an entry has them."""
    (answer,) = links({**options, "depends_on": [_reference(each) for each in depends_on]})
    assert answer.outcome == "created", answer
    return answer.job_id


def refusal(*depends_on: Any, **options: Any) -> tuple[str, str]:
    """Enqueue one job that is refused, which must leave nothing behind; returns the code and the words."""
    queue_id(options.get("queue", "default")), type_id()
    before = count_all()
    (answer,) = links({**options, "depends_on": [_reference(each) for each in depends_on]})
    assert answer.refused, answer
    assert count_all() == before
    return answer.outcome, answer.detail or ""


def _reference(each: Any) -> Any:
    return str(each) if isinstance(each, UUID) else each


def ask(sql: str, *parameters: Any) -> Any:
    """Run a statement as anybody in psql might, and return the first value of its first row."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchone()[0]


def refused(sql: str, *parameters: Any) -> tuple[str, str]:
    """Run a statement that a rule refuses, which must leave nothing behind; returns the code and the words."""
    before = count_all()
    with pytest.raises(DatabaseError) as caught, transaction.atomic():
        ask(sql, *parameters)
    error = caught.value.__cause__
    assert isinstance(error, psycopg.Error)
    assert error.sqlstate == "PB001", error
    assert count_all() == before
    return error.diag.message_hint or "", error.diag.message_primary or ""


# ------------------------------------------------------------------ groups

OPEN = "select pgbroker.open_group_1(%s, %s::jsonb)"
SEAL = "select pgbroker.seal_group_1(%s)"
ADD = "select pgbroker.add_dependencies_1(%s, %s::jsonb, %s)"


def open_group(name: str = "g", *depends_on: Any, **options: Any) -> UUID:
    """Open a run group that waits for these, and return its id."""
    queue_id(), type_id()
    return ask(OPEN, name, group_options(*depends_on, **options))


def group_options(*depends_on: Any, **options: Any) -> str:
    """Write the options of a group as open_group_1 takes them."""
    given = {"depends_on": [_reference(each) for each in depends_on]} if depends_on else {}
    return json.dumps({**given, **options})


def seal(group_id: UUID) -> GroupState:
    """Seal a group; returns its state, which is an end already where it is empty."""
    return GroupState(ask(SEAL, group_id))


def add(job_id: UUID, *depends_on: Any, on_failure: str = "cancel") -> int:
    """Make a job wait for more, as SQL callers do; returns how many edges are new."""
    return int(ask(ADD, job_id, json.dumps([_reference(each) for each in depends_on]), on_failure))


def sealed_group(name: str = "g", *members: dict[str, Any], **options: Any) -> tuple[UUID, list[UUID]]:
    """Open a group, enqueue its members and seal it; returns its id and theirs."""
    group_id = open_group(name, **options)
    answers = links(*({"group": name, **member} for member in members)) if members else []
    assert all(answer.made for answer in answers), answers
    seal(group_id)
    return group_id, [answer.job_id for answer in answers]


def group(group_id: UUID) -> RunGroup:
    """Read a group as it is now, of whichever tenant."""
    with scope_all():
        return RunGroup.objects.get(pk=group_id)


def state(group_id: UUID) -> GroupState:
    """Read where a group is now."""
    return GroupState(group(group_id).state)


# ------------------------------------------------------------------ what is stored


def edges(dependent: UUID) -> dict[UUID, tuple[int, bool]]:
    """Read what a job or a group waits for: the outcome of each prerequisite, and whether that is satisfied."""
    with scope_all():
        return {
            edge.prerequisite_id: (edge.outcome, edge.satisfied_at is not None)
            for edge in JobDependency.objects.filter(dependent_id=dependent)
        }


def levels(*job_ids: UUID) -> list[int]:
    """Read the level of jobs: how long the longest chain is that ends in each. 0 waits for nothing."""
    with scope_all():
        return [
            max(JobDependency.objects.filter(dependent_id=each).values_list("level", flat=True), default=0)
            for each in job_ids
        ]


def why(job_id: UUID) -> tuple[str, UUID | None] | None:
    """Read why a job is where it is: the code, and the job that was the first to go wrong."""
    with scope_all():
        return JobState.objects.filter(job=job_id).values_list("reason_code", "cause_id").first()


def statuses(*job_ids: UUID) -> list[Status]:
    """Read where jobs are now, of whichever tenant."""
    with scope_all():
        found = dict(Job.objects.filter(pk__in=job_ids).values_list("pk", "status"))
    return [Status(found[each]) for each in job_ids]


# ------------------------------------------------------------------ let time pass, and jobs end


def end(*job_ids: UUID, status: Status = COMPLETED) -> None:
    """
    End jobs in one statement, whatever they are doing: where only the end matters, not the way there.

    What follows from it follows as ever: those are no guards.
    """
    with guards_off(), connection.cursor() as cursor:
        cursor.execute(
            "update pgbroker.job set status = %s, finished_at = statement_timestamp(), available_at = null, "
            "ready_at = coalesce(ready_at, statement_timestamp()), worker_id = null, lease_expires_at = null "
            "where id = any (%s)",
            (int(status), list(job_ids)),
        )
        assert cursor.rowcount == len(set(job_ids))


def run(*job_ids: UUID, how: Status = COMPLETED) -> None:
    """Claim jobs, which must be ready, and settle them in one batch: completed, or failed with no retry."""
    leases = claim(*job_ids)
    match how:
        case Status.COMPLETED:
            outcomes = [completed(lease) for lease in leases]
        case Status.FAILED:
            outcomes = [failed(lease, permanent=True) for lease in leases]
        case Status.DEAD_LETTER:
            outcomes = [failed(lease, dead=True) for lease in leases]
        case Status.SCHEDULED:
            outcomes = [snoozed(lease) for lease in leases]
    assert {answer.status for answer in settle(outcomes)} == {how}


def claim(*job_ids: UUID, worker_id: UUID = WORKER) -> list[Lease]:
    """Claim these jobs, which must be ready, in the order asked for; others that are ready stay so."""
    leases = {lease.job_id: lease for lease in claim_many(1000, worker_id=worker_id)}
    assert set(job_ids) <= set(leases), "not ready"
    release([(lease, None) for job_id, lease in leases.items() if job_id not in job_ids], code="drain")
    return [leases[job_id] for job_id in job_ids]


def passes(*, limit: int = 500) -> int:
    """Let passes come by until nothing is left to look at, whatever is to wait for a moment; returns how many came."""
    for number in range(200):
        with scope_all(), connection.cursor() as cursor:
            cursor.execute("update pgbroker.unresolved set not_before = statement_timestamp()")
        if resolve(limit=limit) == (0, False):
            return number
    raise AssertionError("there is always something left")


def left() -> int:
    """Count what is left to a pass."""
    with scope_all():
        return Unresolved.objects.count()


def repaired(*, limit: int = 500) -> list[UUID]:
    """Let the reconciler look at everything once; returns what it repaired."""
    found: list[UUID] = []
    after: UUID | None = START
    while after is not None:
        after, some = reconcile(after=after, limit=limit)
        found += some
    return found


def deferred(*, limit: int = 500) -> int:
    """Let the reconciler look at references to what is still to come; returns how many came to an end."""
    after: int | None = 0
    came = 0
    while after is not None:
        after, some = resolve_deferred(after=after, limit=limit)
        came += some
    return came


def deadlines_pass(*job_ids: UUID) -> None:
    """Let the deadlines of deferred references pass: move their times back."""
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(
            "update pgbroker.deferred_reference set deadline_at = deadline_at - interval '100 years' "
            "where dependent_id = any (%s)",
            [list(job_ids)],
        )


def references(dependent: UUID) -> list[tuple[str, str | None]]:
    """Read what a job still waits for by name."""
    with scope_all():
        rows = DeferredReference.objects.filter(dependent_id=dependent, expired_at=None).order_by("id")
        return list(rows.values_list("group_name", "job_name"))

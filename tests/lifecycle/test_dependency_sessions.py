"""
Random work by two sessions whose transactions overlap, with workers and passes between: nobody is missed.

What a session cannot do at once it leaves; a worker must never have to. `PGBROKER_MACHINE_EXAMPLES` makes the search
longer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import errors

from pgbroker import db
from pgbroker.lifecycle.claim import claim
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.resolve import resolve
from pgbroker.lifecycle.settle import settle
from pgbroker.models import Execution, Job, JobDependency, JobPayload, RunGroup
from pgbroker.states import RETRYABLE, TERMINAL, GroupState, Status
from pgbroker.tenancy import scope_all
from pgbroker.testing import flush, guards_off
from tests.support.jobs import (
    AGEING,
    LEASE,
    TYPE,
    WORKER,
    completed,
    failed,
    queue_id,
    reason,
    snoozed,
    type_id,
)
from tests.support.links import deadlines_pass, deferred, passes, repaired, why
from tests.support.order import assert_in_order, assert_nothing_starts_too_early
from tests.support.sessions import second_session

EXAMPLES = max(1, int(os.environ.get("PGBROKER_MACHINE_EXAMPLES", "40")) // 2)
POLICIES = ("cancel", "block", "ignore")
DEEDS = (
    "turn", "turn", "enqueue", "enqueue", "enqueue", "open", "seal", "add", "cancel", "retry", "unblock",
    "cancel group", "work", "work", "work", "pass", "references",
)  # fmt: skip
# What one session leaves when the other is at it.
BUSY = (errors.LockNotAvailable, errors.DeadlockDetected)

pytestmark = pytest.mark.django_db(transaction=True)


class Clients:
    """Two sessions; each has a transaction open, or commits what it does."""

    def __init__(self, stack: ExitStack) -> None:
        self.sessions = [stack.enter_context(second_session("default")) for _ in range(2)]
        for session in self.sessions:
            session.execute("set lock_timeout = '50ms'")

    def turn(self, number: int, keep: bool) -> None:
        """Begin a transaction, or end the one that is open."""
        session = self.sessions[number]
        if session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            session.execute("begin")
        else:
            # Deferred to the commit: somebody may be at what the new edges lead to.
            with suppress(*BUSY):
                session.execute("commit" if keep else "rollback")

    def call(self, number: int, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Call a function; nothing where the other session is at it, or a rule is against it."""
        session = self.sessions[number]
        try:
            with session.transaction():
                return session.execute(sql, parameters).fetchall()
        except BUSY:
            return []
        except errors.Error as error:
            if error.sqlstate != "PB001":
                raise
            return []

    def end_all(self) -> None:
        for session in self.sessions:
            if session.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                with suppress(*BUSY):
                    session.execute("commit")


def names() -> list[str]:
    with scope_all():
        return list(RunGroup.objects.order_by("name").values_list("name", flat=True))


def ids(*statuses: Status) -> list[UUID]:
    with scope_all():
        found = Job.objects.filter(status__in=statuses) if statuses else Job.objects.all()
        return list(found.order_by("created_at", "id").values_list("pk", flat=True))


def references(draw: st.DataObject) -> list[Any]:
    """Some of what everybody sees, and of what nobody does."""
    some = [*({"job": str(each)} for each in ids()), *({"group": each} for each in [*names(), "g1", "later"])]
    chosen = draw.draw(st.lists(st.sampled_from(some), max_size=3), label="references")
    return [
        {
            **each,
            "on_failure": draw.draw(st.sampled_from(POLICIES)),
            **({"within_seconds": 3600} if "group" in each and draw.draw(st.booleans()) else {}),
        }
        for each in chosen
    ]


def act(clients: Clients, worker: db.Session, draw: st.DataObject) -> None:
    """Let one of them do something."""
    number = draw.draw(st.integers(0, 1), label="session")
    what = draw.draw(st.sampled_from(DEEDS), label="what")
    match what:
        case "turn":
            clients.turn(number, keep=draw.draw(st.booleans()))
        case "enqueue":
            group = draw.draw(st.sampled_from([None, None, *names()]))
            rows = [
                {"job_type": TYPE, "group": group, "depends_on": references(draw), "max_attempts": 2}
                for _ in range(draw.draw(st.integers(1, 2)))
            ]
            clients.call(number, "select * from pgbroker.enqueue_many_1(%s::jsonb)", json.dumps(rows))
        case "open":
            name = f"g{len(names())}"
            options = {
                "depends_on": [each for each in references(draw) if "within_seconds" not in each],
                "on_failure": draw.draw(st.sampled_from(POLICIES)),
                "tolerate_count": draw.draw(st.integers(0, 1)),
                "on_completed": {"job_type": TYPE, "correlation_id": f"{name} completed"},
                "on_failed": {"job_type": TYPE, "correlation_id": f"{name} failed"},
            }
            clients.call(number, "select pgbroker.open_group_1(%s, %s::jsonb)", name, json.dumps(options))
        case "seal" | "cancel group":
            with scope_all():
                groups = list(
                    RunGroup.objects.filter(state__lt=10).order_by("name").values_list("pk", flat=True)
                )
            if groups:
                sql = (
                    "select pgbroker.seal_group_1(%s)"
                    if what == "seal"
                    else "select pgbroker.cancel_group_1(%s, '', '', 10)"
                )
                clients.call(number, sql, draw.draw(st.sampled_from(groups)))
        case "add" | "cancel" | "retry" | "unblock":
            change(clients, number, what, draw)
        case "work":
            work(worker, draw)
        case "pass":
            resolve(limit=draw.draw(st.integers(1, 30)), using=worker)
        case "references":
            deferred()


def change(clients: Clients, number: int, what: str, draw: st.DataObject) -> None:
    live = (Status.SCHEDULED, Status.WAITING, Status.READY, Status.BLOCKED)
    some = ids(*{"add": live, "cancel": live, "retry": sorted(RETRYABLE), "unblock": [Status.BLOCKED]}[what])
    if not some:
        return
    chosen = draw.draw(st.sampled_from(some))
    if what == "add":
        sql = "select pgbroker.add_dependencies_1(%s, %s::jsonb, 'cancel')"
        clients.call(number, sql, chosen, json.dumps(references(draw)))
    elif what == "unblock":
        clients.call(number, "select * from pgbroker.unblock_1(%s)", [chosen])
    else:
        named = {"job_ids": [chosen], **({"attempts": 1} if what == "retry" else {"reason": "", "by": ""})}
        session = clients.sessions[number]
        with suppress(*BUSY), session.transaction():
            session.execute(db.sql.load(what).text, named)


def work(worker: db.Session, draw: st.DataObject) -> None:
    """Run what is ready, each to an end of its own. A worker has half a second for what takes milliseconds."""
    for lease in claim_some(worker):
        outcome = draw.draw(
            st.sampled_from(
                [
                    completed(lease), completed(lease), failed(lease, permanent=True), failed(lease, dead=True),
                    failed(lease), snoozed(lease),
                ]
            ),
            label="outcome",
        )  # fmt: skip
        assert len(settle([outcome], using=worker)) == 1


def claim_some(worker: db.Session, limit: int = 2) -> list[Any]:
    with guards_off(), connection.cursor() as cursor:
        cursor.execute(
            "update pgbroker.job set available_at = available_at - interval '1 day' where id in "
            "(select id from pgbroker.job where status = 0 for update skip locked)"
        )
    promote([queue_id()], limit=10, using=worker)
    leases = claim(
        queue_id(), limit=limit, idle=limit, quick=[type_id()], worker_id=WORKER, lease=LEASE, ageing=AGEING,
        max_crashes=3, suspects=limit, using=worker,
    )  # fmt: skip
    assert_nothing_starts_too_early()
    return leases


def come_to_an_end(worker: db.Session) -> None:
    """Let everything happen that is to happen: groups are sealed, deadlines pass, what is ready completes."""
    with scope_all():
        open_groups = list(RunGroup.objects.filter(state=GroupState.OPEN).values_list("pk", flat=True))
    for group_id in open_groups:
        with second_session("default") as session:
            session.execute("select pgbroker.seal_group_1(%s)", (group_id,))
    for _ in range(200):
        passes()
        deferred()
        leases = claim_some(worker, 20)
        settle([completed(lease) for lease in leases], using=worker)
        if not leases and not ids(Status.SCHEDULED):
            deadlines_pass(*ids())
            if not deferred():
                break
    passes()


def check() -> None:
    assert repaired() == []
    with scope_all():
        assert_in_order()
        for job_id, where in Job.objects.values_list("pk", "status"):
            status = Status(where)
            assert status in TERMINAL | {Status.BLOCKED, Status.WAITING}, status.label
            if status == Status.BLOCKED:
                assert reason(job_id) in ("prerequisite_failed", "reference_expired")
            if status == Status.WAITING:
                assert waits_for_something_blocked(job_id)
            if status == Status.CANCELLED:
                assert why(job_id) is not None
        ran = dict(Execution.objects.order_by("started_at").values_list("job", "started_at"))
        for edge in JobDependency.objects.filter(dependent_id__in=list(ran)):
            if edge.created_at > ran[edge.dependent_id]:
                # Added to a job that had failed once, and did not run again.
                continue
            assert edge.satisfied_at is not None
            assert edge.satisfied_at <= ran[edge.dependent_id] + timedelta(seconds=1)
        called = list(
            JobPayload.objects.exclude(correlation_id=None).values_list("correlation_id", flat=True)
        )
        assert len(called) == len(set(called))


def waits_for_something_blocked(job_id: UUID) -> bool:
    """Follow what a job waits for, until one is blocked: a person has to decide about that one."""
    seen, left = set(), [job_id]
    while left:
        here = left.pop()
        seen.add(here)
        open_edges = JobDependency.objects.filter(dependent_id=here, satisfied_at=None)
        nearer = set(open_edges.values_list("prerequisite_id", flat=True))
        nearer |= set(Job.objects.filter(run_group_id=here, status__lt=10).values_list("pk", flat=True))
        if Job.objects.filter(pk__in=nearer, status=Status.BLOCKED).exists():
            return True
        # A group without members is blocked itself.
        sealed = RunGroup.objects.filter(pk=here, state=GroupState.SEALED).exists()
        if sealed and open_edges.filter(outcome__gt=0).exists():
            return True
        left += nearer - seen
    return False


@pytest.fixture
def worker() -> Iterator[db.Session]:
    session = db.Session("default", purpose="sessions", lock_timeout="500ms")
    yield session
    session.drop()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.data(), steps=st.integers(5, 30))
def test_two_sessions_with_open_transactions_and_workers_leave_nobody_behind(draw, steps, worker):
    flush()
    queue_id(), type_id()
    with ExitStack() as stack:
        clients = Clients(stack)
        for _ in range(steps):
            act(clients, worker, draw)
        clients.end_all()
    come_to_an_end(worker)

    check()

"""The verdict, from the rows alone: the ledger says what was accepted, the tables say what became of it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection

from pgbroker.bodies import Reference, chosen_storage
from pgbroker.conf import settings
from pgbroker.errors import PgBrokerError
from pgbroker.states import TERMINAL, AttemptState, Status
from pgbroker.tenancy import scope_all

# Attempts that ended with nobody there to say how: only these may have done their work unseen.
LOST = {AttemptState.CRASHED, AttemptState.LEASE_EXPIRED}
# Attempts that a settle ended, which counts them too.
SETTLED = {
    AttemptState.COMPLETED,
    AttemptState.FAILED,
    AttemptState.TIMED_OUT,
    AttemptState.CANCELLED,
    AttemptState.SNOOZED,
}


@dataclass(kw_only=True)
class Verdict:
    """What became of every job. `trouble` names the first few that were wronged, and how."""

    jobs: int = 0
    # Accepted, and not there; or ended otherwise than it had to.
    lost: int = 0
    # Settled, run under one lease, or stored twice.
    doubled: int = 0
    # Not ended, though everybody had time.
    stranded: int = 0
    # History, events or counters that do not add up.
    inconsistent: int = 0
    attempts: dict[str, int] = field(default_factory=dict)
    # Effects of attempts that came to nothing, by how the attempt ended: at least once, not exactly once.
    repeated: dict[str, int] = field(default_factory=dict)
    # Files that rows name, all of which must be there; and those that no row names, left by whoever died.
    bodies: int = 0
    bodies_left: int = 0
    trouble: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """True when nobody was wronged."""
        return not (self.lost or self.doubled or self.stranded or self.inconsistent)

    def blame(self, kind: str, job_id: UUID, what: str) -> None:
        """Count one that was wronged."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.trouble) < 20:
            self.trouble.append(f"{kind}: {job_id}: {what}")


@dataclass
class _History:
    """What the tables say of one job."""

    status: Status
    attempt_count: int
    executions: list[tuple[int, AttemptState]] = field(default_factory=list)
    effects: list[tuple[int, int]] = field(default_factory=list)
    events: Counter[int] = field(default_factory=Counter)

    def states_of(self, attempt: int) -> list[AttemptState]:
        return [state for number, state in self.executions if number == attempt]


def verdict(accepted: Mapping[UUID, Status | None]) -> Verdict:
    """Compare the ledger, which says of each job how it must end (None: somehow), with the tables."""
    found = Verdict(jobs=len(accepted))
    histories = _read()
    for job_id in accepted.keys() - histories.keys():
        found.blame("lost", job_id, "accepted, and there is no such job")
    for job_id, history in histories.items():
        if job_id in accepted:
            _judge(found, job_id, accepted[job_id], history)
        else:
            found.blame("doubled", job_id, "nobody was told of this job")
    _judge_counters(found, histories, meddled=None in accepted.values())
    _judge_bodies(found)
    found.attempts = _by_label(state for each in histories.values() for _, state in each.executions)
    return found


def _judge(found: Verdict, job_id: UUID, ends: Status | None, history: _History) -> None:
    if history.status not in TERMINAL:
        found.blame("stranded", job_id, f"{history.status.label} after {history.attempt_count} attempts")
        return
    if ends is not None and history.status != ends:
        states = [state.label for _, state in sorted(history.executions)]
        found.blame("lost", job_id, f"{history.status.label}, not {ends.label}: {states}")
    completed = [number for number, state in history.executions if state == AttemptState.COMPLETED]
    # A job that was cancelled while it completed may be retried, and complete again.
    if len(completed) > 1 and ends is not None:
        found.blame("doubled", job_id, f"attempts {completed} completed")
    for (_, token), times in Counter(history.effects).items():
        if times > 1:
            found.blame("doubled", job_id, f"ran {times} times under token {token}")
    if sorted(number for number, _ in history.executions) != [*range(1, history.attempt_count + 1)]:
        found.blame("inconsistent", job_id, f"{history.attempt_count} attempts, {history.executions}")
    done = {number for number, _ in history.effects}
    if completed and completed[0] not in done:
        found.blame("inconsistent", job_id, "completed without its effect")
    _judge_events(found, job_id, history, meddled=ends is None)
    for number in done - {*completed}:
        for state in history.states_of(number):
            if len(done) > 1:
                found.repeated[state.label] = found.repeated.get(state.label, 0) + 1


def _judge_events(found: Verdict, job_id: UUID, history: _History, *, meddled: bool) -> None:
    """Each claim entered running, and was ready before; one end, and that is the job's. A retry begins anew."""
    events = history.events
    if meddled:
        if not (events[Status.RUNNING] == history.attempt_count and events[history.status]):
            found.blame("inconsistent", job_id, f"{history.attempt_count} attempts, events {dict(events)}")
        return
    ends = [Status(event).label for event in events.elements() if event in TERMINAL]
    if ends != [history.status.label]:
        found.blame("inconsistent", job_id, f"its events end it as {ends}")
    if not events[Status.RUNNING] == events[Status.READY] == history.attempt_count:
        found.blame("inconsistent", job_id, f"{history.attempt_count} attempts, events {dict(events)}")


def _judge_counters(found: Verdict, histories: Mapping[UUID, _History], *, meddled: bool) -> None:
    (row,) = rows(
        "select sum(done), sum(done + retried + snoozed + failed + dead + cancelled) from pgbroker.job_counter"
    )
    done, all_ends = (int(each or 0) for each in row)
    states = [state for each in histories.values() for _, state in each.executions]
    completed, settled = states.count(AttemptState.COMPLETED), sum(state in SETTLED for state in states)
    # What completed although somebody had asked to cancel it is counted as cancelled.
    if all_ends != settled or (done != completed and not meddled):
        told = f"counters say {(done, all_ends)}, the history {(completed, settled)}"
        found.blame("inconsistent", UUID(int=0), told)


def _judge_bodies(found: Verdict) -> None:
    named = rows(
        "select job_id, tenant_id, args_body, args from pgbroker.job_payload where args_body is not null "
        "union all select job_id, tenant_id, result_body, result from pgbroker.execution where result_body is not null"
    )
    for job_id, tenant, name, stored in named:
        try:
            Reference(name, json.loads(stored), tenant).read()
        except PgBrokerError as error:
            found.blame("inconsistent", job_id, f"a body cannot be read: {error}")
    found.bodies = len(named)
    if settings().BODY_STORAGE:
        kept = Path(chosen_storage().path(""))
        found.bodies_left = sum(each.is_file() for each in kept.rglob("*")) - len(
            {name for _, _, name, _ in named}
        )


def _read() -> dict[UUID, _History]:
    histories = {
        job_id: _History(Status(status), attempts)
        for job_id, status, attempts in rows("select id, status, attempt_count from pgbroker.job")
    }
    for job_id, number, state in rows("select job_id, attempt_no, state from pgbroker.execution"):
        histories[job_id].executions.append((number, AttemptState(state)))
    for job_id, number, token in rows("select job_id, attempt_no, lease_token from public.chaos_effect"):
        histories[job_id].effects.append((number, token))
    for job_id, event in rows("select job_id, event from pgbroker.job_event"):
        histories[job_id].events[event] += 1
    return histories


def rows(query: str) -> list[tuple[Any, ...]]:
    """Read rows of all tenants."""
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()


def _by_label(states: Any) -> dict[str, int]:
    counted: defaultdict[str, int] = defaultdict(int)
    for state in states:
        counted[state.label] += 1
    return dict(sorted(counted.items()))


def completed_by_second(zero: float) -> dict[int, int]:
    """Count completions by second of the database's clock; *zero* is where second 0 begins, in Unix time."""
    return {
        int(second): int(count)
        for second, count in rows(
            f"select floor(extract(epoch from completed_at) - {zero:f}), count(*) "  # noqa: S608 - a number
            "from pgbroker.execution where state = 1 group by 1"
        )
    }

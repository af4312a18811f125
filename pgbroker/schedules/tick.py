"""The pass over schedules that are due: look, decide, dispatch, a bounded page at a time. Safe to run by many."""

import time
from collections.abc import Container, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import psycopg

from pgbroker import db, telemetry
from pgbroker.conf import settings
from pgbroker.lifecycle.dispatch import Decision, Occurrence, dispatch
from pgbroker.lifecycle.notify import notify
from pgbroker.lifecycle.take_due import BEGINNING, Due, list_zones, take_due, take_stale
from pgbroker.policy.cron import zones
from pgbroker.schedules.decide import decide, planned_anew
from pgbroker.schedules.tell import keys_of, tell

# Schedules that one look finds: others enqueue beside it, and wait for what a commit has to write. A page creates at
# most so many occurrences for each, and is over long before the lease.
PAGE, OCCURRENCES_EACH = 250, 2


class Ticked(NamedTuple):
    """What a page did; *after* is where the next one goes on, None when that was all that was due."""

    seen: int
    created: int
    after: tuple[datetime, UUID] | None


def tick(
    *,
    limit: int = PAGE,
    after: tuple[datetime, UUID] = BEGINNING,
    avoid: Container[UUID] = (),
    using: str | db.Session = "default",
) -> Ticked:
    """
    Decide about a page of schedules that are due, and create what their ticks are for, in one transaction.

    Safe to do twice, and by several at once: a decision about a row that has changed meanwhile does nothing, and an
    occurrence is created once. Call it again with *after* until that is None. Those to *avoid* are passed over.
    """
    found, due, decisions = _looked(limit, after, avoid, using)
    occurrences = _done(due, decisions, using)
    return Ticked(
        len(decisions), _created(occurrences), _goes_on(found, due, decisions, limit, moved=bool(occurrences))
    )


def tick_apart(
    *,
    limit: int = PAGE,
    after: tuple[datetime, UUID] = BEGINNING,
    avoid: Container[UUID] = (),
    using: db.Session,
) -> tuple[Ticked, set[UUID]]:
    """
    Do as `tick` does, each schedule in a transaction of its own: when a page as a whole has failed.

    Returns those too that failed by themselves, which were told.
    """
    found, due, decisions = _looked(limit, after, avoid, using)
    broken: set[UUID] = set()
    occurrences: list[Occurrence] = []
    for decision in decisions:
        try:
            occurrences += _done(due, [decision], using)
        except psycopg.Error as error:
            if not may_be_a_row(error):
                raise
            broken.add(decision.id)
            telemetry.emit(
                "schedule.failed",
                **keys_of(due[decision.id]),
                error_code=type(error).__name__,
                error=str(error).strip(),
            )
    in_turn = [each for each in found if each.in_turn]
    goes_on = in_turn[-1].place if len(in_turn) == limit and len(decisions) == len(due) else None
    return Ticked(len(decisions), _created(occurrences), goes_on), broken


def may_be_a_row(error: psycopg.Error) -> bool:
    """Tell whether one row, or too large a page, may be to blame, and not the connection, the schema or a right."""
    if isinstance(error, (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable)):
        return True
    return (
        isinstance(error, psycopg.DatabaseError)
        and not isinstance(error, psycopg.OperationalError)
        # Syntax, names and rights; what the server cannot do.
        and (error.sqlstate or "42")[:2] not in {"42", "0A"}
    )


def replan(*, limit: int = PAGE, using: str | db.Session = "default") -> int:
    """
    Work out next ticks anew that were worked out by other rules of their time zone; returns how many.

    From what has been decided upon last: a tick that the new rules put into the time since then is due at once.
    Fewer than *limit*: there is no more.
    """
    planned = 0
    for name, rules in list_zones(using=using):
        if name not in zones.names() or zones.load(name).fingerprint == rules or planned >= limit:
            continue
        stale = take_stale(name, zones.load(name).fingerprint, limit=limit - planned, using=using)
        decisions = [planned_anew(each) for each in stale]
        dispatch(decisions, using=using)
        tell({each.id: each for each in stale}, decisions, [])
        planned += len(stale)
    return planned


def _looked(
    limit: int, after: tuple[datetime, UUID], avoid: Container[UUID], using: str | db.Session
) -> tuple[list[Due], dict[UUID, Due], list[Decision]]:
    found = take_due(limit=limit, after=after, using=using)
    due = {each.id: each for each in found if each.id not in avoid}
    decisions: list[Decision] = []
    room = limit * OCCURRENCES_EACH
    for each in due.values():
        if room <= 0:
            # Left for the next page.
            break
        decision = decide(each, limit=room)
        room -= len(decision.create)
        decisions.append(decision)
    return found, due, decisions


def _done(
    due: Mapping[UUID, Due], decisions: Sequence[Decision], using: str | db.Session
) -> list[Occurrence]:
    began = time.monotonic()
    occurrences = dispatch(decisions, using=using)
    took = time.monotonic() - began
    wake(occurrences, using=using)
    if decisions and telemetry.wanted("batch.dispatched"):
        telemetry.emit("batch.dispatched", batch=occurrences, duration_seconds=took)
    tell(due, decisions, occurrences)
    return occurrences


def _created(occurrences: Sequence[Occurrence]) -> int:
    return sum(each.state == "created" for each in occurrences)


def _goes_on(
    found: Sequence[Due], due: Mapping[UUID, Due], decisions: Sequence[Decision], limit: int, *, moved: bool
) -> tuple[datetime, UUID] | None:
    decided = {each.id: each for each in decisions}
    in_turn = [each for each in found if each.in_turn]
    left = len(decided) < len(due) or any(_unfinished(decided[each], due[each]) for each in decided)
    # Where nothing moved somebody holds what is left: it is passed over for now.
    if left and moved:
        # From the beginning: those left out, and those with more ticks than a page may create, are due still.
        return BEGINNING
    return in_turn[-1].place if len(in_turn) == limit else None


def _unfinished(decision: Decision, due: Due) -> bool:
    return decision.next_run_at is not None and decision.next_run_at <= due.now


def wake(occurrences: Sequence[Occurrence], *, using: str | db.Session) -> None:
    """Wake the workers of queues that have got jobs, once those are committed."""
    if not settings().NOTIFY:
        return
    queues = sorted({queue for each in occurrences for queue in each.queues or ()})
    if not queues:
        return
    try:
        notify(queues, using=using)
    except Exception as error:
        if not isinstance(using, db.Session):
            raise
        # Polling finds the jobs.
        telemetry.emit(
            "notify.failed", queue=",".join(queues), error_code=type(error).__name__, alias=using.alias
        )

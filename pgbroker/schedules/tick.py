"""The pass over schedules that are due: look, decide, dispatch, a bounded page at a time. Safe to run by many."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from pgbroker import db, telemetry
from pgbroker.conf import settings
from pgbroker.lifecycle.dispatch import Decision, Occurrence, dispatch
from pgbroker.lifecycle.notify import notify
from pgbroker.lifecycle.take_due import BEGINNING, Due, take_due
from pgbroker.schedules.decide import decide
from pgbroker.schedules.tell import tell

# Schedules that one look finds, and occurrences that one page creates: a page is over long before the lease is.
PAGE, MOST_CREATED = 500, 1000


class Ticked(NamedTuple):
    """What a page did; *after* is where the next one goes on, None when that was all that was due."""

    seen: int
    created: int
    after: tuple[datetime, UUID] | None


def tick(
    *,
    limit: int = PAGE,
    after: tuple[datetime, UUID] = BEGINNING,
    using: str | db.Session = "default",
) -> Ticked:
    """
    Decide about a page of schedules that are due, and create what their ticks are for, in one transaction.

    Safe to do twice, and by several at once: a decision about a row that has changed meanwhile does nothing, and an
    occurrence is created once. Call it again with *after* until that is None.
    """
    found = take_due(limit=limit, after=after, using=using)
    due = {each.id: each for each in found}
    decisions = decisions_of(list(due.values()))
    occurrences = dispatch(decisions, using=using)
    wake(occurrences, using=using)
    tell(due, decisions, occurrences)
    created = sum(each.state == "created" for each in occurrences)
    return Ticked(len(decisions), created, _goes_on(found, decisions, limit, moved=bool(occurrences)))


def decisions_of(due: Sequence[Due]) -> list[Decision]:
    """Decide about schedules in order until a page's worth is to be created; the others are left for the next one."""
    decisions: list[Decision] = []
    room = MOST_CREATED
    for each in due:
        if room <= 0:
            break
        decision = decide(each, limit=room)
        room -= len(decision.create)
        decisions.append(decision)
    return decisions


def _goes_on(
    found: Sequence[Due], decisions: Sequence[Decision], limit: int, *, moved: bool
) -> tuple[datetime, UUID] | None:
    decided = {each.id: each for each in decisions}
    in_turn = [each for each in found if each.in_turn]
    left = any(each.id not in decided or _unfinished(decided[each.id], each) for each in found)
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

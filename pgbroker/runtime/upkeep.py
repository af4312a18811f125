"""The loop of the upkeep: keeps the lease of the leader, and does the duties that are due, a page at a time."""

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
from psycopg import errors as pg_errors

from pgbroker import telemetry
from pgbroker.conf import Settings
from pgbroker.db import Session
from pgbroker.runtime.duties import UPKEEP, duties
from pgbroker.runtime.isolation import losses
from pgbroker.runtime.leader import PAGE_SHARE, Leader
from pgbroker.runtime.service import CONNECTION_TROUBLE
from pgbroker.upkeep.duty import Duty, Round

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker

PAGE = 500
# Rows that break a page, and are passed over, until the duty counts as failed.
MOST_SKIPPED = 20
# Waits after failures: the first is a period, if that is shorter. What is everybody's recovers jobs.
FIRST_WAIT, LONGEST_WAIT, LONGEST_OF_EVERYBODYS = 60.0, 600.0, 60.0
# A duty takes at most this share of the time; one that costs more comes less often.
SHARE = 0.05
# Errors of class "operational" that are no reason to give up the connection.
ONLY_SLOW = (pg_errors.QueryCanceled, pg_errors.LockNotAvailable)


class Turn:
    """Where one duty stands: when its next page is due, how large, and what went wrong."""

    def __init__(self, duty: Duty) -> None:
        self.duty = duty
        self.next_at = 0.0
        self.failures = 0
        self.begin_again()

    def begin_again(self) -> None:
        """Let the next page be the first of a pass."""
        self.first = True
        self.limit, self.skip = PAGE, 0
        self.cost = 0.0

    def done(self, settings: Settings) -> None:
        """End a pass and plan the next."""
        period = self.duty.period(settings)
        if not self.duty.everybodys:
            period = max(period, self.cost / SHARE)
        self.failures = 0
        self.begin_again()
        self.next_at = time.monotonic() + period * (0.8 + 0.2 * random.random())  # noqa: S311 - jitter

    def failed(self, settings: Settings) -> None:
        """Give a pass up and plan a new one, later each time."""
        first = min(self.duty.period(settings), FIRST_WAIT)
        self.failures += 1
        self.begin_again()
        longest = LONGEST_OF_EVERYBODYS if self.duty.everybodys else LONGEST_WAIT
        wait = min(longest, first * 2.0 ** min(self.failures - 1, 10))
        self.next_at = time.monotonic() + wait * (0.8 + 0.2 * random.random())  # noqa: S311 - jitter

    def narrow(self, error: Exception) -> bool:
        """Try a page that failed with fewer rows, then without the one that breaks it; False: no more tries."""
        slow = isinstance(error, pg_errors.QueryCanceled)
        if not self.duty.paged or not (slow or _may_be_a_row(error)):
            return False
        if self.limit > 1:
            self.limit = max(1, self.limit // 4)
        elif slow or self.skip >= MOST_SKIPPED:
            return False
        else:
            self.skip += 1
        return True


class Upkeep:
    """
    What every process does, and what one of them does for all while it leads.

    In a loop of its own, with a connection of its own: a page may wait for a lock or fail, a heartbeat may
    not. Each statement has less time than the lease has after the last renewal, so the next one is in time.
    A duty that fails stops no other. It needs no worker around it: any process may host it.
    """

    def __init__(
        self,
        *,
        holder: UUID,
        name: str,
        settings: Settings,
        session: Session,
        type_name: Callable[[int], str | None] = lambda number: None,
        queue_name: Callable[[int], str | None] = lambda number: None,
        came_due: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings, self.session = settings, session
        self.type_name, self.queue_name, self.came_due = type_name, queue_name, came_due
        self.leader = Leader(
            UPKEEP, holder=holder, name=name, lease_seconds=settings.LEADER_SECONDS, session=session
        )
        self.turns = [Turn(duty) for duty in duties()]
        self._lead_failures = 0
        self._brought_on: set[str] = set()

    def step(self) -> float:
        """Renew what is to be renewed, do a page of each duty that is due, and return how long to wait."""
        self._keep()
        for turn in self.turns:
            if turn.duty.name in self._brought_on and not turn.failures:
                self._brought_on.discard(turn.duty.name)
                turn.next_at = 0.0
            if self._may(turn) and time.monotonic() >= turn.next_at:
                self._do_page(turn)
                self._keep()
        next_at = min([self.leader.ask_at, *(turn.next_at for turn in self.turns if self._may(turn))])
        return max(0.0, next_at - time.monotonic())

    def bring_on(self, duty: str) -> None:
        """Do that duty at the next step. Any thread may say so; the step is still to be woken."""
        self._brought_on.add(duty)

    def _may(self, turn: Turn) -> bool:
        return turn.duty.everybodys or self.leader.leads

    def _keep(self) -> None:
        try:
            begins = self.leader.keep()
        except ONLY_SLOW:
            # Somebody holds the row. It is asked for again in a moment, and the rest goes on meanwhile.
            self.leader.ask_at = time.monotonic() + min(1.0, self.settings.LEADER_SECONDS / 10)
            return
        except CONNECTION_TROUBLE:
            raise
        except Exception as error:
            # Without a leader everybody still recovers jobs.
            self._lead_failures += 1
            wait = min(LONGEST_WAIT, 2.0 ** min(self._lead_failures, 10))
            self.leader.ask_at = time.monotonic() + wait
            self._tell("lead", error)
            return
        self._lead_failures = 0
        if begins:
            for turn in self.turns:
                if not turn.duty.everybodys:
                    turn.next_at = 0.0
                    turn.begin_again()

    def _do_page(self, turn: Turn) -> None:
        began, now = time.monotonic(), self._round(turn)
        turn.first = False
        try:
            more = turn.duty.page(now)
        except Exception as error:
            self._after_failure(turn, error)
            return
        took = time.monotonic() - began
        turn.cost += took
        turn.limit = min(PAGE, turn.limit * 2)
        if not more:
            turn.done(self.settings)
        elif turn.duty.unhurried:
            turn.next_at = time.monotonic() + took / SHARE

    def _round(self, turn: Turn) -> Round:
        return Round(
            session=self.session,
            settings=self.settings,
            type_name=self.type_name,
            queue_name=self.queue_name,
            came_due=self.came_due,
            in_touch=self.session.connected_seconds if losses.last_at else None,
            reign=self.leader.reign if self.leader.leads else None,
            first=turn.first,
            limit=turn.limit,
            skip=turn.skip,
        )

    def _after_failure(self, turn: Turn, error: Exception) -> None:
        if isinstance(error, CONNECTION_TROUBLE) and not isinstance(error, ONLY_SLOW):
            # The others come first when the connection is back: it may be this one that breaks it.
            turn.failed(self.settings)
            raise error
        skipped = turn.skip
        if turn.narrow(error):
            if turn.skip > skipped:
                self._tell(turn.duty.name, error, skipped=turn.skip)
            return
        turn.failed(self.settings)
        self._tell(turn.duty.name, error)

    def _tell(self, duty: str, error: Exception, **more: object) -> None:
        known = {"error": str(error).strip()} if isinstance(error, psycopg.Error) else {"exception": error}
        telemetry.emit("duty.failed", duty=duty, error_code=type(error).__name__, **known, **more)


def limits(settings: Settings) -> dict[str, str]:
    """Return the limits of time that the session of an upkeep must have."""
    page = int(settings.LEADER_SECONDS * PAGE_SHARE * 1000)
    return {"statement_timeout": f"{page}ms", "lock_timeout": f"{min(1000, page // 2)}ms"}


def upkeep_of(worker: "Worker", session: Session) -> Upkeep:
    """Make the upkeep of a worker, which knows names and has a claimer."""
    return Upkeep(
        holder=worker.id,
        name=worker.name,
        settings=worker.settings,
        session=session,
        type_name=worker.type_name,
        queue_name=worker.queue_name,
        came_due=lambda: worker.claimer.due_in(0.0),
    )


def _may_be_a_row(error: Exception) -> bool:
    """Tell whether one row may be to blame, and not the connection, the schema or a right."""
    return (
        isinstance(error, psycopg.DatabaseError)
        and not isinstance(error, psycopg.OperationalError)
        # Syntax, names and rights; what the server cannot do.
        and (error.sqlstate or "42")[:2] not in {"42", "0A"}
    )

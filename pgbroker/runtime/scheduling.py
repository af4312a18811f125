"""The loop of the schedules: keeps the lease of the leader, and creates what is due, a page at a time."""

import time
from datetime import datetime
from uuid import UUID

import psycopg

from pgbroker import telemetry
from pgbroker.conf import Settings
from pgbroker.db import Session
from pgbroker.lifecycle.take_due import BEGINNING, SCHEDULER, Coming, next_schedule
from pgbroker.runtime.declaring import Declaring
from pgbroker.runtime.leader import Leader
from pgbroker.runtime.service import CONNECTION_TROUBLE
from pgbroker.runtime.upkeep import ONLY_SLOW
from pgbroker.schedules.tick import PAGE, Ticked, may_be_a_row, replan, tick, tick_apart

# Longest waits until the next look: for anything, while an occurrence waits for the end of another one, and while
# somebody holds what is due. A schedule that was saved meanwhile, with a tick before that, comes that much late.
LONGEST_WAIT, WHILE_BUFFERED, WHILE_HELD = 2.5, 1.0, 0.25
# How often is looked for schedules that were planned by other rules of their zone, and a page of these.
REPLAN_SECONDS = 300.0
# For how long a schedule is passed over whose row broke a page: the first time, and at most.
FIRST_AVOIDED, LONGEST_AVOIDED = 5.0, 300.0
SMALLEST_PAGE = 25


class Scheduling:
    """
    What one scheduler of all does while it leads. The others ask for the lease when it may have run out.

    The lead only saves work: two that go at it at once create no occurrence twice. It needs no process of its own.
    """

    def __init__(self, *, holder: UUID, name: str, settings: Settings, session: Session) -> None:
        self.session = session
        self.leader = Leader(
            SCHEDULER, holder=holder, name=name, lease_seconds=settings.LEADER_SECONDS, session=session
        )
        self.declaring = Declaring(session)
        self.limit = PAGE
        self._avoided: dict[UUID, tuple[float, float]] = {}
        self._replan_at = self._look_at = 0.0

    @property
    def leads(self) -> bool:
        """True while it is the one that creates occurrences."""
        return self.leader.leads

    def step(self) -> float:
        """Renew the lease if it is time to, create what is due, and return how long to wait."""
        self._keep()
        self.declaring.speak_if_due()
        if not self.leader.leads:
            return max(0.0, self.leader.ask_at - time.monotonic())
        if time.monotonic() >= self._replan_at:
            self._replan()
        if time.monotonic() >= self._look_at:
            coming = next_schedule(using=self.session)
            if coming.waits or (coming.seconds is not None and coming.seconds <= 0):
                if not self._pass():
                    return 0.0
                coming = next_schedule(using=self.session)
            self._look_at = time.monotonic() + self._wait(coming)
        return max(0.0, min(self._look_at, self.leader.ask_at) - time.monotonic())

    def _pass(self) -> bool:
        """Create everything that is due; False when the lead was lost before the end."""
        after: tuple[datetime, UUID] | None = BEGINNING
        while after is not None:
            if not self.leads:
                return False
            after = self._page(after).after
            self._keep()
        return True

    def _wait(self, coming: Coming) -> float:
        wait = LONGEST_WAIT if coming.seconds is None else min(coming.seconds, LONGEST_WAIT)
        if wait < -WHILE_HELD:
            # It was due at the look before, too: somebody holds it, or it is avoided for a while.
            wait = WHILE_BUFFERED if self._avoided else WHILE_HELD
        if coming.waits:
            wait = min(wait, WHILE_BUFFERED)
        return max(0.0, wait)

    def _page(self, after: tuple[datetime, UUID]) -> Ticked:
        now = time.monotonic()
        avoid = {each for each, (until, _) in self._avoided.items() if until > now}
        try:
            page = tick(limit=self.limit, after=after, avoid=avoid, using=self.session)
        except psycopg.Error as error:
            if not may_be_a_row(error):
                raise
            if isinstance(error, ONLY_SLOW) and self.limit > SMALLEST_PAGE:
                self.limit = max(SMALLEST_PAGE, self.limit // 4)
                return Ticked(0, 0, BEGINNING)
            page, broken = tick_apart(limit=self.limit, after=after, avoid=avoid, using=self.session)
            self._avoid(broken, now)
            return page
        self.limit = min(PAGE, self.limit * 2)
        return page

    def _avoid(self, broken: set[UUID], now: float) -> None:
        kept = {each: entry for each, entry in self._avoided.items() if entry[0] > now - LONGEST_AVOIDED}
        for each in broken:
            seconds = min(LONGEST_AVOIDED, 2 * kept[each][1]) if each in kept else FIRST_AVOIDED
            kept[each] = (now + seconds, seconds)
        self._avoided = kept

    def _replan(self) -> None:
        planned = replan(using=self.session)
        if planned:
            self._look_at = 0.0
            telemetry.emit("schedule.replanned", count=planned)
        self._replan_at = time.monotonic() + (0.0 if planned >= PAGE else REPLAN_SECONDS)

    def _keep(self) -> None:
        try:
            if self.leader.keep():
                # Its predecessor may know other rules, and may have left anything undone.
                self._replan_at = self._look_at = 0.0
        except ONLY_SLOW:
            # Somebody holds the row. It is asked for again in a moment, and the rest goes on meanwhile.
            self.leader.ask_at = time.monotonic() + min(1.0, self.leader.lease_seconds / 10)
        except CONNECTION_TROUBLE:
            self.leader.ask_at = 0.0
            raise

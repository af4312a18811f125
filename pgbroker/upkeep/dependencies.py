"""What waits for what: levels that were left to a pass, references to what is still to come, and repairs."""

from pgbroker import telemetry
from pgbroker.conf import Settings
from pgbroker.lifecycle.reconcile import START, reconcile, resolve_deferred
from pgbroker.lifecycle.resolve import resolve
from pgbroker.upkeep.duty import Duty, Round

RECONCILE_SECONDS = 300.0
# When to look again at a dependent that somebody holds.
HELD_SECONDS = 0.2
# How often a look for faults gives way to a pass that is not done yet, a moment each: five seconds.
GIVES_WAY = 25
# An edge costs a tenth of what a page counts on for a row, and many dependents wait for as many statements.
PAGES = 10


class Resolve(Duty):
    """Free, or end, the dependents that were left to a pass. Every process does it: they share the rows."""

    name = "resolve"
    everybodys = True
    paged = True

    def __init__(self) -> None:
        self._is_left = False

    def period(self, settings: Settings) -> float:
        """POLL_SECONDS, and a moment where somebody held a dependent; a notification brings it on at once."""
        return HELD_SECONDS if self._is_left else settings.POLL_SECONDS

    def page(self, now: Round) -> bool:
        """Look at some pages of edges, which is one statement."""
        limit = PAGES * now.limit
        answer = resolve(limit=limit, skip=now.skip, using=now.session)
        self._is_left = answer.is_left
        return answer.looked_at >= limit


class ResolveDeferred(Duty):
    """Make edges of references to what is there by now, and end those whose time is over."""

    name = "resolve_deferred"
    paged = True

    def __init__(self) -> None:
        self._after = 0

    def period(self, settings: Settings) -> float:
        """POLL_SECONDS."""
        return settings.POLL_SECONDS

    def page(self, now: Round) -> bool:
        """Look at a page of references."""
        if now.first:
            self._after = 0
        page = resolve_deferred(after=self._after, limit=now.limit, skip=now.skip, using=now.session)
        self._after = page.last or 0
        return page.last is not None


class Reconcile(Duty):
    """Repair what a restore or a fault broke, and report it."""

    name = "reconcile"
    paged = True

    def __init__(self) -> None:
        self._after = START
        self._gave_way = 0

    def period(self, settings: Settings) -> float:
        """Every five minutes, and a moment where a pass came first."""
        return HELD_SECONDS if self._gave_way else RECONCILE_SECONDS

    def page(self, now: Round) -> bool:
        """Look at a page of what waits; what was left to a pass is no fault, and goes first."""
        if now.first:
            self._after = START
            if (
                resolve(limit=PAGES * now.limit, using=now.session) != (0, False)
                and self._gave_way < GIVES_WAY
            ):
                self._gave_way += 1
                return False
            self._gave_way = 0
        page = reconcile(after=self._after, limit=now.limit, skip=now.skip, using=now.session)
        # A hundred thousand jobs that wait are two hundred pages, where all is well.
        self.unhurried = not page.repaired
        if page.repaired:
            telemetry.emit("dependencies.repaired", count=len(page.repaired), ids=page.repaired[:20])
        self._after = page.last or START
        return page.last is not None

"""Outcomes of jobs whose rows somebody has locked: they wait here, and nobody waits behind them."""

import math
import time
from typing import TYPE_CHECKING

from pgbroker.db import Session
from pgbroker.lifecycle.free import free
from pgbroker.outcomes import Ended

if TYPE_CHECKING:
    from pgbroker.runtime.attempt import Attempt

Pair = tuple["Attempt", Ended]

# How often it is asked whether they have come free. Whoever takes expired leases back asks less often.
ASK_SECONDS = 0.2


class Blocked:
    """
    The settler's lay-by. Its statement waits for row locks, but not for long: see `LOCK_TIMEOUT`.

    A person in psql who forgot to commit would otherwise hold up every outcome of the worker.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._pairs: list[Pair] = []
        self._ask_at = math.inf

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def wait(self) -> float:
        """How long until it is time to ask again; infinite when nothing waits."""
        return max(0.0, self._ask_at - time.monotonic())

    def part(self, batch: list[Pair]) -> tuple[list[Pair], list[Pair]]:
        """Keep those whose rows are locked; returns the others, and them."""
        passing, locked = self._parted(batch)
        self._pairs += locked
        self._plan()
        return passing, locked

    def free(self) -> list[Pair]:
        """Return those whose rows have come free, if it is time to ask; they stay here until `let_go`."""
        if self.wait:
            return []
        passing, _ = self._parted(self._pairs)
        self._plan()
        return passing

    def let_go(self, pairs: list[Pair]) -> None:
        """Forget what is in other hands by now: at no moment is an outcome in none."""
        if pairs:
            taken = {id(attempt) for attempt, _ in pairs}
            self._pairs = [pair for pair in self._pairs if id(pair[0]) not in taken]
            self._plan()

    def _parted(self, pairs: list[Pair]) -> tuple[list[Pair], list[Pair]]:
        found = free([ended.lease.job_id for _, ended in pairs], using=self.session)
        passing = [pair for pair in pairs if pair[1].lease.job_id in found]
        return passing, [pair for pair in pairs if pair[1].lease.job_id not in found]

    def _plan(self) -> None:
        self._ask_at = time.monotonic() + ASK_SECONDS if self._pairs else math.inf

"""The watchdog: ends attempts that run past their timeout, their job's deadline, or their lease."""

import heapq
import itertools
import threading
import time
from typing import TYPE_CHECKING

from pgbroker import telemetry
from pgbroker.runtime.attempt import Attempt

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker

# From the stop signal to giving a handler up.
GRACE_SECONDS = 2.0
# Entries of attempts that have ended are dropped when there are so many, or twice as many as live ones.
TIDY_FROM = 1000


class Watchdog:
    """
    Attempts in the order in which their time is up: asked to stop, then given up.

    A child process is killed then. A thread cannot be: a handler that ignores its stop signal is settled as
    timed out, its slot goes to another thread, and its late result is refused. It touches no database, so it
    also tells the handlers whose leases ran out while the database, or this process, stood still.
    """

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, bool, Attempt]] = []
        self._number = itertools.count()
        self._tidy_at = TIDY_FROM

    def watch(self, attempt: Attempt) -> None:
        """Watch a started attempt, if it has a timeout or a deadline."""
        left = attempt.seconds_to_deadline()
        if attempt.timeout is not None:
            left = attempt.timeout if left is None else min(left, attempt.timeout)
        if left is not None:
            self._push(time.monotonic() + max(left, 0.0), False, attempt)

    def _push(self, at: float, asked: bool, attempt: Attempt) -> None:
        with self._lock:
            if len(self._heap) >= self._tidy_at:
                self._tidy()
            heapq.heappush(self._heap, (at, next(self._number), asked, attempt))
            first = self._heap[0][3] is attempt
        if first:
            self.worker.wake_watchdog()

    def _tidy(self) -> None:
        """Let go of what has ended: with an hour's timeout it would stay for an hour, arguments and all."""
        self._heap = [entry for entry in self._heap if entry[3].is_open]
        heapq.heapify(self._heap)
        self._tidy_at = max(TIDY_FROM, 2 * len(self._heap))

    def step(self) -> float:
        """Deal with everything whose time is up; returns the wait until the next, a heartbeat at most."""
        self.worker.heartbeats.lose_what_expired()
        longest = self.worker.settings.HEARTBEAT_SECONDS
        while True:
            with self._lock:
                # What has ended leaves from the top; what ended further down leaves when its time comes.
                while self._heap and not self._heap[0][3].is_open:
                    heapq.heappop(self._heap)
                if not self._heap:
                    return longest
                wait = self._heap[0][0] - time.monotonic()
                if wait > 0:
                    return min(wait, longest)
                _, _, asked, attempt = heapq.heappop(self._heap)
            if asked:
                self._give_up(attempt)
            else:
                self.worker.stop_attempt(attempt, "timed_out")
                self.give_grace(attempt)

    def give_grace(self, attempt: Attempt) -> None:
        """Give an attempt that was asked to stop up after the grace, unless it has ended by then."""
        self._push(time.monotonic() + GRACE_SECONDS, True, attempt)

    def _give_up(self, attempt: Attempt) -> None:
        if attempt.executor.end_by_force(attempt):
            return
        # Described before it is claimed: between the two nobody else could end it.
        ended = attempt.timed_out(self.worker.settings)
        if not attempt.end_once():
            return
        self.worker.settler.put(attempt, ended)
        self.worker.abandon(attempt)
        telemetry.emit("attempt.abandoned", **self.worker.keys(attempt.lease))

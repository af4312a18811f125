"""What a worker process has in its possession: every attempt from claim to settle, and who runs next."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from uuid import UUID

from pgbroker.runtime.attempt import Attempt

Start = Callable[[Attempt], None]


class Board:
    """
    The attempts of one worker and its slots.

    At most `slots` run at once. Claimed attempts wait here under lease; whoever ends one takes the next
    in the same breath, so a busy worker hands nothing from thread to thread.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._lock = threading.Lock()
        # By the integer of the job's id, which Python hashes and compares several times as fast as a UUID.
        self._attempts: dict[int, Attempt] = {}
        self._waiting: deque[Attempt] = deque()
        # Of those that are held, the ones that lie with whoever will run them.
        self._ahead = 0
        self._running = 0
        self._stuck = 0
        self.closed = False
        # Called outside the lock, once per change that may let the claimer claim more.
        self.on_room: Callable[[], None] = lambda: None
        self.low_water = 0

    # -------------------------------------------------------------- numbers

    @property
    def running(self) -> int:
        """How many handlers run now."""
        return self._running

    @property
    def held(self) -> int:
        """How many attempts are claimed and do not run yet."""
        return len(self._waiting) + self._ahead

    @property
    def stuck(self) -> int:
        """How many given-up handlers still occupy a thread."""
        return self._stuck

    @property
    def idle(self) -> int:
        """How many slots have nothing to do and nothing waiting for them."""
        return max(0, self.slots - self._running - self.held)

    @property
    def size(self) -> int:
        """How many attempts are not settled yet."""
        return len(self._attempts)

    def attempts(self) -> list[Attempt]:
        """List every attempt in possession."""
        with self._lock:
            return list(self._attempts.values())

    def has(self, job_id: UUID, lease_token: int) -> bool:
        """Tell whether this very attempt is in possession."""
        attempt = self._attempts.get(job_id.int)
        return attempt is not None and attempt.lease.lease_token == lease_token

    def attempt_at(self, job_id: UUID) -> Attempt | None:
        """Return the attempt of a job that is in possession, whatever its token."""
        return self._attempts.get(job_id.int)

    # -------------------------------------------------------------- flow

    def add(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        """Take claimed attempts in and return those that may start at once. Fragile ones go first."""
        starting: list[Attempt] = []
        with self._lock:
            for attempt in attempts:
                self._attempts[attempt.lease.job_id.int] = attempt
                if attempt.lease.fragile:
                    self._waiting.appendleft(attempt)
                else:
                    self._waiting.append(attempt)
            starting += self._fill()
        return starting

    def _fill(self) -> list[Attempt]:
        starting: list[Attempt] = []
        while self._waiting and self._running < self.slots and not self.closed:
            starting.append(self._next())
        return starting

    def _next(self) -> Attempt:
        attempt = self._waiting.popleft()
        self._running += 1
        attempt.started = time.monotonic()
        return attempt

    def next_after(self, attempt: Attempt, ahead: Attempt | None = None) -> Attempt | None:
        """
        Free the slot of an attempt whose handler has returned, and return what runs in it next.

        With *ahead* that is it: it lies where this one ran, and has begun for all one knows.
        """
        following: Attempt | None = None
        with self._lock:
            if attempt.abandoned:
                # Its slot was given to another when it was given up.
                self._stuck -= 1
            else:
                assert not attempt.returned
                self._running -= 1
                if ahead is not None:
                    self._ahead -= 1
                    self._running += 1
                    ahead.started = time.monotonic()
                    following = ahead
                elif self._waiting and self._running < self.slots and not self.closed:
                    following = self._next()
            attempt.returned = True
            room = len(self._waiting) + self._ahead <= self.low_water
        if room:
            self.on_room()
        return following

    def take_ahead(self, may_go: Callable[[Attempt], bool]) -> Attempt | None:
        """Let the next in the line lie where it will run, if it *may_go*; it is held as before."""
        with self._lock:
            if self.closed or not self._waiting or not may_go(self._waiting[0]):
                return None
            self._ahead += 1
            return self._waiting.popleft()

    def give_back(self, attempts: list[Attempt]) -> list[Attempt]:
        """Put attempts that lay ahead first in the line again; returns what may start now."""
        with self._lock:
            self._ahead -= len(attempts)
            self._waiting.extendleft(reversed(attempts))
            return self._fill()

    def abandon(self, attempt: Attempt) -> Attempt | None:
        """Give up a running handler that does not stop: its slot is free, its thread is not. Returns the next."""
        following: Attempt | None = None
        with self._lock:
            # It may have come back in the same moment, and freed its slot itself.
            if attempt.abandoned or attempt.returned:
                return None
            attempt.abandoned = True
            self._running -= 1
            self._stuck += 1
            if self._waiting and self._running < self.slots and not self.closed:
                following = self._next()
        self.on_room()
        return following

    def settled(self, attempts: Iterable[Attempt]) -> None:
        """Let go of attempts that are settled, released or lost."""
        with self._lock:
            for attempt in attempts:
                known = self._attempts.get(attempt.lease.job_id.int)
                # The same job may have been claimed again meanwhile, under a new token.
                if known is attempt:
                    del self._attempts[attempt.lease.job_id.int]

    def find(self, job_id: UUID, lease_token: int) -> Attempt | None:
        """Return this very attempt if it is in possession."""
        attempt = self._attempts.get(job_id.int)
        return attempt if attempt is not None and attempt.lease.lease_token == lease_token else None

    def take_back_waiting(self) -> list[Attempt]:
        """Remove what waits from the line, to be released; it stays in possession until then."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        return waiting

    def withdraw(self, attempt: Attempt) -> bool:
        """Remove one attempt from the line if it still waits; tells whether it did."""
        with self._lock:
            try:
                self._waiting.remove(attempt)
            except ValueError:
                return False
            return True

    def close(self) -> None:
        """Start nothing any more."""
        with self._lock:
            self.closed = True

"""One gate for all connections that a worker's loops open: a database that refuses them is not besieged."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0


class ConnectGate:
    """
    Lets one loop at a time connect, and after a failure nobody for a growing, jittered while.

    Five loops that each backed off for themselves would try five times as often. Shorter than a lease at
    its longest: whoever gets through first opens the gate for all.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._not_before = 0.0
        self._closed = threading.Event()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Wait for the turn; the body connects, and its failure makes the next one wait."""
        with self._lock:
            wait = self._not_before - time.monotonic()
            if wait > 0:
                self._closed.wait(wait)
            try:
                yield
            except BaseException:
                longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(self._failures, 10))
                self._failures += 1
                self._not_before = time.monotonic() + longest * (0.5 + random.random() / 2)  # noqa: S311 - jitter
                raise
            self._failures = 0
            self._not_before = 0.0

    def stop_waiting(self) -> None:
        """Let everybody through from now on: the process ends, and each may try once more."""
        self._closed.set()

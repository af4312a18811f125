"""Threads for sync handlers."""

import threading
from collections.abc import Sequence
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from django.db import connections

from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.attempt_run import run
from pgbroker.runtime.isolation import IDLE_SECONDS, close_idle_connections

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker


class ThreadExecutor:
    """
    One thread a slot, made as they are needed.

    A thread that ends an attempt takes the next one itself. One whose handler was given up is
    replaced and ends when the handler returns.
    """

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        self._queue: SimpleQueue[Attempt | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        """Run each as soon as a thread is free; the board has given it a slot."""
        for attempt in attempts:
            self._start(attempt)

    def _start(self, attempt: Attempt) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._run, name=f"pgbroker-slot-{self._threads}", daemon=True).start()
        self._queue.put(attempt)

    def ask_to_stop(self, attempt: Attempt) -> None:
        """Do nothing more than the stop signal: a thread cannot be stopped from outside."""

    def end_by_force(self, attempt: Attempt) -> bool:
        """Do nothing, and say so."""
        return False

    def stop(self) -> None:
        """End the threads that have nothing to do; the others are daemons."""
        with self._lock:
            for _ in range(self._idle):
                self._queue.put(None)
            self._idle = 0

    def _run(self) -> None:
        try:
            while (attempt := self._next()) is not None:
                following: Attempt | None = attempt
                while following is not None:
                    attempt = following
                    # An empty context for each: whatever the handler sets in it ends with it.
                    ended = Context().run(run, attempt, self.worker)
                    following = self.worker.finish(attempt, ended)
                    if attempt.abandoned:
                        return
                    if following is not None:
                        self.worker.watchdog.watch(following)
                with self._lock:
                    self._idle += 1
        finally:
            connections.close_all()

    def _next(self) -> Attempt | None:
        """Wait for an attempt; without one for a while, let go of the connections."""
        try:
            return self._queue.get(timeout=IDLE_SECONDS)
        except Empty:
            close_idle_connections()
            return self._queue.get()

"""Threads for sync handlers."""

import threading
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from django.db import connections

from pgbroker.errors import UndecodableArgument
from pgbroker.payload import decode
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.attempt_bodies import fetch_arguments, is_too_large, save_result
from pgbroker.runtime.calling import call_handler
from pgbroker.runtime.isolation import (
    IDLE_SECONDS,
    clean_connections,
    close_idle_connections,
    end_if_forked,
    enter_empty,
    freshen_connections,
)

if TYPE_CHECKING:
    from pgbroker.outcomes import Ended
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

    def start(self, attempt: Attempt) -> None:
        """Run an attempt as soon as a thread is free; the board has given it a slot."""
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._run, name=f"pgbroker-slot-{self._threads}", daemon=True).start()
        self._queue.put(attempt)

    def ask_to_stop(self, attempt: Attempt) -> None:
        """Do nothing more than the stop signal: a thread cannot be stopped from outside."""

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
                    ended = Context().run(self._attempt, attempt)
                    following = self.worker.finish(attempt, ended)
                    if attempt.abandoned:
                        return
                    if following is not None and following.is_async:
                        self.worker.start(following)
                        following = None
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

    def _attempt(self, attempt: Attempt) -> "Ended":
        settings = self.worker.settings
        job_type = attempt.job_type
        enter_empty(attempt)
        try:
            if (stopped := attempt.stopped_before_it_ran()) is not None:
                return attempt.failed(stopped, settings)
            freshen_connections()
            if attempt.lease.args_body is not None:
                fetch_arguments(attempt)
                if (stopped := attempt.stopped_before_it_ran()) is not None:
                    return attempt.failed(stopped, settings)
            self.worker.tell_started(attempt)
            try:
                args, kwargs = decode(job_type.signature, attempt.lease.args)
            except UndecodableArgument as error:
                return attempt.undecodable(error, settings)
            ended = attempt.completed(call_handler(attempt, args, kwargs), settings)
            return save_result(attempt, ended, settings) if is_too_large(ended, settings) else ended
        except BaseException as error:
            # SystemExit and KeyboardInterrupt too: out of here they would end the thread, and its slot.
            return attempt.failed(error, settings)
        finally:
            end_if_forked(self.worker.pid)
            clean_connections()

"""The loop of every part of a worker: step, wait, and a policy for what goes wrong."""

import random
import threading
import time
from collections.abc import Callable

import psycopg
from django.db import connections
from psycopg import errors as pg_errors

from pgbroker import telemetry
from pgbroker.db import Session

# What says "the connection, or the server, is no good": drop it, wait, connect again.
CONNECTION_TROUBLE = (psycopg.OperationalError, psycopg.InterfaceError, pg_errors.ReadOnlySqlTransaction)
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
# Failures in a row that are not the connection's: then it is a bug or a broken schema, and a supervisor of
# processes does better than this loop.
FATAL_AFTER = 6


class Service(threading.Thread):
    """
    A daemon thread that repeats *step*; what it returns is how long to wait (seconds) before the next.

    `wake()` ends a wait, `stop()` ends the loop after the current step. A lost connection is dropped
    and tried again with a growing, jittered wait, for ever: the database comes back. Any other error is
    told and retried a few times, then handed to *on_fatal*; a loop that the work does not depend on
    (*vital* is false) goes on trying. After any failure *on_trouble* is called before the next step.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float],
        *,
        sessions: tuple[Session, ...] = (),
        on_fatal: Callable[[BaseException], None] = lambda error: None,
        on_trouble: Callable[[], None] = lambda: None,
        longest_wait: float = LONGEST_WAIT,
        vital: bool = True,
    ) -> None:
        super().__init__(name=f"pgbroker-{name}", daemon=True)
        self.step = step
        self.sessions = sessions
        self.on_fatal = on_fatal
        self.on_trouble = on_trouble
        self.longest_wait = longest_wait
        self.vital = vital
        self.turned_at = time.monotonic()
        self.failing = False
        self._wake = threading.Event()
        self._stopping = False

    @property
    def stopping(self) -> bool:
        """True once the loop was told to end."""
        return self._stopping

    def wake(self) -> None:
        """End the current wait, or the next one before it begins."""
        # Set already is what it is most of the time, and dearer to set again than to look at.
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        """End the loop after the current step."""
        self._stopping = True
        self._wake.set()

    def pause(self, seconds: float) -> None:
        """Wait so long, or until woken."""
        if seconds > 0:
            self._wake.wait(seconds)
        self._wake.clear()

    def run(self) -> None:
        """Repeat the step until stopped."""
        try:
            self._turn_until_stopped()
        except BaseException as error:
            # A loop that ends without a word would leave a worker that looks alive and does nothing.
            telemetry.emit(
                "worker.loop_failed", loop=self.name, error_code=type(error).__name__, exception=error
            )
            self.on_fatal(error)
        finally:
            self._drop_connections()
            # Django's, which listeners of this thread's events may have opened.
            connections.close_all()

    def _turn_until_stopped(self) -> None:
        trouble = other = 0
        while not self._stopping:
            self.turned_at = time.monotonic()
            try:
                wait = self.step()
            except CONNECTION_TROUBLE as error:
                trouble += 1
                if trouble == 1:
                    telemetry.emit(
                        "worker.connection_lost",
                        loop=self.name,
                        error_code=type(error).__name__,
                        error=str(error).strip(),
                    )
                wait = self._after_trouble(trouble)
            except Exception as error:
                other += 1
                if self.vital and other >= FATAL_AFTER:
                    raise
                telemetry.emit(
                    "worker.loop_failed", loop=self.name, error_code=type(error).__name__, exception=error
                )
                wait = self._after_trouble(other)
            else:
                if trouble:
                    telemetry.emit("worker.reconnected", loop=self.name)
                self.failing = False
                trouble = other = 0
            if not self._stopping:
                self.pause(wait)

    def _after_trouble(self, failures: int) -> float:
        self.failing = True
        self._drop_connections()
        self.on_trouble()
        longest = min(self.longest_wait, FIRST_WAIT * 2.0 ** min(failures - 1, 10))
        return longest * (0.5 + random.random() / 2)  # noqa: S311 - jitter

    def _drop_connections(self) -> None:
        for session in self.sessions:
            session.drop()

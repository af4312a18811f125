"""A child process: it runs the attempts that its worker gives it, one after another, and says how each ended."""

import logging
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from io import BufferedReader
from select import POLLIN, poll
from typing import NoReturn

from django.db import connections

from pgbroker import telemetry
from pgbroker.conf import Settings
from pgbroker.context import StopReason
from pgbroker.db import Session
from pgbroker.outcomes import Ended
from pgbroker.registry import JobType, types
from pgbroker.removals import removals
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.attempt_run import run
from pgbroker.runtime.executors import wire
from pgbroker.runtime.executors.event_loop import EventLoopExecutor
from pgbroker.runtime.executors.nursery_process import ignore_stops
from pgbroker.runtime.isolation import IDLE_SECONDS, LogTail, close_idle_connections, losses
from pgbroker.runtime.memory import resident_bytes
from pgbroker.runtime.sessions import patience_of
from pgbroker.runtime.severed import Severed, keep_looking

# Added to how ready the kernel is to end this process when memory runs out, rather than the worker.
OOM_SCORE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for a child as long as it lives; the first thing it is told."""

    settings: Settings
    alias: str
    max_jobs: int | None
    max_rss: int | None


def be_child(attempts: int, words: int) -> NoReturn:
    """Be a child, with the descriptors of the two sockets to its worker; the process ends here."""
    try:
        # A group of its own: a Ctrl-C does not reach it, and programs that a handler starts end with it.
        with suppress(PermissionError):
            os.setpgid(0, 0)
        ignore_stops()
        with suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
            score = min(1000, int(file.read()) + OOM_SCORE)
            file.seek(0)
            file.write(str(score))
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                # What a handler prints is not lost when its process is killed.
                stream.reconfigure(line_buffering=True)
        Child(socket.socket(fileno=attempts), socket.socket(fileno=words)).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


class Child:
    """
    The one place of a child process. Sync handlers run in its main thread, async ones on a loop of its own.

    A second thread hears what the worker says meanwhile. When the worker hangs up there, this process is
    nobody's, and ends on the spot.
    """

    def __init__(self, attempts: socket.socket, words: socket.socket) -> None:
        self.pid = os.getpid()
        self._attempts, self._words = attempts, words
        self._said: BufferedReader = words.makefile("rb")
        (length,) = wire.LENGTH.unpack(self._said.read(wire.LENGTH.size))
        rules: Rules = pickle.loads(self._said.read(length))  # noqa: S301 - the worker's own
        self.settings, self._rules = rules.settings, rules
        self._types = types()
        self._done = 0
        self._leaving = False
        self._number = 0
        self._queue: str | None = None
        self._attempt: Attempt | None = None
        self._shutting_down = False
        self._told: list[tuple[int, StopReason]] = []
        self._lock = threading.Lock()
        self._free = threading.Event()
        self.event_loop = EventLoopExecutor(self)
        self._severed = Severed(rules.alias)
        # The attempt whose connections are looked at since the worker lost one.
        self._looked_after: Attempt | None = None

    # -------------------------------------------------------------- life

    def serve(self) -> None:
        """Run attempts until the worker has no more, or this process has done its share."""
        if self.settings.MAX_LOG_BYTES:
            logging.getLogger().addHandler(LogTail())
        self._severed.watch()
        threading.Thread(target=self._listen, name="pgbroker-stops", daemon=True).start()
        self._write(wire.READY)
        while not self._leaving and (message := self._next()) is not None:
            number, body = message
            self._run(number, wire.read_assignment(body))
        self._leave()

    def _run(self, number: int, assignment: wire.Assignment) -> None:
        job_type = self._types[assignment.job_type]
        losses.last_at = max(losses.last_at, assignment.lost_at)
        attempt = self._begin(number, assignment, job_type)
        if job_type.is_async:
            self._free.clear()
            self.event_loop.start_many([attempt])
            self._free.wait()
            # A thread that the handler left at work is nobody's to wait for.
            self._leaving = self._leaving or self.event_loop.strays > 0
        else:
            # An empty context for each: whatever the handler sets in it ends with it.
            self.report(attempt, Context().run(run, attempt, self))
            self._attempt = None

    def _begin(self, number: int, assignment: wire.Assignment, job_type: JobType) -> Attempt:
        attempt = Attempt(assignment.lease, job_type, assignment.claimed_at, self.settings, self._rules.alias)
        attempt.started = time.monotonic()
        with self._lock:
            self._number, self._queue, self._attempt = number, assignment.queue, attempt
            attempt.stop.shutting_down = self._shutting_down or assignment.shutting_down
            if assignment.stop is not None:
                attempt.stop.set(assignment.stop)
            # What was said of it before it was here.
            for about, reason in self._told:
                if about == number:
                    attempt.stop.set(reason)
            self._told = [entry for entry in self._told if entry[0] > number]
        return attempt

    def _leave(self) -> None:
        """End in good order: connections are closed, and what was buffered is written."""
        self.event_loop.stop()
        connections.close_all()
        removals.finish()
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(0)

    # -------------------------------------------------------------- what the worker says

    def _next(self) -> tuple[int, bytes] | None:
        """Wait for an attempt; without one for a while, let go of the connections."""
        try:
            return wire.receive_attempt(self._attempts, wire.NOW)
        except BlockingIOError:
            pass
        waiting = poll()
        waiting.register(self._attempts, POLLIN)
        if self._done and not waiting.poll(IDLE_SECONDS * 1000):
            close_idle_connections()
        return wire.receive_attempt(self._attempts)

    def _listen(self) -> None:
        while len(body := self._said.read(wire.STOP.size)) == wire.STOP.size:
            code, number = wire.STOP.unpack(body)
            if code == wire.LOSS:
                self._hear_of_loss(number / wire.LOSS_UNITS)
            else:
                self._hear(wire.REASONS[code], number)
        # The worker is gone. Nobody wants what is done here, and another may be doing it by now.
        os._exit(1)

    def _hear(self, reason: StopReason | None, number: int) -> None:
        with self._lock:
            attempt = self._attempt
            if reason is None:
                self._shutting_down = True
                if attempt is not None:
                    attempt.stop.shutting_down = True
                return
            if attempt is None or number > self._number:
                self._told.append((number, reason))
                return
            if number < self._number:
                return
        attempt.stop.set(reason)
        if attempt.job_type.is_async:
            self.event_loop.ask_to_stop(attempt)

    def _hear_of_loss(self, at: float) -> None:
        """Look whether the handler that runs now waits in a connection that is as dead as the worker's was."""
        losses.last_at = max(losses.last_at, at)
        with self._lock:
            attempt = self._attempt
            if attempt is None or attempt is self._looked_after:
                return
            self._looked_after = attempt
        patience = patience_of("drain", self.settings)
        session = Session(self._rules.alias, purpose="severed", patience=patience)
        threading.Thread(
            target=keep_looking,
            args=(self._severed, session, lambda: self._attempt is attempt),
            name="pgbroker-severed",
            daemon=True,
        ).start()

    # -------------------------------------------------------------- what attempts ask of their place

    def tell_started(self, attempt: Attempt) -> None:
        """Tell that a handler is about to be called."""
        if telemetry.wanted("attempt.started"):
            lease = attempt.lease
            telemetry.emit(
                "attempt.started",
                job_id=lease.job_id,
                job_type=attempt.job_type.key,
                queue=self._queue,
                tenant_id=lease.tenant_id,
                attempt_no=lease.attempt_count,
                lease_token=lease.lease_token,
                worker_id=lease.worker_id,
                correlation_id=lease.correlation_id,
                attempt=attempt,
            )

    def report(self, attempt: Attempt, ended: Ended) -> None:
        """Say how the attempt ended, and whether this process takes another."""
        self._done += 1
        rules = self._rules
        if (rules.max_jobs is not None and self._done >= rules.max_jobs) or (
            rules.max_rss is not None and resident_bytes() > rules.max_rss
        ):
            self._leaving = True
        self._write(wire.write_outcome(self._number, attempt, ended, leaving=self._leaving))

    def next_after(self, attempt: Attempt) -> Attempt | None:
        """Take note that an async attempt is done with; the next comes from the worker."""
        self._attempt = None
        self._free.set()
        return None

    def start(self, attempt: Attempt) -> None:
        """Start nothing: attempts come one by one."""
        raise AssertionError(attempt)

    def _write(self, body: bytes) -> None:
        try:
            self._words.sendall(wire.frame(body))
        except OSError:
            # Nobody hears it.
            os._exit(1)

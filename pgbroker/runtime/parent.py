"""The parent of several worker processes: it starts them, and starts again what ends."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pgbroker import telemetry
from pgbroker.policy.restarts import (
    CLEAN,
    QUICK_SECONDS,
    RECYCLE,
    exit_code_of,
    is_hopeless,
    wait_before_restart,
)
from pgbroker.runtime.executors.nursery import can_fork, flush
from pgbroker.runtime.options import WorkerOptions

# What a worker may take to drain beyond its own timeout, before it is killed.
DRAIN_SECONDS = 60.0
STOPPING = (signal.SIGTERM, signal.SIGINT)


class Born(BaseException):
    """
    Raised in a process that was forked to be the worker of that *number*; it goes on from there as one.

    Signals to stop are blocked in it until it calls `hear_signals`.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def hear_signals() -> None:
    """Let signals to stop come in again."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


@dataclass(slots=True)
class _Place:
    """One of the processes, or the line of its successors."""

    number: int
    pid: int | None = None
    started_at: float = 0.0
    quick_ends: int = 0
    # When it is to be started; None: not again.
    due_at: float | None = 0.0
    last_code: int = 0


class Parent:
    """
    No thread, no database connection, no job: so it may fork at any time, and little can go wrong in it.

    Where it cannot fork, since the project starts threads while it loads, *command* (given the number) is run
    as a fresh process.
    """

    def __init__(
        self, count: int, *, finite: bool, drain_seconds: float, command: Callable[[int], list[str]]
    ) -> None:
        self._places = [_Place(number) for number in range(1, count + 1)]
        # Workers that end with 0 by themselves have done what they were asked to.
        self._finite = finite
        self._drain_seconds = drain_seconds + DRAIN_SECONDS
        self._command = command
        self._signals = 0
        self._stopping_since: float | None = None
        self._exit_code: int | None = None

    def run(self) -> int:
        """Keep the processes running until told to stop; returns the exit code. Raises `Born` in those it forks."""
        ears, mouth = os.pipe()
        for descriptor in (ears, mouth):
            os.set_blocking(descriptor, False)
        before = {number: signal.signal(number, self._hear) for number in (*STOPPING, signal.SIGCHLD)}
        signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
        try:
            while True:
                self._start_due()
                if self._is_done():
                    return self._code()
                select.select([ears], [], [], self._seconds_to_wait())
                with suppress(BlockingIOError):
                    os.read(ears, 4096)
                self._bury()
                self._drain_if_told()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(ears)
            os.close(mouth)

    def _hear(self, number: int, frame: Any) -> None:
        if number in STOPPING:
            self._signals += 1

    # -------------------------------------------------------------- starting

    def _start_due(self) -> None:
        now = time.monotonic()
        for place in self._places:
            if place.pid is None and place.due_at is not None and place.due_at <= now:
                place.due_at = None
                place.started_at = now
                place.pid = self._start(place.number)
                telemetry.emit("process.started", number=place.number, pid=place.pid)

    def _start(self, number: int) -> int:
        if not can_fork():
            process = subprocess.Popen(self._command(number), process_group=0)
            # Buried with all the others.
            process.returncode = 0
            return process.pid
        flush()
        # Held back in the worker until it can act on them.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        pid = os.fork()
        if pid == 0:
            # A group of its own: a Ctrl-C reaches the parent, which tells each worker once.
            os.setpgid(0, 0)
            raise Born(number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        return pid

    def _seconds_to_wait(self) -> float:
        now = time.monotonic()
        times = [place.due_at for place in self._places if place.due_at is not None]
        if self._stopping_since is not None:
            times.append(self._stopping_since + self._drain_seconds)
        return max(0.0, min([now + 60.0, *times]) - now)

    # -------------------------------------------------------------- ends

    def _bury(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for place in self._places:
                if place.pid == pid:
                    self._ended(place, os.waitstatus_to_exitcode(status))

    def _ended(self, place: _Place, code: int) -> None:
        now = time.monotonic()
        pid, place.pid, place.last_code = place.pid, None, code
        place.quick_ends = place.quick_ends + 1 if now - place.started_at < QUICK_SECONDS else 0
        again: float | None = None
        if is_hopeless(code):
            self._exit_code = code
            self._drain()
        elif self._stopping_since is None and not (self._finite and code == 0):
            again = wait_before_restart(code, place.quick_ends)
            place.due_at = now + again
        telemetry.emit(
            "process.ended" if code in (CLEAN, RECYCLE) else "process.died",
            number=place.number,
            pid=pid,
            exit_code=code,
            starts_again_in_seconds=again,
        )

    def _drain_if_told(self) -> None:
        if self._signals:
            self._drain()
        late = (
            self._stopping_since is not None and time.monotonic() - self._stopping_since > self._drain_seconds
        )
        if self._signals > 1 or late:
            self._tell(signal.SIGKILL)
            self._exit_code = 1

    def _drain(self) -> None:
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            for place in self._places:
                place.due_at = None
            self._tell(signal.SIGTERM)

    def _tell(self, number: signal.Signals) -> None:
        for place in self._places:
            if place.pid is not None:
                os.kill(place.pid, number)

    def _is_done(self) -> bool:
        return all(place.pid is None and place.due_at is None for place in self._places)

    def _code(self) -> int:
        if self._exit_code is not None:
            return self._exit_code
        return exit_code_of([place.last_code for place in self._places])


def options_of(number: int, options: WorkerOptions, parent_pid: int) -> WorkerOptions:
    """Return the options of one of several processes: what they cannot share has a number."""
    port = options.metrics_port
    return replace(
        options,
        parent_pid=parent_pid,
        name=f"{options.name}.{number}" if options.name else None,
        heartbeat_file=f"{options.heartbeat_file}.{number}" if options.heartbeat_file else None,
        # 0 is any free one.
        metrics_port=port + number - 1 if port else port,
    )


def command_of(options: WorkerOptions) -> list[str]:
    """Return the command line of this process as that of one of its workers."""
    command = [
        sys.executable,
        *sys.orig_argv[1:],
        "--processes",
        "1",
        "--parent-pid",
        str(options.parent_pid),
    ]
    if options.name is not None:
        command += ["--name", options.name]
    if options.heartbeat_file is not None:
        command += ["--heartbeat-file", options.heartbeat_file]
    if options.metrics_port is not None:
        command += ["--metrics-port", str(options.metrics_port)]
    return command

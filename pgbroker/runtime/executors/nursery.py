"""
The process that makes a worker's child processes, from the worker's side.

A worker has threads and connections, so it cannot fork. A nursery has neither: it has loaded the project, and
forks a child in milliseconds that shares its memory until either writes to it.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from django.conf import settings as django_settings
from django.db import connections

from pgbroker.registry import types
from pgbroker.runtime.executors import nursery_process
from pgbroker.runtime.executors.nursery_process import REPORT, REQUEST, Say

# How long a nursery may take to end once its worker has hung up.
END_SECONDS = 5.0
# Called in every process that runs handlers, by their dotted names: who listens to pgbroker's events there.
SUBSCRIBERS = ("pgbroker.logs.serve_logs", "pgbroker.backend.serve_signals")

_BOOT = (
    "import sys, pickle; given = pickle.load(sys.stdin.buffer); sys.path[:] = given['path']; "
    "from pgbroker.runtime.executors.nursery_process import spawned; spawned(given, int(sys.argv[1]))"
)


class Report(NamedTuple):
    """What a nursery says: a child was born, or could not be (`detail` is the errno), or ended (its wait status)."""

    say: Say
    pid: int
    detail: int


def can_fork() -> bool:
    """Tell whether this process may fork: on Linux, with one thread, Python's or not, and no open connection."""
    try:
        single = len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False
    return single and not any(each.connection for each in connections.all(initialized_only=True))


class Nursery:
    """
    A nursery, as its worker sees it.

    `early()` belongs to the first moments of a process, before it has a thread or a connection; `spawned()`
    starts a fresh interpreter, at any time.
    """

    def __init__(
        self, control: socket.socket, pid: int, process: "subprocess.Popen[bytes] | None" = None
    ) -> None:
        self.control, self.pid, self._process = control, pid, process
        self._incoming = bytearray()
        self.gone = self._closed = False

    @classmethod
    def early(cls) -> "Nursery":
        """Fork a nursery off this process if it may fork, else spawn one. Closes this thread's connections."""
        for connection in connections.all(initialized_only=True):
            connection.close()
        if not can_fork():
            return cls.spawned()
        near, far = socket.socketpair()
        flush()
        pid = os.fork()
        if pid == 0:
            near.close()
            nursery_process.forked(far)
        far.close()
        return cls(near, pid)

    @classmethod
    def spawned(cls) -> "Nursery":
        """Start a nursery in a fresh interpreter, which loads the project itself."""
        near, far = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(far.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[far.fileno()],
            process_group=0,
        )
        far.close()
        assert process.stdin is not None
        try:
            process.stdin.write(_given())
            process.stdin.close()
        except OSError:
            # It has ended already; that is heard on the socket.
            pass
        return cls(near, process.pid, process)

    def bear(self, attempts: socket.socket, words: socket.socket) -> None:
        """Ask for a child that has these two sockets; a report answers."""
        try:
            socket.send_fds(self.control, [REQUEST.pack(Say.BEAR, 0)], [attempts.fileno(), words.fileno()])
        except OSError:
            self.gone = True

    def kill(self, pid: int) -> None:
        """Kill a child, and what it started in its process group; a report tells when it has ended."""
        try:
            self.control.sendall(REQUEST.pack(Say.KILL, pid))
        except OSError:
            self.gone = True

    def reports(self) -> Iterator[Report]:
        """Give what it has said since; sets `gone` when it has hung up. Never waits."""
        while True:
            try:
                data = self.control.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.gone = True
                return
            self._incoming += data
            while len(self._incoming) >= REPORT.size:
                say, pid, detail = REPORT.unpack_from(self._incoming)
                del self._incoming[: REPORT.size]
                yield Report(Say(say), pid, detail)

    def close(self) -> None:
        """Hang up: it kills what is left of its children and ends. Once is enough."""
        if self._closed:
            return
        self._closed = True
        self.control.close()
        until = time.monotonic() + END_SECONDS
        while not self._has_ended():
            if time.monotonic() > until:
                _kill(self.pid)
                until = float("inf")
            time.sleep(0.005)

    def _has_ended(self) -> bool:
        if self._process is not None:
            return self._process.poll() is not None
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:
            return True


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def flush() -> None:
    """Write what is buffered: else both processes would."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _given() -> bytes:
    """Say what a fresh interpreter must know to be like this one."""
    given: dict[str, Any] = {
        "path": sys.path,
        "argv": sys.argv,
        "settings": os.environ.get("DJANGO_SETTINGS_MODULE"),
        # What this process changed of its settings while it ran, such as the name of a test's database.
        "databases": connections.settings,
        "pgbroker": getattr(django_settings, "PGBROKER", {}),
        "modules": sorted({each.task.func.__module__ for each in types().values()} - {"__main__"}),
        "subscribers": SUBSCRIBERS,
    }
    try:
        return pickle.dumps(given)
    except Exception:
        # Something odd in OPTIONS: the module of the settings has it too.
        return pickle.dumps({**given, "databases": None})

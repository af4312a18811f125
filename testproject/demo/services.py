"""The demo's kinds of children, a web server, workers and a scheduler, and the port of the first."""

from __future__ import annotations

import fcntl
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from testproject.demo.processes import DIRECTORY, Children, DemoFailed

PREFERRED_PORT = 8000
WEB_SECONDS = 30.0
OTHER_PORTS = 5
CONCURRENCY = 8
# Short, so that the jobs of a killed worker start again within seconds; the default is a minute.
LEASE_SECONDS = 9
DRAIN_SECONDS = 3


@contextmanager
def reserved_port(wanted: int | None) -> Iterator[int]:
    """
    Choose a free port (or take *wanted*) and keep it from other demos of this checkout.

    Nobody but the web server itself can take the port, so until then a lock on a file keeps it.
    Raises `DemoFailed`.
    """
    candidates = [wanted] if wanted else [PREFERRED_PORT, *(_any_free_port() for _ in range(OTHER_PORTS))]
    for port in candidates:
        lock = _lock(DIRECTORY / f"port-{port}.lock")
        if lock is None:
            continue
        with lock:
            if _is_free(port):
                yield port
                return
    raise DemoFailed(f"Port {candidates[0]} is in use. Choose another with --port, or leave it out.")


def _lock(path: Path) -> IO[str] | None:
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _any_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the web server does
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def start_web(children: Children, port: int) -> None:
    """Start the web server; returns when it answers. Raises `DemoFailed`."""
    child = children.start(
        "web",
        "runserver",
        "--noreload",
        f"127.0.0.1:{port}",
        DJANGO_SETTINGS_MODULE="testproject.demo.web_settings",
    )
    deadline = time.monotonic() + WEB_SECONDS
    while not _answers(f"http://127.0.0.1:{port}/admin/login/"):
        if child.ended() is not None or time.monotonic() > deadline:
            raise DemoFailed(f"The web server does not answer. The end of its log:\n{child.last_words()}")
        time.sleep(0.1)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310 - our own address
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def start_worker(children: Children, number: int) -> None:
    """Start a worker that serves all queues."""
    children.start(
        f"worker {number}",
        "broker_worker",
        f"--concurrency={CONCURRENCY}",
        f"--lease-seconds={LEASE_SECONDS}",
        f"--shutdown-timeout={DRAIN_SECONDS}",
        DJANGO_SETTINGS_MODULE="testproject.demo.settings",
    )


def start_scheduler(children: Children) -> None:
    """Start what creates the jobs of the timetable."""
    children.start("scheduler", "broker_scheduler", DJANGO_SETTINGS_MODULE="testproject.demo.settings")

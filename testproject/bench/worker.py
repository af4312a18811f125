"""Worker processes, as an operator starts them, and the wait for what they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from django.db import connection, connections
from psycopg.conninfo import make_conninfo

from pgbroker import pause, resume
from pgbroker.tenancy import scope_all
from testproject.bench import ran
from testproject.bench.jobs import QUEUE

PATIENCE_SECONDS = 60.0
ROOT = Path(__file__).resolve().parent.parent.parent


class Child:
    """A process that a measurement starts: a module, on the database that is measured."""

    def __init__(self, module: str, *arguments: str, **environment: str) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process lives
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            # Its end: a child of the demo's kind ends with whoever holds the other end of this pipe.
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "testproject.bench.settings",
                "DATABASE_URL": url(),
                **environment,
            },
        )

    def said(self) -> str:
        """Return what it wrote, or the end of it."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-2000:]

    def stop(self) -> None:
        """Ask it to end, and wait. Raises if it did not end well."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_SECONDS)
        if code:
            raise AssertionError(f"{self.process.args} ended with {code}:\n{self.said()}")

    def kill(self) -> None:
        """End it on the spot, unless it has ended."""
        self.process.kill()
        self.process.wait()
        self.log.close()


def start_worker(
    *flags: str, settings: Mapping[str, Any] | None = None, queues: str = QUEUE, **environment: str
) -> Child:
    """Start one `broker_worker`; *settings* are keys of PGBROKER. It ends with this process, however that ends."""
    return Child(
        "testproject.demo.child",
        "broker_worker",
        f"--queues={queues}",
        *flags,
        BENCH_PGBROKER=json.dumps(settings or {}),
        **environment,
    )


@contextmanager
def workers(number: int, *flags: str, **how: Any) -> Iterator[list[Child]]:
    """Run so many worker processes; they are registered and look for work when this returns."""
    with ExitStack() as stack:
        running: list[Child] = []
        for _ in range(number):
            running.append(start_worker(*flags, **how))
            stack.callback(running[-1].kill)
        wait_until(lambda: registered() >= number, running)
        yield running
        for each in running:
            each.stop()


def url(alias: str = "default") -> str:
    """Write where a database is, for processes that are started here."""
    options = connections[alias].get_connection_params()
    names = ("host", "port", "dbname", "user", "password")
    return make_conninfo(**{name: options[name] for name in names if options.get(name)})


def registered() -> int:
    """Return how many worker processes have told that they live."""
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(
            "select count(*) from pgbroker.worker where stopped_at is null and expires_at > statement_timestamp()"
        )
        (count,) = cursor.fetchone()
    return int(count)


def drain(number: int, look: ran.Look, *flags: str, **how: Any) -> float:
    """
    Let so many processes work off what is ready; returns the seconds from the first handler to the last settle.

    They start with the queue paused, so that starting an interpreter is in no figure.
    """
    pause(queue=QUEUE)
    with workers(number, *flags, **{ran.VARIABLE: str(look.path)}, **how) as running:
        resume(queue=QUEUE)
        wait_until(lambda: look.missing == 0, running, pause_seconds=0.002)
        wait_until(lambda: not is_anything_live(), running, pause_seconds=0.001)
        ended = time.monotonic()
    began = look.began_at
    assert began is not None
    return ended - began


def is_anything_live() -> bool:
    """Tell whether a job has not ended; each question is one look into an index."""
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(
            "select exists (select from pgbroker.job where status = 3 /* running */) "
            "or exists (select from pgbroker.job where status = 2 /* ready */) "
            "or exists (select from pgbroker.job where status = 0 /* scheduled */)"
        )
        (live,) = cursor.fetchone()
    return bool(live)


def wait_until(
    true: Callable[[], bool],
    running: Sequence[Child],
    *,
    pause_seconds: float = 0.02,
    patience_seconds: float = 600.0,
) -> None:
    """Wait, and raise when a process has ended, or when it takes for ever."""
    deadline = time.monotonic() + patience_seconds
    while not true():
        for child in running:
            if child.process.poll() is not None:
                raise AssertionError(f"{child.process.args} ended meanwhile:\n{child.said()}")
        if time.monotonic() > deadline:
            raise AssertionError(
                f"no end after {patience_seconds:g} s:\n{[child.said() for child in running]}"
            )
        time.sleep(pause_seconds)

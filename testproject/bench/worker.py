"""Worker processes, as an operator starts them, and the wait for what they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
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


class Worker:
    """One `broker_worker` process. It ends with the process that started it, however that ends."""

    def __init__(
        self, *flags: str, look: ran.Look | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process lives
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "testproject.bench.settings",
            "DATABASE_URL": url(),
            "BENCH_PGBROKER": json.dumps(settings or {}),
        }
        if look is not None:
            environment[ran.VARIABLE] = str(look.path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "testproject.demo.child", "broker_worker", f"--queues={QUEUE}", *flags],
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            cwd=ROOT,
            env=environment,
        )

    def last_words(self) -> str:
        """Return the end of what it wrote."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-2000:]

    def stop(self) -> None:
        """Let it drain, and wait for its end. Raises if it did not end well."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_SECONDS)
        if code:
            raise AssertionError(f"the worker ended with {code}:\n{self.last_words()}")

    def kill(self) -> None:
        """End it on the spot."""
        self.process.kill()
        self.process.wait()
        self.log.close()


@contextmanager
def workers(
    number: int, *flags: str, look: ran.Look | None = None, settings: Mapping[str, Any] | None = None
) -> Iterator[list[Worker]]:
    """Run so many worker processes; they are registered and look for work when this returns."""
    with ExitStack() as stack:
        running = []
        for _ in range(number):
            worker = Worker(*flags, look=look, settings=settings)
            stack.callback(worker.kill)
            running.append(worker)
        wait_until(lambda: registered() >= number, running)
        yield running
        for worker in running:
            worker.stop()


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


def drain(number: int, look: ran.Look, *flags: str, settings: Mapping[str, Any] | None = None) -> float:
    """
    Let so many processes work off what is ready; returns the seconds from the first handler to the last settle.

    They start with the queue paused, so that starting an interpreter is in no figure.
    """
    pause(queue=QUEUE)
    with workers(number, *flags, look=look, settings=settings) as running:
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
    running: list[Worker],
    *,
    pause_seconds: float = 0.02,
    patience_seconds: float = 600.0,
) -> None:
    """Wait, and raise when a worker has ended, or when it takes for ever."""
    deadline = time.monotonic() + patience_seconds
    while not true():
        for worker in running:
            if worker.process.poll() is not None:
                raise AssertionError(f"a worker ended meanwhile:\n{worker.last_words()}")
        if time.monotonic() > deadline:
            raise AssertionError(
                f"no end after {patience_seconds:g} s:\n{running[0].last_words() if running else ''}"
            )
        time.sleep(pause_seconds)

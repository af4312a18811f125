"""What the drivers share: modes, clocks, and the proof that each job ran once. Standard library and psycopg alone."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg

from testproject.bench import ran

WARM = 100
PATIENCE_SECONDS = 300.0
NOT_RUN = 3


class Peer:
    """
    One peer at its best settings. A driver fills in what follows; client methods may be coroutines.

    The database is empty at the start. `remaining` is an SQL text with one number: jobs that have not ended.
    """

    distribution = ""
    settings = ""
    loop = "asyncio"
    remaining = ""

    def __init__(self, url: str) -> None:
        self.url = url

    def setup(self) -> Any:
        """Make the schema."""

    def open(self) -> Any:
        """Connect, as a client that enqueues."""

    def close(self) -> Any:
        """Disconnect."""

    def enqueue(self, number: int) -> Any:
        """Enqueue one job, in its own commit."""
        raise NotImplementedError

    def enqueue_many(self, numbers: Sequence[int]) -> Any:
        """Enqueue many jobs by the public call for it, or one by one where there is none."""
        raise NotImplementedError

    def work(self) -> None:
        """Be a worker process, until SIGTERM."""
        raise NotImplementedError

    def worker_command(self) -> list[str]:
        """Return how a worker process is started."""
        return [sys.executable, "-m", sys.modules["__main__"].__spec__.name, "work", "0", self.url]

    def count_remaining(self) -> Any:
        """Return how many jobs have not ended."""
        return self._ask(self.remaining)

    def _ask(self, question: str) -> int:
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute(question.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def tidy(self) -> None:
        """Bring statistics up to date after the jobs are in."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("vacuum analyze")


def main(kind: type[Peer]) -> None:
    """Do what the command line says."""
    mode, jobs, url = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    peer = kind(url)
    if mode == "work":
        peer.work()
        return
    # Whatever the peer prints goes to stderr.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if peer.loop == "uvloop":
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    def run(answer: Any) -> Any:
        return loop.run_until_complete(answer) if inspect.isawaitable(answer) else answer

    run(peer.setup())
    run(peer.open())
    seconds = {"drain": drain, "one": one, "many": many}[mode](peer, jobs, run)
    run(peer.close())
    print(
        json.dumps(
            {
                "rate": jobs / seconds,
                "jobs": jobs,
                "settings": peer.settings,
                "version": version(peer.distribution),
                "python": platform.python_version(),
            }
        ),
        file=out,
        flush=True,
    )


def one(peer: Peer, jobs: int, run: Any) -> float:
    """Enqueue one by one; returns the seconds, and proves that all are there."""

    async def in_the_loop(numbers: range) -> None:
        for number in numbers:
            await peer.enqueue(number)

    def enqueue(numbers: range) -> None:
        if peer.loop == "sync":
            for number in numbers:
                peer.enqueue(number)
        else:
            run(in_the_loop(numbers))

    enqueue(range(WARM))
    began = time.perf_counter()
    enqueue(range(WARM, WARM + jobs))
    seconds = time.perf_counter() - began
    assert run(peer.count_remaining()) == WARM + jobs
    return seconds


def many(peer: Peer, jobs: int, run: Any) -> float:
    """Enqueue at once; returns the seconds, and proves that all are there."""
    numbers = list(range(jobs))
    began = time.perf_counter()
    run(peer.enqueue_many(numbers))
    seconds = time.perf_counter() - began
    assert run(peer.count_remaining()) == jobs
    return seconds


def drain(peer: Peer, jobs: int, run: Any) -> float:
    """Let one worker process run what is enqueued; returns the seconds from the first job's start to the last end."""
    run(peer.enqueue_many(list(range(jobs))))
    peer.tidy()
    with tempfile.TemporaryDirectory(prefix="pgbroker-bench-") as directory:
        look = ran.make(Path(directory) / "ran", jobs)
        worker = subprocess.Popen(
            peer.worker_command(), env={**os.environ, ran.VARIABLE: str(look.path)}, start_new_session=True
        )
        try:
            _wait(lambda: look.missing == 0, worker, 0.002)
            _wait(lambda: run(peer.count_remaining()) == 0, worker, 0.002)
            ended = time.monotonic()
            # A second run of some job would come now.
            time.sleep(0.2)
            look.prove_once()
        finally:
            _end(worker)
        assert look.began_at is not None
        return ended - look.began_at


def _wait(true: Any, worker: subprocess.Popen[bytes], pause: float) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if worker.poll() is not None:
            raise AssertionError(f"the worker ended with {worker.returncode}")
        if time.monotonic() > deadline:
            raise AssertionError(f"no end after {PATIENCE_SECONDS:g} s")
        time.sleep(pause)


def _end(worker: subprocess.Popen[bytes]) -> None:
    """End a worker and the children it has made, which are of its session."""
    worker.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def not_run(reason: str) -> None:
    """End, and say why this peer cannot be measured here."""
    print(reason, file=sys.stderr)
    sys.exit(NOT_RUN)


def in_parts(numbers: Sequence[int], size: int) -> list[Sequence[int]]:
    """Cut a long call into calls of a size that the peer takes well."""
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]

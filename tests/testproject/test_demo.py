"""The demo as a person runs it: a process, its children, and a database of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connections

from testproject import database
from testproject.database import drop_database

ROOT = Path(database.__file__).parent.parent
# How long anything here may take; it decides no outcome.
PATIENCE_SECONDS = 120.0
JOBS_ENDED = r"(\d+) of [\d,]+ jobs ended"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Make a database for the demos of this module, named so that a killed run's is removed with its server."""
    settings = connections.settings["default"]
    parameters = {
        "host": settings["HOST"],
        "port": settings["PORT"],
        "user": settings["USER"],
        "password": settings["PASSWORD"],
        **settings.get("OPTIONS", {}),
    }
    parameters = {name: value for name, value in parameters.items() if value}
    name = f"test_demo_{os.getpid()}"
    with psycopg.connect(**parameters, dbname="postgres", autocommit=True) as connection:
        connection.execute(f"create database {name}")
        try:
            yield psycopg.conninfo.make_conninfo(**parameters, dbname=name)
        finally:
            drop_database(connection, name)


@dataclass
class Demo:
    """A demo that runs, and what it has said so far."""

    process: subprocess.Popen[bytes]
    output: Path
    url: str

    def said(self) -> str:
        return self.output.read_text()

    def wait_until_said(self, pattern: str) -> str:
        """Return what the first group of the pattern matched."""

        def matched() -> re.Match[str] | None:
            assert self.process.poll() is None or re.search(pattern, self.said()), self.said()
            return re.search(pattern, self.said())

        return wait_for(matched, self.said).group(1)

    def end(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def processes(self) -> dict[int, str]:
        """Find the demo and its children, by the database in their environment; the worker, say, by its command."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                mine = f"DATABASE_URL={self.url}\0".encode() in (place / "environ").read_bytes()
                if mine and " Z " not in (place / "stat").read_text().rpartition(")")[2][:3]:
                    found[int(place.name)] = (place / "cmdline").read_text().replace("\0", " ")
        return found

    def worker(self) -> int:
        return next(pid for pid, command in self.processes().items() if "broker_worker" in command)


def wait_for(ask: Callable[[], Any], explain: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := ask()):
        assert time.monotonic() < deadline, explain()
        time.sleep(0.05)
    return answer


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    demos: list[Demo] = []

    def start(*arguments: str) -> Demo:
        output = tmp_path / f"output-{len(demos)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "testproject.demo", *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "testproject.settings"},
            )
        demos.append(Demo(process, output, url))
        return demos[-1]

    yield start
    for demo in demos:
        demo.process.kill()
        demo.process.wait()
        wait_for(lambda demo=demo: not demo.processes(), demo.processes)


def line_of(name: str, summary: str) -> list[str]:
    return next(line.split()[1:] for line in summary.splitlines() if line.startswith(name))


def test_two_demos_at_once_run_everything_sum_up_each_and_leave_nothing_behind(start):
    first, second = start("--exit", "--jobs", "100"), start("--exit", "--jobs", "50")

    assert (first.end(), second.end()) == (0, 0), first.said() + second.said()

    said = first.said()
    assert line_of("airports.nearest_neighbours", said)[:2] == ["32", "32"]
    assert line_of("airports.flaky_lookup", said)[:3] == ["4", "4", "7"]
    assert line_of("airports.notify_retired_registry", said)[:6] == ["5", "-", "10", "-", "-", "5"]
    assert line_of("airports.slow_summary", said)[6] == "1"
    assert "not ended" not in said
    assert re.search(r"jobs without ORM: 500 async jobs at [\d,]+/s on \w+ worker process", said)
    assert re.search(r"jobs without ORM: 500 sync jobs at [\d,]+/s on \w+ worker process", said)
    assert line_of("airports.nearest_neighbours", second.said())[:2] == ["16", "16"]
    admin = r"admin .*http://127.0.0.1:(\d+)/admin/ .*user demo, (password \S+)"
    places = [re.search(admin, demo.said()).groups() for demo in (first, second)]
    assert places[0][0] != places[1][0]
    assert places[0][1] == places[1][1]
    assert first.processes() == {}


def test_ctrl_c_ends_a_demo_with_everything_it_started(start):
    demo = start("--jobs", "400")
    demo.wait_until_said(JOBS_ENDED)

    demo.process.send_signal(signal.SIGINT)

    assert demo.end() == 0
    assert demo.said().rstrip().endswith("stopped")
    assert demo.processes() == {}


def test_a_demo_recovers_from_the_kill_of_the_last_one_and_of_its_own_worker(start):
    demo = start("--jobs", "400")
    demo.wait_until_said(JOBS_ENDED)

    demo.process.kill()

    demo.end()
    wait_for(lambda: not demo.processes(), demo.processes)

    following = start("--exit", "--jobs", "100")
    following.wait_until_said(JOBS_ENDED)

    os.kill(following.worker(), signal.SIGKILL)

    assert following.end() == 0, following.said()
    assert "jobs of an earlier run" in following.said()
    assert "worker 1 was killed (SIGKILL)" in following.said()
    assert "not ended" not in following.said()


def test_a_port_in_use_is_refused_by_name(start):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        demo = start("--exit", "--port", port)

        assert demo.end() == 1

    assert f"Port {port} is in use" in demo.said()
    assert demo.processes() == {}

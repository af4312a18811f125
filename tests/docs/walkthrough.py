"""
Follow a page as a reader does: write its files, type its commands, compare what they print.

What a fenced block means is told by its language and its first line:

- `python` with a first line `# path/file.py` is that file; `# path/file.py, at the end` is added to it;
- `console`: lines that begin with `$ ` are commands, the lines after one are its output;
- `pycon` is a session of `python manage.py shell`, compared as doctests are;
- `postgresql` makes the database, which this reader has been given: another test runs it.

In output, `…` stands for anything within a line, and a line of its own for any lines. A worker without
`--burst` and the development server go on in the background; `^C` interrupts the worker.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
from django.db import connections

from testproject.database import drop_database

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w{}-]*)[^\n]*\n(?P<body>.*?)^(?P=indent)```$", re.M | re.S
)
FILE = re.compile(r"# (?P<path>[\w/.-]+\.py)(?P<at_the_end>, at the end)?\n")
COMMAND_SECONDS, OUTPUT_SECONDS = 120.0, 60.0

SESSION = """
import doctest, sys
import django
django.setup()
text = sys.stdin.read()
test = doctest.DocTestParser().get_doctest(text, {}, "page", "page", 0)
assert test.examples, "no examples"
runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
sys.exit(1 if runner.run(test).failed else 0)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    body: str
    line: int


def blocks(page: Path) -> list[Block]:
    """List the fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(found["language"], found["body"], text.count("\n", 0, found.start()) + 1)
        for found in FENCE.finditer(text)
    ]


@contextmanager
def empty_database() -> Iterator[tuple[str, dict[str, str]]]:
    """Make a database on the tests' server; yields its name and libpq's environment variables for the rest."""
    parameters = connections["default"].get_connection_params()
    parameters = {key: parameters[key] for key in ("host", "port", "user", "password") if parameters.get(key)}
    name = f"docs_{uuid4().hex[:12]}"
    with psycopg.connect(**parameters, dbname="postgres", autocommit=True) as server:
        server.execute(f"create database {name}")
        try:
            yield name, {f"PG{key.upper()}": str(value) for key, value in parameters.items()}
        finally:
            drop_database(server, name)


class Reader:
    """Somebody who follows a page in a directory of their own, on a database of their own."""

    def __init__(self, directory: Path, database: str, environment: dict[str, str]) -> None:
        self.directory, self.database = directory, database
        self.background: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.port = _free_port()
        programs = directory / ".programs"
        programs.mkdir()
        for name, module in (("python", ""), ("django-admin", "-m django")):
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
            (programs / name).chmod(0o755)
        ours = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL")
        self.environment = {key: value for key, value in os.environ.items() if key not in ours}
        self.environment |= environment | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "200",
        }

    def follow(self, page: Path) -> None:
        """Do what every block says."""
        for block in blocks(page):
            where = f"{page.relative_to(ROOT)}:{block.line}"
            if block.language == "python" and (found := FILE.match(block.body)):
                self.write(found, block.body)
            elif block.language == "console":
                self.type(block.body, where)
            elif block.language == "pycon":
                self.session(block.body, where)
            elif block.language == "postgresql":
                continue
            else:
                raise AssertionError(f"{where}: nobody knows what to do with this block ({block.language})")

    def write(self, first_line: re.Match[str], body: str) -> None:
        path = self.directory / first_line["path"]
        # The one thing changed: the database is this reader's, and libpq's variables say how to reach it.
        text = body.replace('"NAME": "bookshop"', f'"NAME": "{self.database}"')
        text = re.sub(r'^ *"(USER|PASSWORD|HOST|PORT)": "[^"]*",\n', "", text, flags=re.M)
        with path.open("a" if first_line["at_the_end"] else "w") as file:
            file.write(f"\n{text}" if first_line["at_the_end"] else text)

    def session(self, body: str, where: str) -> None:
        (settings,) = self.directory.glob("*/settings.py")
        done = self._run(
            [sys.executable, "-c", SESSION],
            DJANGO_SETTINGS_MODULE=f"{settings.parent.name}.settings",
            typed=body,
        )
        assert done.returncode == 0, f"{where}\n{done.stdout}"

    def type(self, body: str, where: str) -> None:
        for part in re.split(r"^(?=\$ |\^C$)", body, flags=re.M):
            if not part:
                continue
            first, _, output = part.partition("\n")
            expected = output.splitlines()
            if first == "^C":
                self.interrupt(expected, where)
            elif first.startswith("$ cd "):
                self.directory /= first.removeprefix("$ cd ")
            elif "runserver" in first or ("broker_worker" in first and "--burst" not in first):
                self.start(first.removeprefix("$ "), expected, where)
            else:
                done = self._run(["bash", "-c", first.removeprefix("$ ")])
                assert done.returncode == 0, f"{where}: {first}\n{done.stdout}"
                assert not expected or _same(expected, done.stdout), f"{where}: {first}\n{done.stdout}"

    def _run(self, command: list[str], typed: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.directory,
            env=self.environment | more | {"PYTHONPATH": f"{ROOT}:{self.directory}"},
            input=typed,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def start(self, command: str, expected: list[str], where: str) -> None:
        output = self.directory / f".output-{len(self.background)}"
        command = command.replace("runserver", f"runserver {self.port} --noreload")
        with output.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.directory,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.background.append((process, output))
        _wait_for(expected, output, where)

    def interrupt(self, expected: list[str], where: str) -> None:
        process, output = self.background[0]
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=COMMAND_SECONDS)
        assert code == 0, f"{where}: ended with {code}\n{output.read_text()}"
        _wait_for(expected, output, where)

    def end(self) -> None:
        """End what goes on in the background."""
        for process, _ in self.background:
            if process.poll() is None:
                process.terminate()
        for process, _ in self.background:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def reader(directory: Path) -> Iterator[Reader]:
    """Set somebody in front of an empty directory and an empty database."""
    with empty_database() as (name, environment):
        somebody = Reader(directory, name, environment)
        try:
            yield somebody
        finally:
            somebody.end()
            shutil.rmtree(directory / ".programs", ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _pattern(line: str) -> re.Pattern[str]:
    words = (r"\s+".join(map(re.escape, part.split())) for part in line.split("…"))
    return re.compile(r"\s*" + r"\s*.*\s*".join(words) + r"\s*")


def _same(expected: list[str], output: str) -> bool:
    """Tell whether the output is what the page shows; a line `…` stands for any lines."""

    def from_here(wanted: list[str], printed: list[str]) -> bool:
        if not wanted:
            return not printed
        if wanted[0] == "…":
            return any(from_here(wanted[1:], printed[start:]) for start in range(len(printed) + 1))
        return (
            bool(printed)
            and bool(_pattern(wanted[0]).fullmatch(printed[0]))
            and from_here(wanted[1:], printed[1:])
        )

    return from_here(expected, [line for line in output.splitlines() if line.strip()])


def _wait_for(expected: list[str], output: Path, where: str) -> None:
    """Wait until a background process has printed these lines, in order, whatever comes between."""
    until = time.monotonic() + OUTPUT_SECONDS
    while True:
        lines = iter(output.read_text().splitlines())
        if all(
            any(_pattern(wanted).fullmatch(line) for line in lines) for wanted in expected if wanted != "…"
        ):
            return
        assert time.monotonic() < until, f"{where}: waited for {expected}\n{output.read_text()}"
        time.sleep(0.05)

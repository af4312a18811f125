"""
A process that has imported everything and forks workers on request, so that a test's worker costs 50 ms.

`python -m tests.runtime.zygote`: one JSON request a line on stdin, one JSON answer a line on stdout. It has
no thread and no connection, so a fork of it is like a fresh process. When its stdin ends, it kills what it
forked.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import random
import select
import signal
import sys
import threading
from typing import Any

MOST_RESTARTS = 200


class Zygote:
    """The forked processes and how they ended."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.specs: dict[int, dict[str, Any]] = {}
        self.pids: dict[int, list[int]] = {}
        self.ended: dict[int, int] = {}

    def start(self, spec: dict[str, Any]) -> int:
        """Fork a worker; returns its number, which stays when it is started again."""
        number = next(self.numbers)
        self.specs[number], self.pids[number] = spec, []
        self._fork(number)
        return number

    def _fork(self, number: int) -> None:
        self.ended.pop(number, None)
        pid = os.fork()
        if pid == 0:
            run_worker(self.specs[number])
        self.pids[number].append(pid)

    def reap(self) -> None:
        """Note who has ended, and start again what is to be restarted."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for number, pids in self.pids.items():
                if pids and pids[-1] == pid:
                    self.ended[number] = os.waitstatus_to_exitcode(status)
                    if self.specs[number].get("restart") and len(pids) < MOST_RESTARTS and self.ended[number]:
                        self._fork(number)

    def answer(self, request: dict[str, Any]) -> Any:
        """Do what a request asks."""
        match request["do"]:
            case "start":
                return self.start(request["spec"])
            case "look":
                self.reap()
                number = request["number"]
                return {"pids": self.pids[number], "code": self.ended.get(number)}
            case "settle":
                self.specs[request["number"]]["restart"] = False
                return None

    def kill_all(self) -> None:
        """Leave nothing behind."""
        for number, pids in self.pids.items():
            self.specs[number]["restart"] = False
            if number not in self.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[-1], signal.SIGKILL)

    def serve(self) -> None:
        """Answer until stdin ends."""
        while True:
            readable, _, _ = select.select([sys.stdin.buffer.raw], [], [], 0.05)
            self.reap()
            if not readable:
                continue
            line = sys.stdin.buffer.raw.readline()
            if not line:
                self.kill_all()
                os._exit(0)
            os.write(1, json.dumps(self.answer(json.loads(line))).encode() + b"\n")


def run_worker(spec: dict[str, Any]) -> None:
    """Be a worker, in the child: never returns."""
    for path, value in spec["patch"].items():
        module, _, name = path.rpartition(".")
        setattr(importlib.import_module(module), name, value)
    if spec["group"]:
        # As a shell starts it in a terminal.
        os.setpgid(0, 0)
    log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from django.conf import settings
    from django.core.management import execute_from_command_line
    from django.db import connections

    from pgbroker.conf import settings as ours

    settings.PGBROKER = {**settings.PGBROKER, **spec["settings"]}
    ours.cache_clear()
    settings.DEBUG = spec["debug"]
    if spec["storages"] is not None:
        settings.STORAGES = spec["storages"]
    connections.settings["default"].update(spec["database"])
    if spec["crash"] is not None:
        crash_at(**spec["crash"])
    if spec["losses"] is not None:
        lose_every(**spec["losses"])
    if not spec["handlers"] or spec["without"]:
        forget_handlers(spec["without"])
    execute_from_command_line(["manage.py", spec["command"], "--skip-checks", *spec["flags"]])
    # As any process ends: its threads are joined or abandoned by the interpreter.
    sys.exit(0)


def crash_at(nth: int, moment: str) -> None:
    """Die without a word before or after the *nth* statement of all loops, counted from 1."""
    from pgbroker import db

    lock, seen = threading.Lock(), itertools.count(1)

    def fault(now: str, name: str) -> None:
        if now == moment:
            with lock:
                if next(seen) == nth:
                    os.kill(os.getpid(), signal.SIGKILL)

    db.fault = fault


def lose_every(number: int, seed: int) -> None:
    """Once the worker claims, let one of *number* statements of its loops fail, half of them after they committed."""
    import psycopg

    from pgbroker import db

    dice, claims = random.Random(seed), threading.Event()

    def fault(now: str, name: str) -> None:
        if name == "claim":
            claims.set()
        if claims.is_set() and dice.random() < 1 / (2 * number):
            raise psycopg.OperationalError(f"the connection was lost {now} {name}")

    db.fault = fault


def forget_handlers(keys: list[str]) -> None:
    """Be a release that does not have these handlers; without *keys*, none of the tests'."""
    from pgbroker import registry

    registry._types._by_function = {
        function: task
        for function, task in registry._types._by_function.items()
        if (task.key not in keys if keys else not function.__module__.startswith("tests.runtime"))
    }
    registry._types._by_key = None


def main() -> None:
    """Import everything once, then serve."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
    import django

    django.setup()
    # What the command would import in each worker.
    from django.core.management import get_commands

    import tests.runtime.handlers  # noqa: F401

    get_commands()
    os.write(1, b"ready\n")
    Zygote().serve()


if __name__ == "__main__":
    main()

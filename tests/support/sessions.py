"""Two sessions that meet: a second one, work in a thread, and waiting until PostgreSQL says "blocked"."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Generic, TypeVar

import psycopg
import pytest
from django.db import connection, connections
from psycopg.conninfo import make_conninfo

T = TypeVar("T")

# How long a stage may take to be set. It decides no outcome: running out of it is an error of the test.
PATIENCE_SECONDS = 20.0


def pooled() -> bool:
    """Tell whether the test's database is behind a pooler (testproject/matrix/pooler.py)."""
    return "direct" in connections.settings


def conninfo(*, direct: bool = False, **changes: Any) -> str:
    """
    Say how to connect to the test's database as the application does.

    *direct* goes past a pooler, for a session of one's own: for what LISTEN, SET and backend pids need.
    """
    parameters = connections["direct" if direct and pooled() else "default"].get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold", "autocommit"):
        parameters.pop(name, None)
    return make_conninfo(**{**parameters, **changes})


def environment_of_processes() -> dict[str, str]:
    """Say to processes that a test starts where its database is."""
    chosen = {"DATABASE_URL": conninfo()}
    return {**chosen, "PGBROKER_DIRECT_URL": conninfo(direct=True)} if pooled() else chosen


@contextmanager
def second_session(tenant: str | None = None) -> Iterator[psycopg.Connection]:
    """
    Open another connection to the test's database as the same plain role, in autocommit.

    It sees the rows of *tenant*, or of all tenants. Begin a transaction with `session.transaction()`.
    """
    with psycopg.connect(conninfo(direct=True), autocommit=True) as session:
        session.execute(
            "select set_config('pgbroker.scope', %s, false), set_config('pgbroker.tenant_id', %s, false)",
            ("all" if tenant is None else "", tenant or ""),
        )
        yield session


_at_work: list[threading.Thread] = []


def wait_for_threads() -> None:
    """Wait for threads that a test left at work, skipped or failed in the middle: the next one is not to meet them."""
    while _at_work:
        _at_work.pop().join(PATIENCE_SECONDS)


class InThread(Generic[T]):
    """Work in a thread with a Django connection of its own; `pid` is its backend, `result()` its answer."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._connected = threading.Event()
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._pid = 0
        context = copy_context()
        self._thread = threading.Thread(target=lambda: context.run(self._run), daemon=True)

    def _run(self) -> None:
        try:
            connection.ensure_connection()
            self._pid = connection.connection.info.backend_pid
            self._connected.set()
            self._answer.append(self._work())
        except BaseException as error:  # handed to the thread that asks for the result
            self._error = error
        finally:
            self._connected.set()
            connections.close_all()

    def start(self) -> InThread[T]:
        """Begin, and return once the thread is connected."""
        _at_work.append(self._thread)
        self._thread.start()
        assert self._connected.wait(PATIENCE_SECONDS), "the thread did not connect"
        return self

    @property
    def pid(self) -> int:
        """The backend that serves the thread."""
        return self._pid

    @property
    def over(self) -> bool:
        """True once the work has returned or raised."""
        return not self._thread.is_alive()

    def result(self) -> T:
        """Wait for the work and return its answer, or raise what it raised."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the thread did not come back"
        if self._error is not None:
            raise self._error
        return self._answer[0]


def wait_until_blocked(blocked: InThread[T], by: psycopg.Connection | InThread[T] | None = None) -> None:
    """Return once PostgreSQL says that *blocked* waits for a lock, of *by* where that is given."""
    if pooled():
        pytest.skip("a pooler hides which backend waits")
    holder = by.pid if isinstance(by, InThread) else by.info.backend_pid if by is not None else None
    until = time.monotonic() + PATIENCE_SECONDS
    with second_session() as watcher:
        while time.monotonic() < until:
            (pids,) = watcher.execute("select pg_blocking_pids(%s)", (blocked.pid,)).fetchone()
            if pids and (holder is None or holder in pids):
                return
            assert not blocked.over, f"it never blocked: {blocked.result()!r}"
            time.sleep(0.005)
    raise AssertionError("it was not blocked in time")

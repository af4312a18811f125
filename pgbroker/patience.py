"""
A connection that gives up on an answer that is overdue.

The kernel notices a dead network only where nobody acknowledges a byte. A proxy, a load balancer or a
frozen server behind them acknowledges and answers nothing, and a wait for that has no end of its own.
"""

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

# How long an answer may take where nobody says otherwise, and the share of it that the server gets.
PATIENCE_SECONDS = 60.0
SERVER_SHARE = 0.8

T = TypeVar("T")
Steps = Generator[Any, Any, T]


class AnswerOverdue(psycopg.OperationalError):
    """The server, or the network before it, has not answered in time; the connection is closed."""


class PatientConnection(psycopg.Connection[tuple[Any, ...]]):
    """A psycopg connection each of whose waits ends after `patience` seconds without a word from the server."""

    patience = PATIENCE_SECONDS

    def wait(self, gen: Any, *args: Any, **more: Any) -> Any:
        """Consume a generator of psycopg's; raises `AnswerOverdue`, and closes the connection with it."""
        return super().wait(self._impatient(gen), *args, **more)

    def _impatient(self, steps: Steps[T]) -> Steps[T]:
        """Pass on what psycopg waits for; it comes back with nothing ten times a second."""
        until = time.monotonic() + self.patience
        try:
            waits_for = next(steps)
            while True:
                ready = yield waits_for
                if ready:
                    until = time.monotonic() + self.patience
                elif time.monotonic() >= until:
                    # At once, so that nobody waits for it again to end what it was about.
                    self.pgconn.finish()
                    raise AnswerOverdue(f"no answer in {self.patience:g} s; the connection was closed")
                waits_for = steps.send(ready)
        except StopIteration as done:
            answer: T = done.value
            return answer


# By alias: which of its OPTIONS `limit_waits` has set.
limited: dict[str, tuple[str, ...]] = {}


def limit_waits() -> None:
    """Let Django's connections of this process notice a host that is gone, where the OPTIONS say nothing of it."""
    for alias in connections:
        wrapper = connections[alias]
        if wrapper.vendor == "postgresql" and alias not in limited:
            options = wrapper.settings_dict.setdefault("OPTIONS", {})
            missing = {name: value for name, value in network_limits().items() if name not in options}
            options.update(missing)
            limited[alias] = tuple(missing)


def connect(
    wrapper: BaseDatabaseWrapper, patience: float, application_name: str
) -> tuple[PatientConnection, bool]:
    """
    Connect as an alias of Django's says; returns the connection and whether statements may be prepared on it.

    Neither connecting nor an answer takes longer than *patience* seconds. Raises psycopg.OperationalError.
    """
    parameters = wrapper.get_connection_params()
    # Django's own cursors, loaders and settings are for Django's connections.
    for name in ("cursor_factory", "context", "prepare_threshold", "autocommit"):
        parameters.pop(name, None)
    options = wrapper.settings_dict.get("OPTIONS", {})
    # The two ways a project says that a transaction pooler stands in between.
    prepares = not (
        wrapper.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
        or ("prepare_threshold" in options and options["prepare_threshold"] is None)
    )
    for name, value in network_limits(patience).items():
        # What `limit_waits` set is for handlers, who may wait longer.
        if name in limited.get(wrapper.alias, ()) or name not in parameters:
            parameters[name] = value
    parameters.setdefault("application_name", application_name)
    connection = PatientConnection.connect(
        **parameters, autocommit=True, prepare_threshold=5 if prepares else None
    )
    connection.patience = patience
    return connection, prepares


def network_limits(patience: float = PATIENCE_SECONDS) -> dict[str, int]:
    """
    Return the connection parameters that let libpq notice a host that is gone; TCP only, but the first.

    It answers nothing, not even a reset: without a limit a wait would last a quarter of an hour, and one
    with nothing under way for ever.
    """
    return {
        "connect_timeout": int(min(10, max(2, patience))),
        "tcp_user_timeout": int(min(20.0, patience) * 1000),
        "keepalives_idle": int(min(20, max(1, patience))),
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }

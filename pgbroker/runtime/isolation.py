"""Around each handler: whose job it is goes into context variables, and nothing of it stays behind."""

import logging
import math
import os
import select
import time
from collections import deque
from contextvars import ContextVar, Token
from typing import Any
from uuid import UUID

from django.db import connections
from psycopg.pq import TransactionStatus

from pgbroker import correlation
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.log_tail import LONGEST_LINE, MOST_LINES

_log = logging.getLogger("pgbroker.runtime")

current_attempt: ContextVar[Attempt | None] = ContextVar("pgbroker_current_attempt", default=None)


def enter(attempt: Attempt) -> list[tuple[ContextVar[Any], Token[Any]]]:
    """Set tenant, correlation id, trace parent, principal and the attempt; returns what `leave` takes."""
    lease = attempt.lease
    # The tenant "default" is what the database reads into no tenant: its statements travel alone.
    tenant = None if lease.tenant_id == correlation.DEFAULT_TENANT else lease.tenant_id
    values: tuple[tuple[ContextVar[Any], Any], ...] = (
        (current_attempt, attempt),
        (correlation.tenant, tenant),
        (correlation.current_lease, lease),
        (correlation.correlation_id, lease.correlation_id),
        (correlation.traceparent, lease.traceparent),
        (correlation.principal, lease.principal),
    )
    return [(variable, variable.set(value)) for variable, value in values]


def enter_empty(attempt: Attempt) -> None:
    """Do as `enter` does in a context where nothing is set yet: what is absent is not set."""
    lease = attempt.lease
    current_attempt.set(attempt)
    correlation.current_lease.set(lease)
    if lease.tenant_id != correlation.DEFAULT_TENANT:
        correlation.tenant.set(lease.tenant_id)
    if lease.correlation_id is not None:
        correlation.correlation_id.set(lease.correlation_id)
    if lease.traceparent is not None:
        correlation.traceparent.set(lease.traceparent)
    if lease.principal is not None:
        correlation.principal.set(lease.principal)


def leave(tokens: list[tuple[ContextVar[Any], Token[Any]]]) -> None:
    """Put the context variables back."""
    for variable, token in tokens:
        variable.reset(token)


class Losses:
    """When a worker of this process last lost a connection: what was open then is not to be trusted."""

    def __init__(self) -> None:
        self.last_at = 0.0

    def note(self) -> None:
        """Take note that a connection was lost just now."""
        self.last_at = time.monotonic()


losses = Losses()

# How long a handler's connection serves the jobs of its thread where CONN_MAX_AGE is 0. Django closes one after
# each request then; after each job that would cost more than most jobs do. A thread without work closes its own.
KEEP_SECONDS = 60.0
IDLE_SECONDS = 1.0


def end_if_forked(pid: int) -> None:
    """
    After a handler: end this process if it is not *pid*, the worker's, but a child that the handler forked.

    It has one thread of the worker and none of its loops, and would work on the parent's sockets. No clean-up
    runs: everything it could flush or close is the parent's.
    """
    if os.getpid() != pid:
        os._exit(0)


def freshen_connections() -> None:
    """
    Before a handler: close Django connections of this thread that are broken, too old, or older than a loss.

    A restart of the server kills the idle ones too, and Django would find out by failing the next job.
    """
    for connection in connections.all(initialized_only=True):
        if connection.connection is None:
            continue
        if getattr(connection, "pgbroker_cleaned_at", math.inf) <= losses.last_at or _has_news(
            connection.connection
        ):
            connection.close()
        else:
            connection.close_if_unusable_or_obsolete()


def clean_connections() -> None:
    """
    After a handler: what it left open, half done or switched off must not reach the next one.

    What is older than CONN_MAX_AGE is closed (see KEEP_SECONDS), and the query log of DEBUG is emptied.
    """
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        if connection.connection is None:
            continue
        connection.pgbroker_cleaned_at = time.monotonic()  # type: ignore[attr-defined]
        try:
            spoilt = (
                connection.in_atomic_block
                or connection.needs_rollback
                or connection.autocommit != connection.settings_dict["AUTOCOMMIT"]
                or connection.errors_occurred
                or getattr(connection, "pgbroker_session_changed", False)
                or _is_raw_spoilt(connection.connection)
            )
            if spoilt:
                connection.close()
                # close() inside an atomic block only marks it; the block is gone with its handler.
                if connection.connection is not None or connection.in_atomic_block:
                    _abandon(connection)
                # What a handler set for its session ended with it.
                vars(connection).pop("pgbroker_session_changed", None)
            else:
                _keep(connection)
                connection.close_if_unusable_or_obsolete()
        except Exception:
            _log.debug("closing a handler's connection failed", exc_info=True)
            _abandon(connection)
            vars(connection).pop("pgbroker_session_changed", None)


def close_idle_connections() -> None:
    """When a thread has had no job for a while: close what only the flow of jobs kept open."""
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict["CONN_MAX_AGE"] == 0:
            connection.close()


def _keep(connection: Any) -> None:
    """Let a connection live for KEEP_SECONDS where the project said nothing, or that it ends with its use."""
    settings = connection.settings_dict
    # A pool of Django's own wants its connection back each time, which costs little.
    if settings["CONN_MAX_AGE"] != 0 or settings.get("OPTIONS", {}).get("pool"):
        return
    if getattr(connection, "pgbroker_kept", None) is not connection.connection:
        connection.pgbroker_kept = connection.connection
        connection.close_at = time.monotonic() + KEEP_SECONDS


def _has_news(raw: Any) -> bool:
    """Tell whether the server has said something to an idle connection, such as goodbye."""
    pgconn = getattr(raw, "pgconn", None)
    if pgconn is None or getattr(raw, "closed", False):
        return False
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def _is_raw_spoilt(raw: Any) -> bool:
    """Tell whether a driver's connection was closed, or left otherwise than Django knows."""
    if (pgconn := getattr(raw, "pgconn", None)) is None:
        return bool(getattr(raw, "closed", False))
    # Of one that is closed it is unknown. Django has looked that its own autocommit is the settings'.
    return bool(pgconn.transaction_status != TransactionStatus.IDLE or not raw.autocommit)


def _abandon(connection: Any) -> None:
    """Forget a connection whose transaction state cannot be repaired."""
    raw, connection.connection = connection.connection, None
    connection.in_atomic_block = False
    connection.savepoint_ids = []
    connection.atomic_blocks = []
    connection.needs_rollback = False
    connection.closed_in_transaction = False
    connection.run_on_commit = []
    if raw is not None:
        try:
            raw.close()
        except Exception:
            _log.debug("closing a handler's connection failed", exc_info=True)


class LogTail(logging.Handler):
    """Keeps the last lines that a handler logged, to be stored with its attempt."""

    def __init__(self, worker_id: UUID | None = None) -> None:
        super().__init__()
        # Of several workers in one process each keeps the lines of its own attempts.
        self.worker_id = worker_id
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record if an attempt runs in this context."""
        self._leave_to_last_resort(record)
        attempt = current_attempt.get()
        if attempt is None or not attempt.is_open or record.name.startswith("pgbroker"):
            return
        if self.worker_id is not None and attempt.lease.worker_id != self.worker_id:
            return
        try:
            line = self.format(record)[:LONGEST_LINE]
        except Exception:
            self.handleError(record)
            return
        if attempt.log_lines is None:
            attempt.log_lines = deque(maxlen=MOST_LINES)
        attempt.log_lines.append(line)

    def _leave_to_last_resort(self, record: logging.LogRecord) -> None:
        """
        Let logging write a record to stderr as it does where nothing is configured.

        It does not where it finds a handler, and this one shows nothing to anybody.
        """
        last_resort, root = logging.lastResort, logging.getLogger()
        if last_resort is None or record.levelno < last_resort.level:
            return
        if self is not next((each for each in root.handlers if isinstance(each, LogTail)), None):
            return
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(not isinstance(each, LogTail) for each in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        last_resort.handle(record)

"""
Handlers that wait for an answer of the database which will never come.

A network that forgets a connection, or a proxy that swallows, tells neither side. A handler that waits in
such a connection would wait for ever, and its lease be renewed for ever: a job that nobody could have back.
"""

import math
import os
import socket
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg.pq import TransactionStatus

from pgbroker import telemetry
from pgbroker.db import Session
from pgbroker.lifecycle.backends import backends
from pgbroker.runtime.isolation import current_attempt, losses

# From one look at a connection that seems severed to the next, and where the server is at work for all of them.
LOOK_SECONDS, CALM_SECONDS = 1.0, 5.0
# Looks after which one is cut that has changed in none of them. A handler may rightly take a while between two
# statements that it sends in a pipeline of its own.
LOOKS = {"gone": 2, "idle": 2, "reading": 6}


class Severed:
    """
    Finds connections of handlers that the other side has given up, and cuts them: their handlers fail, and are retried.

    Looked for only after this process has lost a connection itself, and only among those that are as old
    as the loss. One is cut when it waits for an answer while the server, asked again, still has nothing under
    way for it, waits for the rest of what it has sent, or no longer knows it. Behind a transaction pooler
    nobody can tell, and none is cut.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        # Django's connection objects by thread, with the driver's connection and when it was opened.
        self._opened: WeakKeyDictionary[BaseDatabaseWrapper, tuple[Any, float]] = WeakKeyDictionary()
        # Those that looked severed the last time, by the server's process: as what, since when, in how many looks.
        self._seen: dict[int, tuple[str, datetime | None, int]] = {}
        self._look_at = 0.0

    def watch(self) -> None:
        """Hear of every connection that a handler opens from now on."""
        connection_created.connect(self._note, dispatch_uid=f"pgbroker.severed.{id(self)}")

    def _note(self, *, connection: BaseDatabaseWrapper, **_: Any) -> None:
        # Only handlers': this process may be a web server with a worker inside.
        if connection.alias == self.alias and current_attempt.get() is not None:
            self._opened[connection] = (connection.connection, time.monotonic())

    def look(self, *, using: Session) -> float:
        """Ask for those that may be severed, and cut those that are; returns the wait until it is worth it again."""
        waiting = self._waiting()
        if not waiting:
            self._seen.clear()
            return math.inf
        if (wait := self._look_at - time.monotonic()) > 0:
            return wait
        self._ask(waiting, using=using)
        wait = LOOK_SECONDS if self._seen else CALM_SECONDS
        self._look_at = time.monotonic() + wait
        return wait

    def _ask(self, waiting: dict[int, Any], *, using: Session) -> None:
        known = backends(list(waiting), using=using)
        if using.connection.info.backend_pid not in known:
            # A pooler hands out numbers of its own.
            self._seen.clear()
            return
        seen = {}
        for pid, raw in waiting.items():
            does, since = known[pid][1:] if pid in known else ("gone", None)
            if does not in LOOKS:
                continue
            *before, looks = self._seen.get(pid, (None, None, 0))
            looks = looks + 1 if before == [does, since] else 1
            seen[pid] = (does, since, looks)
            if looks >= LOOKS[does] and _cut(raw):
                telemetry.emit("worker.connection_severed", alias=self.alias, pid=pid)
        self._seen = seen

    def _waiting(self) -> dict[int, Any]:
        """List connections as old as the last loss that wait for an answer, by the server's process."""
        for _ in range(10):
            try:
                opened = list(self._opened.items())
            except RuntimeError:
                # One came or went while we looked.
                continue
            return {
                raw.info.backend_pid: raw
                for wrapper, (raw, at) in opened
                if at <= losses.last_at and wrapper.connection is raw and _waits(raw)
            }
        return {}


def keep_looking(severed: Severed, session: Session, goes_on: Callable[[], bool]) -> None:
    """Look again and again, as long as *goes_on* says so, whatever the database does meanwhile."""
    while goes_on():
        try:
            wait = severed.look(using=session)
        except psycopg.Error:
            session.drop()
            wait = LOOK_SECONDS
        time.sleep(min(wait, CALM_SECONDS))
    session.drop()


def _waits(raw: Any) -> bool:
    return not raw.closed and raw.pgconn.transaction_status == TransactionStatus.ACTIVE


def _cut(raw: Any) -> bool:
    """End the wait of a connection's own thread: for it the server has closed the connection."""
    number = raw.pgconn.socket
    copy = socket.socket(fileno=os.dup(number))
    try:
        # It may have ended meanwhile, and its number be somebody else's.
        if not _waits(raw) or raw.pgconn.socket != number:
            return False
        copy.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    finally:
        copy.close()
    return True

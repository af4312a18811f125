"""What a process looks at before it starts: can the database be reached, and does it have our migrations?"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from django.core.checks import ERROR
from django.core.management.base import CommandError
from django.db.migrations.loader import MigrationLoader

from pgbroker import db, telemetry
from pgbroker.checks import check_server, missing_migrations
from pgbroker.errors import SchemaTooOld
from pgbroker.management.exits import CONFIGURATION, UNREACHABLE, unreachable


@dataclass(frozen=True, slots=True)
class Target:
    """The database a process works on, as it answers."""

    alias: str
    host: str
    port: int
    database: str
    user: str
    server: str
    migration: str
    warnings: tuple[str, ...]

    @property
    def facts(self) -> dict[str, object]:
        """What a probe's answer tells of it."""
        return {name: getattr(self, name) for name in ("host", "port", "database", "server", "migration")}


@contextmanager
def limited_start(seconds: float) -> Iterator[None]:
    """
    End the process with 3 when neither a worker nor a scheduler has started in it after so many seconds.

    A network that swallows, or somebody's lock, would hold it for ever: alive, and of no use to anybody.
    """
    timers = [_timer(seconds)]

    def hear(event: str, keys: dict[str, Any]) -> None:
        timers[-1].cancel()
        if event == "worker.name_awaited":
            # The database answers; what it waits for is another worker's lease.
            timers.append(_timer(seconds + keys["seconds"]))

    unsubscribe = telemetry.subscribe(
        hear, wants=frozenset({"worker.started", "scheduler.started", "worker.name_awaited"}).__contains__
    )
    try:
        yield
    finally:
        timers[-1].cancel()
        unsubscribe()


def _timer(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, _give_up, (seconds,))
    timer.daemon = True
    timer.start()
    return timer


def _give_up(seconds: float) -> None:
    said = (
        f"[database_unreachable] not started in {seconds:g} s: the database does not answer, or is locked.\n"
    )
    os.write(2, said.encode())
    os._exit(UNREACHABLE)


def look_at(alias: str) -> Target:
    """Connect once; raises `DatabaseUnreachable`, `NotPostgreSQL` or `SchemaTooOld`."""
    session = db.Session(alias, purpose="start")
    try:
        answering = session.connection.info
        host, port, database, user = answering.host, answering.port, answering.dbname, answering.user
        server = answering.server_version
    except psycopg.OperationalError as error:
        raise unreachable(alias, error) from error
    finally:
        session.drop()
    troubles = list(check_server(alias))
    if any(trouble.level >= ERROR for trouble in troubles):
        raise CommandError("\n".join(map(str, troubles)), returncode=CONFIGURATION)
    missing = missing_migrations(alias)
    if missing:
        raise SchemaTooOld(alias, missing)
    return Target(
        alias=alias,
        host=host,
        port=port,
        database=database,
        user=user,
        server=f"{server // 10000}.{server % 10000}",
        migration=latest_migration(),
        warnings=tuple(map(str, troubles)),
    )


def latest_migration() -> str:
    """Name the newest migration of this release."""
    return ", ".join(name for _, name in MigrationLoader(None).graph.leaf_nodes("pgbroker"))

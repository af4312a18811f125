"""
Where an embedded server's files are. Only a description: whether the server runs is another question.

Settings name the socket before it exists, so every process of one user must come to the same answer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from testproject.pg_account import may_enter, private_directory, server_uid
from testproject.pg_programs import Programs, find_programs

# Each has a server of its own: what one fills or empties is nobody else's.
Kind = Literal["test", "demo", "bench", "database", "chaos"]

CHECKOUT = Path(__file__).resolve().parent.parent
DATABASE = "pgbroker"
ROLE = "pgbroker_app"
SUPERUSER = "postgres"
PORT = 5432  # only names the socket's file; no TCP port is opened
LONGEST_SOCKET_PATH = 100  # the kernel takes 107 bytes; leave a little for the lock file beside the socket


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """One server's place on the disk and its address."""

    kind: Kind
    directory: Path
    sockets: Path
    programs: Programs

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def host(self) -> str:
        return str(self.sockets)

    @property
    def port(self) -> int:
        return PORT

    def dsn(self, *, user: str = ROLE, database: str = DATABASE) -> str:
        host = self.host.replace("\\", "\\\\").replace("'", "\\'")
        return f"host='{host}' port={self.port} dbname={database} user={user}"


def cluster(kind: Kind, *, base: Path | None = None) -> Cluster:
    """
    Tell where the server of this *kind* lives, by default for this checkout, without starting it.

    Raises `EmbeddedPostgresError` when there are no programs to run it with.
    """
    programs = find_programs()
    if base is None:
        base = _base_of_checkout()
    elif not may_enter(next(place for place in (base, *base.parents) if place.exists())):
        base = private_directory(str(base))
    # The major version is in the name because data of one major cannot be read by another; the user is,
    # because a server started by root and one started by a user must not meet in one directory.
    directory = base / f"{kind}-{programs.major}-{server_uid()}"
    sockets = directory / "sock"
    path = os.fsencode(sockets / f".s.PGSQL.{PORT}")
    if len(path) > LONGEST_SOCKET_PATH or b"," in path:  # libpq splits a host name at commas
        sockets = private_directory(str(directory))
    return Cluster(kind=kind, directory=directory, sockets=sockets, programs=programs)


def superuser_dsn(kind: Kind = "test", *, database: str = "postgres", base: Path | None = None) -> str:
    """Return how to connect as the superuser, for what the application itself may never do."""
    return cluster(kind, base=base).dsn(user=SUPERUSER, database=database)


def _base_of_checkout() -> Path:
    """Return `.pg` in the checkout, or a directory in /tmp when the server or the user cannot use that."""
    base = CHECKOUT / ".pg"
    if os.geteuid() == 0:
        usable = may_enter(CHECKOUT)
    else:
        usable = os.access(base if base.exists() else CHECKOUT, os.W_OK | os.X_OK)
    return base if usable else private_directory(str(CHECKOUT))

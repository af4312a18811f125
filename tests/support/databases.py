"""Databases that a test makes for itself."""

from __future__ import annotations

import time

import psycopg
from psycopg import sql

from tests.support.sessions import PATIENCE_SECONDS


def drop_database(server: psycopg.Connection, name: str) -> None:
    """Remove a database, whoever is connected to it; an autovacuum at work there is waited for."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            server.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege:
            # Only a superuser may end it.
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
        else:
            return

"""Which database this project uses: the one in `DATABASE_URL`, else the embedded server's; and how others go."""

from __future__ import annotations

import os
import time
from typing import Any, get_args

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from testproject import embedded_pg

# How long an autovacuum may be at work in a database that nobody needs any more.
AUTOVACUUM_SECONDS = 60.0


def kind() -> embedded_pg.Kind:
    """Return which embedded server is meant: `PGBROKER_PG_KIND` says it, for subprocesses too."""
    chosen = os.environ.get("PGBROKER_PG_KIND")
    return next((kind for kind in get_args(embedded_pg.Kind) if kind == chosen), "demo")


def is_embedded() -> bool:
    return not os.environ.get("DATABASE_URL")


def django_database(dsn: str) -> dict[str, Any]:
    """Translate a libpq URL or keyword string to an entry of Django's `DATABASES`."""
    options = {name: value for name, value in conninfo_to_dict(dsn).items() if value is not None}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": options.pop("dbname", ""),
        "USER": options.pop("user", ""),
        "PASSWORD": options.pop("password", ""),
        "HOST": options.pop("host", ""),
        "PORT": str(options.pop("port", "")),
        "OPTIONS": options,
    }


def configured_database() -> dict[str, Any]:
    """Describe the chosen database. Starts nothing: many commands only read the settings."""
    if url := os.environ.get("DATABASE_URL"):
        return django_database(url)
    try:
        dsn = embedded_pg.cluster(kind()).dsn()
    except embedded_pg.EmbeddedPostgresError:
        # mypy, Sphinx and `manage.py help` must work without a server. Whoever needs one calls
        # ensure_running() first, which says what is missing.
        dsn = f"dbname={embedded_pg.DATABASE} user={embedded_pg.ROLE}"
    return django_database(dsn)


def drop_database(server: psycopg.Connection[Any], name: str) -> None:
    """Remove a database, whoever is connected to it; an autovacuum at work there is waited for."""
    until = time.monotonic() + AUTOVACUUM_SECONDS
    while True:
        try:
            server.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege:
            # Only a superuser may end it; it ends by itself.
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
        else:
            return

"""What is measured, and under which conditions: said in every line, and refused where it would flatter."""

from __future__ import annotations

import platform
from functools import cache

import django
import psycopg
from django.db import connection

import pgbroker
from pgbroker.conf import settings

PROTECTED = ("job", "job_payload", "execution", "job_event")


class WrongConditions(Exception):
    """What would be measured is not what runs in production; the message says why."""


def check() -> None:
    """Raise `WrongConditions` where a shortcut would make the figures better than they are."""
    with connection.cursor() as cursor:
        cursor.execute("select rolsuper or rolbypassrls from pg_roles where rolname = current_user")
        if cursor.fetchone() != (False,):
            raise WrongConditions(
                "this role is a superuser or bypasses row-level security: connect as another one"
            )
        cursor.execute(
            "select count(*) from pg_class where relnamespace = 'pgbroker'::regnamespace "
            "and relname = any (%s) and relrowsecurity and relforcerowsecurity",
            [list(PROTECTED)],
        )
        if cursor.fetchone() != (4,):
            raise WrongConditions("row-level security is off")
        cursor.execute("show synchronous_commit")
        if cursor.fetchone() != ("on",):
            raise WrongConditions("synchronous_commit is not on")
    if settings().EVENTS != "terminal":
        raise WrongConditions('PGBROKER["EVENTS"] is not terminal')


@cache
def versions() -> dict[str, str]:
    """Tell what was measured, and on what kind of server."""
    with connection.cursor() as cursor:
        cursor.execute("select current_setting('server_version'), current_setting('fsync')")
        server, fsync = cursor.fetchone()
    return {
        "pgbroker": pgbroker.__version__,
        "python": platform.python_version(),
        "django": django.get_version(),
        "psycopg": psycopg.__version__,
        "postgresql": server,
        "fsync": fsync,
    }

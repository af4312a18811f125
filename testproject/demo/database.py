"""The demo's database: its schema up to date, and a user for the admin."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import OperationalError, connection

from testproject.demo.processes import DIRECTORY, DemoFailed

USER = "demo"
MIGRATING = 0x70676465  # the key of an advisory lock, chosen by chance


def migrate() -> str:
    """Bring the schema up to date, and tell which database it is; raises `DemoFailed`."""
    try:
        with alone():
            call_command("migrate", verbosity=0, interactive=False)
    except OperationalError as error:
        raise DemoFailed(f"The database cannot be used: {error}") from error
    info = connection.connection.info
    return f"{info.dbname} on PostgreSQL {info.server_version // 10000}"


@contextmanager
def alone() -> Iterator[None]:
    """Keep other demos out: two that start at once would both make the tables."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_advisory_lock(%s)", [MIGRATING])
        try:
            yield
        finally:
            cursor.execute("select pg_advisory_unlock(%s)", [MIGRATING])


def make_admin() -> str:
    """Make sure of the admin's user, and return its password."""
    password = remembered_password()
    user, _ = get_user_model().objects.get_or_create(
        username=USER, defaults={"is_staff": True, "is_superuser": True}
    )
    if not user.check_password(password):
        user.set_password(password)
        user.save()
    return password


def remembered_password() -> str:
    """
    Return the password of this checkout's demos: random, made by the first of them.

    Not the same everywhere, because `DATABASE_URL` may name a database that others reach; and not new each
    time, because two demos share the user.
    """
    place = DIRECTORY / "password"
    if not place.exists():
        draft = DIRECTORY / f"password-{os.getpid()}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(6))
        try:
            os.link(draft, place)  # unlike a rename, it fails when another demo was quicker
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return place.read_text()

"""How a command ends: the exit codes, and errors of pgbroker as errors of a command."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError, OperationalError, ProgrammingError

from pgbroker.db import lacks_migrations
from pgbroker.errors import (
    DatabaseUnreachable,
    InvalidOption,
    InvalidSetting,
    InvalidTenant,
    NotPostgreSQL,
    PgBrokerError,
    PortUnavailable,
    SchemaTooOld,
    sentence,
)

ERROR, CONFIGURATION, UNREACHABLE, SCHEMA_TOO_OLD = 1, 2, 3, 4
# As a shell tells of a program that SIGPIPE ended.
READER_GONE = 141

_CODES: tuple[tuple[type[PgBrokerError], int], ...] = (
    (DatabaseUnreachable, UNREACHABLE),
    (SchemaTooOld, SCHEMA_TOO_OLD),
    (InvalidOption, CONFIGURATION),
    (InvalidSetting, CONFIGURATION),
    (InvalidTenant, CONFIGURATION),
    (NotPostgreSQL, CONFIGURATION),
    (PortUnavailable, CONFIGURATION),
)


def exit_code_of(error: PgBrokerError) -> int:
    """Return the exit code of a command that this error ends."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ERROR)


def refused(troubles: Sequence[PgBrokerError], *, code: int | None = None) -> CommandError:
    """Make one command error of everything that is wrong, a line each, with its stable code."""
    lines = [f"[{error.code}] {error.message}" for error in troubles]
    if code is None:
        code = max(exit_code_of(error) for error in troubles)
    return CommandError("\n".join(lines), returncode=code)


@contextmanager
def errors_of_a_command(alias: str) -> Iterator[None]:
    """End the command with the right code and one readable line for what pgbroker or the database says."""
    try:
        with _until_the_reader_has_enough():
            yield
    except PgBrokerError as error:
        raise refused([error]) from error
    except (OperationalError, InterfaceError, psycopg.OperationalError) as error:
        if isinstance(error.__cause__, (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable)):
            # It was reached, and is too busy, or waits for a lock.
            raise CommandError(f"[database_error] {str(error).strip()}", returncode=ERROR) from error
        raise refused([unreachable(alias, error)]) from error
    except ProgrammingError as error:
        # Of the ORM; a statement of ours has told it already.
        if not lacks_migrations(error):
            raise
        raise refused([SchemaTooOld(alias)]) from error
    except DatabaseError as error:
        raise CommandError(f"[database_error] {str(error).strip()}", returncode=ERROR) from error


@contextmanager
def _until_the_reader_has_enough() -> Iterator[None]:
    """End quietly, as other programs do, when whoever reads the output has gone: `broker_groups show big | head`."""
    try:
        try:
            yield
        finally:
            # Now, since at the end of the process nobody could handle it.
            sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer has to go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(READER_GONE) from None


def unreachable(alias: str, error: Exception) -> DatabaseUnreachable:
    """Make the error of a database that does not answer."""
    return DatabaseUnreachable(
        f"database alias {alias!r} cannot be reached: {sentence(str(error))} "
        f"Look at DATABASES[{alias!r}] and whether PostgreSQL runs.",
        alias=alias,
    )

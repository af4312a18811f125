"""
Run the statements: beside `scoping` the only module that touches a cursor or a `pgbroker.*` setting.

Every statement travels with its scope in one psycopg pipeline: one implicit transaction, one round
trip. The settings are local to that transaction, so no connection ever remembers a tenant.

A worker's loops own a `Session`, a plain psycopg connection; everything else uses Django's connection
of the alias and takes part in the caller's transaction.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import errors as pg_errors
from psycopg.types.json import set_json_loads

from pgbroker import correlation, sql
from pgbroker.conf import settings
from pgbroker.errors import NotPostgreSQL, PgBrokerError, SchemaTooOld, refused
from pgbroker.patience import PATIENCE_SECONDS, SERVER_SHARE, PatientConnection, connect
from pgbroker.stored_json import read_json

T = TypeVar("T")
Row = Callable[[Sequence[Any]], T]

_log = logging.getLogger("pgbroker.db")

# A deadlock victim or a failed serialisation did nothing: outside of a caller's transaction it runs again.
REPEATABLE = (pg_errors.DeadlockDetected, pg_errors.SerializationFailure)
REPEATS = 5
# What the server says of a schema, a table, a column or a function that a migration makes.
UNDEFINED = (
    pg_errors.InvalidSchemaName,
    pg_errors.UndefinedTable,
    pg_errors.UndefinedColumn,
    pg_errors.UndefinedFunction,
)
# What functions of ours raise, with pgbroker's error code as the hint.
REFUSED = "PB001"
TRANSACTION_TIMEOUT_SINCE = 170000

# Transaction-local, in the same round trip: the plan must not change with the size of the table. What runs all the
# time is planned once a session: planning cost more than all else of a small batch. What runs now and then is planned
# for its parameters.
_WAYS = (
    "set_config('enable_seqscan', 'off', true), "
    "set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), "
    "set_config('enable_bitmapscan', 'off', true), "
    "set_config('jit', 'off', true)"
)
_OWN_PLAN = f"set_config('plan_cache_mode', 'force_custom_plan', true), {_WAYS}"
_KEPT_PLAN = f"set_config('plan_cache_mode', 'force_generic_plan', true), {_WAYS}"
# Remember what was set before, for callers' transactions; evaluated left to right, in one statement.
_REMEMBER = (
    "set_config('pgbroker.outer_scope', coalesce(current_setting('pgbroker.scope', true), ''), true), "
    "set_config('pgbroker.outer_tenant', coalesce(current_setting('pgbroker.tenant_id', true), ''), true)"
)
RESTORE = (
    "select set_config('pgbroker.scope', current_setting('pgbroker.outer_scope'), true), "
    "set_config('pgbroker.tenant_id', current_setting('pgbroker.outer_tenant'), true)"
)
# Verbs lock rows and then look again, which tells nothing new in the snapshot of a whole transaction.
_READ_COMMITTED = (
    "select set_config('default_transaction_isolation', 'read committed', false) "
    "where current_setting('default_transaction_isolation') <> 'read committed'"
)
_JSONB_OID = 3802

# Tests put a callable here to fail or pause at a chosen statement: called with the moment and the name.
fault: Callable[[str, str], None] | None = None


@cache
def scope_text(
    scope: str,
    plan: str,
    events: str,
    tenant_given: bool,
    remember: bool,
    limits: tuple[tuple[str, str], ...] = (),
) -> str:
    """Write the statement that goes before another one; empty when there is nothing to set."""
    parts = [_REMEMBER] if remember else []
    if scope == "all":
        parts.append("set_config('pgbroker.scope', 'all', true)")
    elif tenant_given:
        parts.append("set_config('pgbroker.scope', '', true)")
        parts.append("set_config('pgbroker.tenant_id', %s, true)")
    elif not remember:
        parts = []
    if events != "terminal":
        parts.append(f"set_config('pgbroker.events', '{events}', true)")
    if plan:
        parts.append(plan)
    parts += [f"set_config('{name}', '{value}', true)" for name, value in limits]
    return f"select {', '.join(parts)}" if parts else ""


def _plan_of(statement: sql.Statement) -> str:
    """Return the settings of the planner that a statement asks for; empty when it asks for none."""
    if statement.kept:
        return _KEPT_PLAN
    return _OWN_PLAN if statement.hot else ""


def _scope_of(statement: sql.Statement) -> tuple[str, str | None]:
    """Decide the scope of a statement: its own, widened by `scope_all()`, or the context's tenant."""
    if statement.scope == "none":
        return "none", None
    if statement.scope == "all" or correlation.scope_all.get():
        return "all", None
    return "tenant", correlation.tenant.get()


class Session:
    """
    A worker thread's own connection to an alias: plain psycopg, autocommit, never shared.

    It connects at first use and after `drop()`. It honours the alias's OPTIONS, `assume_role` too. Neither
    a statement nor a connect takes longer than *patience* seconds: a network that swallows is noticed.
    """

    def __init__(
        self,
        alias: str,
        *,
        purpose: str,
        gate: Callable[[], AbstractContextManager[None]] = nullcontext,
        lock_timeout: str | None = None,
        statement_timeout: str | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.alias, self.purpose, self.gate, self.patience = alias, purpose, gate, patience
        # For whoever must not wait for a lock, such as one that its own caller holds, or has little time. The
        # server ends a statement before this side hangs up: a retry must not meet the one before it.
        limits = {
            "lock_timeout": lock_timeout,
            "statement_timeout": statement_timeout or f"{int(patience * SERVER_SHARE * 1000)}ms",
        }
        self.limits = tuple((name, value) for name, value in limits.items() if value)
        self._connection: PatientConnection | None = None
        self._connected_at = 0.0
        self._prepare = True

    @property
    def connection(self) -> PatientConnection:
        """The open connection; connects, inside *gate*, when there is none. Raises psycopg.OperationalError."""
        if self._connection is None or self._connection.closed:
            with self.gate():
                self._connection = self._connect()
            self._connected_at = time.monotonic()
        return self._connection

    @property
    def connected_seconds(self) -> float:
        """For how long the last connection has been open."""
        return time.monotonic() - self._connected_at

    @property
    def is_open(self) -> bool:
        """True while it holds a connection that is not known to be broken."""
        return self._connection is not None and not self._connection.closed

    def _connect(self) -> PatientConnection:
        wrapper = connections[self.alias]
        if wrapper.vendor != "postgresql":
            raise NotPostgreSQL(
                f"database alias {self.alias!r} is {wrapper.vendor}. pgbroker needs PostgreSQL.",
                alias=self.alias,
            )
        connection, self._prepare = connect(wrapper, self.patience, f"pgbroker {self.purpose}")
        if connection.info.server_version >= TRANSACTION_TIMEOUT_SINCE:
            # A statement's own limit ends with it. Whoever is frozen, or cut off, before the end of the transaction
            # has arrived would keep its locks, which everybody else passes over.
            limits = dict(self.limits) | {"transaction_timeout": f"{int(self.patience * 1000)}ms"}
            self.limits = tuple(limits.items())
        set_json_loads(read_json, connection)
        if not (connection.info.parameter_status("DateStyle") or "ISO").startswith("ISO"):
            # psycopg reads no other style; Django sets nothing here either way.
            connection.execute("set datestyle to 'ISO'")
        connection.execute(_READ_COMMITTED)
        if role := wrapper.settings_dict.get("OPTIONS", {}).get("assume_role"):
            connection.execute(psycopg.sql.SQL("set role {}").format(psycopg.sql.Identifier(role)))
        return connection

    def drop(self) -> None:
        """Close the connection, whatever state it is in; the next use opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:  # whatever it is, nobody uses this connection again
                _log.debug("closing a broken connection failed", exc_info=True)

    def run(self, statement: sql.Statement, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run one statement in its scope, in one round trip, and return its rows."""
        connection = self.connection
        scope, tenant = _scope_of(statement)
        plan, given = _plan_of(statement), tenant is not None
        before = scope_text(scope, plan, settings().EVENTS, given, False, self.limits)
        prepare = True if self._prepare else None
        cursor = connection.cursor()
        if not before:
            cursor.execute(statement.text.encode(), parameters, prepare=prepare)
        else:
            with connection.pipeline():
                connection.cursor().execute(
                    before.encode(), None if tenant is None else (tenant,), prepare=prepare
                )
                cursor.execute(statement.text.encode(), parameters, prepare=prepare)
        return cursor.fetchall() if _columns_of(cursor) else []


def _columns_of(cursor: Any) -> int:
    # The result itself: psycopg makes an object for each column of a description, which costs more than a row.
    result = cursor.pgresult
    return result.nfields if result is not None else 0


def fetch(
    name: str, parameters: Mapping[str, Any], row: Row[T], *, using: "str | Session" = "default"
) -> list[T]:
    """
    Run the statement *name* in its scope and return its rows, each made by *row*.

    On an alias it uses Django's connection and takes part in the caller's transaction; on a `Session`
    it commits by itself. A deadlock or a failed serialisation is repeated where nothing else is lost
    with it, that is outside of a caller's transaction. Raises `SchemaTooOld` on an alias without our tables, and
    the error that a function of ours names where it refuses.
    """
    statement = sql.load(name)
    repeats = REPEATS if isinstance(using, Session) or connections[using].get_autocommit() else 1
    for attempt in range(1, repeats + 1):
        if fault is not None:
            fault("before", name)
        try:
            rows = (
                using.run(statement, parameters)
                if isinstance(using, Session)
                else _run_on_django(connections[using], statement, parameters)
            )
        except Exception as error:
            if attempt < repeats and isinstance(error.__cause__ or error, REPEATABLE):
                continue
            if not isinstance(using, Session) and lacks_migrations(error):
                raise SchemaTooOld(using) from error
            if (refusal := refusal_of(error)) is not None:
                raise refusal from error
            raise
        if fault is not None:
            fault("after", name)
        return [row(values) for values in rows]
    raise AssertionError("unreachable: the last attempt returns or raises")


def refusal_of(error: BaseException) -> PgBrokerError | None:
    """Return what a function of ours meant by an error of its own; None for any other error."""
    said = getattr(error.__cause__ or error, "diag", None)
    if said is None or said.sqlstate != REFUSED or not said.message_hint:
        return None
    return refused(said.message_hint, (said.message_primary or said.message_hint).removeprefix("pgbroker: "))


def lacks_migrations(error: BaseException) -> bool:
    """Tell whether a database error says that something of pgbroker's schema is not there."""
    return isinstance(error.__cause__ or error, UNDEFINED) and "pgbroker" in str(error)


def _run_on_django(
    wrapper: BaseDatabaseWrapper, statement: sql.Statement, parameters: Mapping[str, Any]
) -> list[Sequence[Any]]:
    """Run one statement on Django's connection; in a caller's transaction its scope is put back after it."""
    around = _around(wrapper, statement)
    with unscoped(), wrapper.cursor() as cursor:
        if not around.before:
            cursor.execute(statement.text, parameters)
        else:
            with (
                wrapper.cursor() as setter,
                wrapper.cursor() as restorer,
                wrapper.wrap_database_errors,
                wrapper.connection.pipeline(),
            ):
                setter.execute(around.before, around.tenant)
                cursor.execute(statement.text, parameters)
                if around.restored:
                    restorer.execute(RESTORE)
                elif statement.deferred and wrapper.get_autocommit():
                    # An error at the implicit commit of a pipeline leaves the connection dead.
                    restorer.execute("set constraints all immediate")
        columns = _columns_of(cursor)
        rows = cursor.fetchall() if columns else []
        # Django's connections hand jsonb over as text, ours as Python values.
        encoded = [place for place in range(columns) if cursor.pgresult.ftype(place) == _JSONB_OID]
    return [_decoded(values, encoded) for values in rows] if encoded else rows


class _Around(NamedTuple):
    """What goes before a statement, with its parameters, and whether the scope has to be put back after it."""

    before: str
    tenant: tuple[str] | None
    restored: bool


def _around(wrapper: BaseDatabaseWrapper, statement: sql.Statement) -> _Around:
    """Tell what a statement needs around it on Django's connection; raises `NotPostgreSQL`."""
    _refuse_others(wrapper)
    scope, tenant = _scope_of(statement)
    alone = wrapper.get_autocommit()
    plan = _plan_of(statement) if alone else ""
    inside = not alone and (scope == "all" or tenant is not None)
    before = scope_text(scope, plan, settings().EVENTS, tenant is not None, inside)
    return _Around(before, None if tenant is None else (tenant,), inside)


def _refuse_others(wrapper: BaseDatabaseWrapper) -> None:
    if wrapper.vendor != "postgresql":
        raise NotPostgreSQL(
            f"database alias {wrapper.alias!r} is {wrapper.vendor}. pgbroker needs PostgreSQL; "
            'name the right aliases in PGBROKER["DATABASES"].',
            alias=wrapper.alias,
        )


class Ahead:
    """
    Statements of a caller's transaction, each sent without waiting for the answer to the one before.

    Use as `with ahead(using) as line`, inside a transaction. An error of one of them is raised where a later one is
    sent, or at the end of the block; after it the server does none of the others. `answers` has the rows of each
    statement, in order, once the block has ended.
    """

    def __init__(self, wrapper: BaseDatabaseWrapper) -> None:
        self._wrapper = wrapper
        self._cursors: list[Any] = []
        self.answers: list[list[tuple[Any, ...]]] = []

    def send(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Send the statement *name* in its scope; the server begins with it once it has done those before."""
        statement = sql.load(name)
        if fault is not None:
            fault("before", name)
        around = _around(self._wrapper, statement)
        # Not around the block: what the caller does meanwhile is nobody's statement.
        with unscoped():
            if around.before:
                self._cursor().execute(around.before, around.tenant)
            cursor = self._cursor()
            cursor.execute(statement.text, parameters)
            if around.restored:
                self._cursor().execute(RESTORE)
        self._cursors.append(cursor)

    def _cursor(self) -> Any:
        return self._wrapper.cursor()

    def read(self) -> None:
        """Read the answers, which are all there."""
        self.answers = [cursor.fetchall() for cursor in self._cursors]


@contextmanager
def ahead(using: str) -> Iterator[Ahead]:
    """Send statements on Django's connection of an alias, one after the other; see `Ahead`. Raises `NotPostgreSQL`."""
    wrapper = connections[using]
    _refuse_others(wrapper)
    line = Ahead(wrapper)
    with wrapper.wrap_database_errors, wrapper.connection.pipeline():
        yield line
    line.read()


def _decoded(values: Sequence[Any], places: Sequence[int]) -> Sequence[Any]:
    changed = list(values)
    for place in places:
        if isinstance(changed[place], str):
            changed[place] = read_json(changed[place])
    return changed


class unscoped(AbstractContextManager[None]):
    """Keep `scoping.scope_statement` away from statements that carry their scope themselves."""

    def __enter__(self) -> None:
        self._token = carried.set(True)

    def __exit__(self, *_: object) -> None:
        carried.reset(self._token)


carried: ContextVar[bool] = ContextVar("pgbroker_scope_carried", default=False)


def listen(session: Session, channel: str = "pgbroker") -> psycopg.Connection[tuple[Any, ...]]:
    """
    Listen for wake-ups on a session's connection and return it for `notifies()`.

    Again on the same connection it changes nothing, and finds out whether anybody still answers there.
    """
    connection = session.connection
    connection.execute(psycopg.sql.SQL("listen {}").format(psycopg.sql.Identifier(channel)))
    return connection


def array(values: Iterable[object]) -> str:
    """Write an array literal of numbers: ten times faster than adapting a list element by element."""
    return "{" + ",".join(map(str, values)) + "}"


def uuid_array(values: Sequence[UUID]) -> str:
    """Write an array literal of UUIDs: their integers, in hexadecimal digits, are read sooner than their text."""
    return "{" + ",".join([f"{value.int:032x}" for value in values]) + "}"

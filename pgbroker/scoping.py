"""
Send the tenant of the context along with everybody's statements: the ORM's, and the project's own.

An execute wrapper on each broker alias. `db` does the same for pgbroker's own statements.
"""

import re
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.abc import Query
from psycopg.pq import TransactionStatus

from pgbroker import correlation, db
from pgbroker.conf import settings

# SET and RESET but not SET LOCAL, and set_config, whose third argument only the server knows.
_CHANGES_SESSION = re.compile(
    r"\s*(?:set\s+(?!local\b)|reset\s|select\s+(?:pg_catalog\.)?set_config)", re.IGNORECASE
)

# What a named cursor left set in a caller's transaction, to be put back when its context ends.
_left_set: "WeakKeyDictionary[BaseDatabaseWrapper, tuple[str, str]]" = WeakKeyDictionary()


def scope_statement(
    execute: Callable[..., Any], query: Query, parameters: Any, many: bool, context: dict[str, Any]
) -> Any:
    """
    Send the context's tenant (or scope all) along with a statement of the ORM or the project.

    An execute wrapper on every broker alias. Without a context it adds nothing: the database reads a
    missing tenant as "default". In a caller's transaction what was set is put back in the same trip.
    """
    tenant, everything = correlation.tenant.get(), correlation.scope_all.get()
    wrapper: BaseDatabaseWrapper = context["connection"]
    if isinstance(query, str) and not db.carried.get() and _CHANGES_SESSION.match(query):
        # A worker closes such a connection after the job: the next one must not inherit a role or a scope.
        wrapper.pgbroker_session_changed = True  # type: ignore[attr-defined]
    if (tenant is None and not everything) or db.carried.get():
        return execute(query, parameters, many, context)
    if _is_transaction_control(query):
        return execute(query, parameters, many, context)
    scope = "all" if everything else "tenant"
    setter_parameters = None if everything else (tenant,)
    if isinstance(getattr(context["cursor"], "cursor", None), psycopg.ServerCursor):
        return _scope_named_cursor(execute, query, parameters, many, context, scope, setter_parameters)
    inside = not wrapper.get_autocommit()
    before = db.scope_text(scope, "", settings().EVENTS, not everything, inside)
    # executemany opens a pipeline of its own, and several statements in one text go through none: without a
    # transaction the setting would be committed away before them.
    apart = many or (not parameters and isinstance(query, str) and ";" in query.strip().rstrip(";"))
    with (
        db.unscoped(),
        wrapper.cursor() as setter,
        wrapper.cursor() as restorer,
        wrapper.wrap_database_errors,
        transaction.atomic(using=wrapper.alias, savepoint=False) if apart else wrapper.connection.pipeline(),
    ):
        setter.execute(before, setter_parameters)
        answer = execute(query, parameters, many, context)
        # Deferred constraints (all of Django's foreign keys) are checked before the implicit commit: an error
        # at the commit itself leaves the connection dead.
        restorer.execute(db.RESTORE if inside else "set constraints all immediate")
    return answer


def _is_transaction_control(query: Query) -> bool:
    """Tell savepoint statements: between them a pipeline of settings would only get in the way."""
    return isinstance(query, str) and query.startswith(("SAVEPOINT", "RELEASE SAVEPOINT", "ROLLBACK TO"))


def _scope_named_cursor(
    execute: Callable[..., Any],
    query: Query,
    parameters: Any,
    many: bool,
    context: dict[str, Any],
    scope: str,
    setter_parameters: tuple[Any, ...] | None,
) -> Any:
    """
    Scope a server-side cursor (`.iterator()`): psycopg sends no named cursor through a pipeline.

    In autocommit the cursor is WITH HOLD: its rows are made when this little transaction commits. In a
    caller's transaction they are made while they are fetched, so the scope stays until the context ends.
    """
    wrapper: BaseDatabaseWrapper = context["connection"]
    before = db.scope_text(scope, "", settings().EVENTS, setter_parameters is not None, False)
    if wrapper.get_autocommit():
        with db.unscoped(), transaction.atomic(using=wrapper.alias), wrapper.cursor() as setter:
            setter.execute(before, setter_parameters)
            return execute(query, parameters, many, context)
    with db.unscoped(), wrapper.cursor() as setter:
        if wrapper not in _left_set:
            setter.execute(
                "select coalesce(current_setting('pgbroker.scope', true), ''), "
                "coalesce(current_setting('pgbroker.tenant_id', true), '')"
            )
            scope_before, tenant_before = setter.fetchone()
            _left_set[wrapper] = (scope_before, tenant_before)
        setter.execute(before, setter_parameters)
    return execute(query, parameters, many, context)


def put_back() -> None:
    """Undo what named cursors left set in callers' transactions of this thread."""
    if not _left_set:
        return
    for wrapper in connections.all(initialized_only=True):
        before = _left_set.pop(wrapper, None)
        if before is None or wrapper.connection is None or wrapper.get_autocommit() or wrapper.needs_rollback:
            continue
        if wrapper.connection.info.transaction_status != TransactionStatus.INTRANS:
            # Broken: the rollback that must follow puts it back, and an error here would hide the first one.
            continue
        with db.unscoped(), wrapper.cursor() as setter:
            setter.execute(
                "select set_config('pgbroker.scope', %s, true), set_config('pgbroker.tenant_id', %s, true)",
                before,
            )


def carry_scope(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Install `scope_statement` on a broker alias's connection; receiver of `connection_created`."""
    # What was set in the session before this one ended with it.
    vars(connection).pop("pgbroker_session_changed", None)
    if connection.alias in settings().DATABASES and scope_statement not in connection.execute_wrappers:
        # First, not last: `with connection.execute_wrapper(...)` takes the last one away when it ends.
        connection.execute_wrappers.insert(0, scope_statement)

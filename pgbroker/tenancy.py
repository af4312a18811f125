"""Choose whose rows the following statements see. `db` and `scoping` write it with each of them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pgbroker import correlation, scoping
from pgbroker.errors import InvalidTenant

_TENANT = re.compile(r"[A-Za-z0-9._-]{1,63}")


def checked_tenant(tenant: object) -> str:
    """Return *tenant* if it is a tenant id; raises `InvalidTenant`."""
    if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
        raise InvalidTenant(tenant)
    return tenant


@contextmanager
def tenant_context(tenant: str) -> Iterator[None]:
    """
    Work as one tenant: statements on the broker's aliases, of the ORM too, see only its rows.

    The tenant goes along with each statement, local to its transaction: no connection remembers it.
    Contexts nest; jobs enqueued inside belong to the tenant. Raises `InvalidTenant`.
    """
    token = correlation.tenant.set(checked_tenant(tenant))
    everything = correlation.scope_all.set(False)
    try:
        yield
    finally:
        correlation.scope_all.reset(everything)
        correlation.tenant.reset(token)
        scoping.put_back()


@contextmanager
def scope_all() -> Iterator[None]:
    """See the rows of all tenants: for commands of an operator, never for a request or a handler."""
    token = correlation.scope_all.set(True)
    try:
        yield
    finally:
        correlation.scope_all.reset(token)
        scoping.put_back()


def current_tenant() -> str:
    """Return the tenant that statements work as now; "default" when nothing was chosen."""
    return correlation.tenant.get() or correlation.DEFAULT_TENANT


def tenant_of_statements() -> str:
    """Return the tenant that new rows get; in scope all it is the default one."""
    # A statement carries none then, which the database reads so.
    return correlation.DEFAULT_TENANT if correlation.scope_all.get() else current_tenant()

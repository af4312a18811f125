"""Context variables that follow the work: tenant, current attempt, correlation id, trace parent."""

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgbroker.lease import Lease

DEFAULT_TENANT = "default"

# None: nothing was chosen, which the database reads as the tenant "default".
tenant: ContextVar[str | None] = ContextVar("pgbroker_tenant", default=None)
scope_all: ContextVar[bool] = ContextVar("pgbroker_scope_all", default=False)
current_lease: ContextVar["Lease | None"] = ContextVar("pgbroker_current_lease", default=None)
correlation_id: ContextVar[str | None] = ContextVar("pgbroker_correlation_id", default=None)
traceparent: ContextVar[str | None] = ContextVar("pgbroker_traceparent", default=None)
principal: ContextVar[str | None] = ContextVar("pgbroker_principal", default=None)


def current_correlation_id() -> str | None:
    """Return what new jobs inherit: the id that was set, else the id of the job that runs here."""
    chosen = correlation_id.get()
    if chosen is None and (lease := current_lease.get()) is not None:
        return str(lease.job_id)
    return chosen

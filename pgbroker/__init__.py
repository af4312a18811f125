"""pgbroker: the PostgreSQL you already run, as a job broker you can trust."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgbroker.bulk import enqueue_many
    from pgbroker.context import JobContext
    from pgbroker.control import add_dependency, cancel, get_job, pause, redrive, resume, retry, unblock
    from pgbroker.errors import PgBrokerError
    from pgbroker.groups import RunGroup, get_group, run_group
    from pgbroker.outcomes import DeadLetter, Discard, Retry, Snooze
    from pgbroker.policy.backoff import Backoff
    from pgbroker.references import DeferredRef, Edge, GroupRef, JobRef
    from pgbroker.registry import job
    from pgbroker.schedules.declare import CatchUp, schedule
    from pgbroker.submission import enqueue
    from pgbroker.tenancy import tenant_context

__version__ = "0.1.0"

# Imported at first use: Django imports this package before settings and apps are ready.
_HOMES = {
    "Backoff": "pgbroker.policy.backoff",
    "CatchUp": "pgbroker.schedules.declare",
    "DeadLetter": "pgbroker.outcomes",
    "DeferredRef": "pgbroker.references",
    "Discard": "pgbroker.outcomes",
    "Edge": "pgbroker.references",
    "GroupRef": "pgbroker.references",
    "JobContext": "pgbroker.context",
    "JobRef": "pgbroker.references",
    "PgBrokerError": "pgbroker.errors",
    "Retry": "pgbroker.outcomes",
    "RunGroup": "pgbroker.groups",
    "Snooze": "pgbroker.outcomes",
    "add_dependency": "pgbroker.control",
    "cancel": "pgbroker.control",
    "enqueue": "pgbroker.submission",
    "enqueue_many": "pgbroker.bulk",
    "get_group": "pgbroker.groups",
    "get_job": "pgbroker.control",
    "job": "pgbroker.registry",
    "pause": "pgbroker.control",
    "redrive": "pgbroker.control",
    "resume": "pgbroker.control",
    "retry": "pgbroker.control",
    "run_group": "pgbroker.groups",
    "schedule": "pgbroker.schedules.declare",
    "tenant_context": "pgbroker.tenancy",
    "unblock": "pgbroker.control",
}

__all__ = [
    "Backoff",
    "CatchUp",
    "DeadLetter",
    "DeferredRef",
    "Discard",
    "Edge",
    "GroupRef",
    "JobContext",
    "JobRef",
    "PgBrokerError",
    "Retry",
    "RunGroup",
    "Snooze",
    "add_dependency",
    "cancel",
    "enqueue",
    "enqueue_many",
    "get_group",
    "get_job",
    "job",
    "pause",
    "redrive",
    "resume",
    "retry",
    "run_group",
    "schedule",
    "tenant_context",
    "unblock",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

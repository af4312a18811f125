"""pgbroker: the PostgreSQL you already run, as a job broker you can trust."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgbroker.bulk import enqueue_many
    from pgbroker.context import JobContext
    from pgbroker.control import cancel, get_job, pause, redrive, resume, retry
    from pgbroker.errors import PgBrokerError
    from pgbroker.outcomes import DeadLetter, Discard, Retry, Snooze
    from pgbroker.policy.backoff import Backoff
    from pgbroker.registry import job
    from pgbroker.submission import enqueue
    from pgbroker.tenancy import tenant_context

__version__ = "0.1.0"

# Imported at first use: Django imports this package before settings and apps are ready.
_HOMES = {
    "Backoff": "pgbroker.policy.backoff",
    "DeadLetter": "pgbroker.outcomes",
    "Discard": "pgbroker.outcomes",
    "JobContext": "pgbroker.context",
    "PgBrokerError": "pgbroker.errors",
    "Retry": "pgbroker.outcomes",
    "Snooze": "pgbroker.outcomes",
    "cancel": "pgbroker.control",
    "enqueue": "pgbroker.submission",
    "enqueue_many": "pgbroker.bulk",
    "get_job": "pgbroker.control",
    "job": "pgbroker.registry",
    "pause": "pgbroker.control",
    "redrive": "pgbroker.control",
    "resume": "pgbroker.control",
    "retry": "pgbroker.control",
    "tenant_context": "pgbroker.tenancy",
}

__all__ = [
    "Backoff",
    "DeadLetter",
    "Discard",
    "JobContext",
    "PgBrokerError",
    "Retry",
    "Snooze",
    "cancel",
    "enqueue",
    "enqueue_many",
    "get_job",
    "job",
    "pause",
    "redrive",
    "resume",
    "retry",
    "tenant_context",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""
The catalogue of facts pgbroker tells, and how to hear them.

Code emits one event a fact; logs, metrics and spans subscribe. Nothing here knows who listens, and a
listener that fails is reported once and never disturbs the work.
"""

import logging
from collections.abc import Callable
from typing import Any

KEYS = (
    "event",
    "job_id",
    "job_type",
    "queue",
    "tenant_id",
    "attempt_no",
    "lease_token",
    "worker_id",
    "correlation_id",
    "duration_seconds",
    "error_code",
)

# event -> (level, what it says). The level is advice for whoever writes lines.
EVENTS: dict[str, tuple[int, str]] = {
    "job.enqueued": (logging.DEBUG, "job enqueued"),
    "attempt.started": (logging.DEBUG, "attempt started"),
    # One of each a statement, for whoever counts: they carry the rows themselves.
    "batch.enqueued": (logging.DEBUG, "jobs enqueued"),
    "batch.dispatched": (logging.DEBUG, "ticks of schedules decided upon"),
    "batch.claimed": (logging.DEBUG, "attempts claimed"),
    "batch.settled": (logging.DEBUG, "outcomes written"),
    # One of the next four an attempt, by what the row decided.
    "attempt.settled": (logging.INFO, "attempt settled"),
    "attempt.failed": (logging.WARNING, "attempt failed; the job will be tried again"),
    "job.discarded": (logging.WARNING, "job given up by its handler"),
    "job.gave_up": (logging.ERROR, "job ended without success"),
    "attempt.lease_lost": (logging.WARNING, "lease lost: the outcome was refused"),
    "attempt.reaped": (logging.WARNING, "lease expired: the attempt was taken back"),
    "attempt.released": (logging.INFO, "attempt handed back unharmed"),
    "attempt.abandoned": (logging.WARNING, "handler ignored its stop signal and was abandoned"),
    "attempt.killed": (logging.WARNING, "handler did not stop in time and its child process was killed"),
    "job.unknown_type": (
        logging.WARNING,
        "job of a type this worker has not loaded was put back; declare it in jobs.py or tasks.py of an installed "
        "app, or import it in AppConfig.ready()",
    ),
    "job.expired": (logging.INFO, "job passed its deadline before it ran"),
    "worker.started": (logging.INFO, "worker started"),
    "worker.draining": (logging.INFO, "worker stopped claiming and drains"),
    "worker.stopped": (logging.INFO, "worker stopped"),
    "worker.name_awaited": (
        logging.INFO,
        "another worker has this one's name; it waits until that one's lease has run out",
    ),
    "worker.name_lost": (logging.ERROR, "another worker has taken this one's name; it drains and ends"),
    "worker.connection_lost": (logging.WARNING, "database connection lost; will reconnect"),
    "worker.reconnected": (logging.INFO, "database connection is back"),
    "worker.connection_severed": (
        logging.WARNING,
        "a handler waited for an answer that the server does not owe it; its connection was cut",
    ),
    "worker.loop_failed": (logging.ERROR, "a worker loop failed and will try again"),
    "worker.too_large": (
        logging.WARNING,
        "worker holds more memory than --max-rss and drains to be started again",
    ),
    "process.started": (logging.INFO, "worker process started by its parent"),
    "process.ended": (logging.INFO, "worker process ended"),
    "process.died": (logging.WARNING, "worker process ended without being asked to"),
    "children.failed": (logging.ERROR, "a child process could not be made; will try again"),
    "notify.failed": (logging.WARNING, "wake-up could not be sent; polling finds the jobs"),
    "body.left": (logging.WARNING, "a body stays in the storage, though perhaps no row names it"),
    "job.over_long": (
        logging.WARNING,
        "attempt runs longer than its timeout or deadline allows, and its worker renews the lease",
    ),
    "dependencies.repaired": (
        logging.WARNING,
        "jobs or run groups did not stand where their edges say, after a restore or a fault, and were put right",
    ),
    "jobs.adopted": (
        logging.WARNING,
        "jobs that no claim looked at were brought into sight; somebody wrote them, or deleted their queue, in SQL",
    ),
    "leader.elected": (logging.INFO, "this process leads from now on"),
    "leader.lost": (logging.WARNING, "this process leads no longer"),
    "leader.resigned": (logging.INFO, "this process gave the lead back"),
    "scheduler.started": (logging.INFO, "scheduler started"),
    "scheduler.stopped": (logging.INFO, "scheduler stopped"),
    "schedule.dispatched": (logging.INFO, "an occurrence of a schedule was created"),
    "schedule.misfired": (logging.WARNING, "ticks of a schedule were seen too late"),
    "schedule.skipped": (
        logging.INFO,
        "a tick was left out: an earlier occurrence of its schedule is not over",
    ),
    "schedule.buffered": (logging.INFO, "a tick waits until the occurrence before it is over"),
    "schedule.failed": (logging.ERROR, "an occurrence of a schedule could not be created"),
    "schedule.duplicate": (
        logging.WARNING,
        "an occurrence had been created before and was not created again",
    ),
    "schedule.replanned": (logging.INFO, "next ticks were worked out by the new rules of their time zones"),
    "schedule.drifted": (logging.WARNING, "the row of a schedule is not what the code says"),
    "schedule.superseded": (
        logging.WARNING,
        "newer code of this project runs: what this code declares otherwise is not written. Where this code is meant, "
        "run broker_schedules sync with it, or stop the newer and wait five minutes",
    ),
    "schedule.gone": (logging.INFO, "a schedule was disabled that the code declares no longer"),
    "declaration.held": (
        logging.WARNING,
        "somebody's open transaction holds a row that the code declares otherwise: it is written once that is over",
    ),
    "schedule.deleted": (logging.INFO, "a schedule was deleted"),
    "schedule.disabled": (logging.ERROR, "a schedule was disabled"),
    "duty.failed": (logging.WARNING, "a duty of the upkeep failed and will be tried again"),
}

# The four that tell of one attempt whose outcome was written.
SETTLED = frozenset({"attempt.settled", "attempt.failed", "job.discarded", "job.gave_up"})

Listener = Callable[[str, dict[str, Any]], None]
Wants = Callable[[str], bool]

_log = logging.getLogger("pgbroker.telemetry")
_listeners: list[tuple[Listener, Wants]] = []


def subscribe(listener: Listener, *, wants: Wants = lambda event: True) -> Callable[[], None]:
    """
    Call *listener(event, keys)* for each event that *wants* accepts; returns how to unsubscribe.

    Listeners run in the thread that emits, so they must be quick; *wants* must be cheap, since hot
    paths ask it before they gather the keys.
    """
    if any(known is listener for known, _ in _listeners):
        # Once is enough: a command that is called twice in a process must not tell everything twice.
        return lambda: None
    entry = (listener, wants)
    _listeners.append(entry)

    def unsubscribe() -> None:
        if entry in _listeners:
            _listeners.remove(entry)

    return unsubscribe


def wanted(event: str) -> bool:
    """Tell whether anybody listens for *event*, so that a hot path can leave the keys ungathered."""
    return any(wants(event) for _, wants in _listeners)


def emit(event: str, **keys: Any) -> None:
    """Tell a fact of the catalogue to whoever listens."""
    assert event in EVENTS, event
    for listener, wants in tuple(_listeners):
        if not wants(event):
            continue
        try:
            listener(event, keys)
        except Exception:
            _log.exception("a telemetry listener failed on %s", event)

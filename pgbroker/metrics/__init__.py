"""
What Prometheus is told: a subscriber of telemetry, and collectors in `prometheus_client`'s registry.

A process serves them when it starts. Nothing here runs in a process that nobody scrapes.
"""

from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, exposition

from pgbroker import telemetry
from pgbroker.conf import settings
from pgbroker.metrics.counts import Counts
from pgbroker.metrics.depths import Depths
from pgbroker.metrics.enqueued import count_enqueued, wants_enqueued
from pgbroker.metrics.schedules import Leads, ScheduleCounts

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker

__all__ = [
    "forget_scheduler",
    "forget_worker",
    "page",
    "serve_process",
    "serve_scheduler",
    "serve_worker",
]

_counts: Counts | None = None
_schedules: ScheduleCounts | None = None
_depths: Depths | None = None


def serve_process() -> None:
    """Measure what every process does: the jobs it enqueues, and the depths of the project's queues."""
    global _depths
    telemetry.subscribe(count_enqueued, wants=wants_enqueued)
    if _depths is None:
        _depths = Depths(lambda: settings().DATABASES)
        REGISTRY.register(_depths)


def serve_worker(worker: "Worker") -> None:
    """Measure a worker of this process too."""
    global _counts
    serve_process()
    if _counts is None:
        _counts = Counts()
        REGISTRY.register(_counts)
        telemetry.subscribe(_counts.listen, wants=_counts.wants)
    _counts.workers.append(worker)
    _serve_schedules(worker.scheduling)


def serve_scheduler(leads: Leads) -> None:
    """Measure a scheduler of this process."""
    serve_process()
    _serve_schedules(leads)


def _serve_schedules(leads: Leads | None) -> None:
    global _schedules
    if _schedules is None:
        _schedules = ScheduleCounts()
        REGISTRY.register(_schedules)
        telemetry.subscribe(_schedules.listen, wants=_schedules.wants)
    if leads is not None:
        _schedules.schedulers.append(leads)


def forget_scheduler(leads: Leads) -> None:
    """Tell no more of a scheduler that has ended; what it did stays counted."""
    if _schedules is not None and leads in _schedules.schedulers:
        _schedules.schedulers.remove(leads)


def forget_worker(worker: "Worker") -> None:
    """Tell no more of a worker that has ended; what it did stays counted."""
    if _counts is not None and worker in _counts.workers:
        _counts.workers.remove(worker)
    if worker.scheduling is not None:
        forget_scheduler(worker.scheduling)


def page(accept: str) -> tuple[bytes, str]:
    """Write everything in this process's registry in the form that *accept* asks for; returns it and its type."""
    encode, content_type = exposition.choose_encoder(accept)
    return encode(REGISTRY), content_type

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

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker

__all__ = ["page", "serve_process", "serve_worker"]

_counts: Counts | None = None
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


def forget_worker(worker: "Worker") -> None:
    """Tell no more of a worker that has ended; what it did stays counted."""
    if _counts is not None and worker in _counts.workers:
        _counts.workers.remove(worker)


def page(accept: str) -> tuple[bytes, str]:
    """Write everything in this process's registry in the form that *accept* asks for; returns it and its type."""
    encode, content_type = exposition.choose_encoder(accept)
    return encode(REGISTRY), content_type

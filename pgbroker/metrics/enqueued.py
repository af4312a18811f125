"""
The counter of enqueued jobs, in any process.

The one metric that is `prometheus_client`'s own, so that it adds up over the processes of a web server that
share `PROMETHEUS_MULTIPROC_DIR`.
"""

import threading
from typing import Any

import prometheus_client

from pgbroker.metrics.catalogue import ENQUEUED
from pgbroker.metrics.pairs import Pairs

_counter = prometheus_client.Counter(ENQUEUED.name, ENQUEUED.says, ENQUEUED.labels)
_pairs = Pairs()
_lock = threading.Lock()


def wants_enqueued(event: str) -> bool:
    """Tell whether an event is counted."""
    return event == "batch.enqueued"


def count_enqueued(event: str, keys: dict[str, Any]) -> None:
    """Count new jobs; one that was there already, by its idempotency key, is none."""
    created: dict[tuple[str, str], int] = keys["created"]
    for (queue, job_type), count in created.items():
        with _lock:
            pair = _pairs.of(queue, job_type)
        _counter.labels(*pair).inc(count)

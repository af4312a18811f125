"""Workers as other code starts them: what a process needs around one."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pgbroker.runtime.health import Health, Verdict
from pgbroker.runtime.port import TEXT, Answer, Port
from pgbroker.runtime.supervisor import Worker

_log = logging.getLogger("pgbroker.worker")


@contextmanager
def answering(worker: Worker, *, facts: Mapping[str, object] | None = None) -> Iterator[Port | None]:
    """
    Answer Prometheus and probes for a worker, as long as the body runs; None without a port in its options.

    Raises `PortUnavailable` before the body.
    """
    if worker.options.metrics_port is None:
        yield None
        return
    # Only here: nobody without a port needs it in memory.
    from pgbroker import metrics

    health = Health(worker, facts=facts)

    def told(verdict: Verdict) -> Answer:
        return Answer(200 if verdict.holds else 503, health.report(verdict).encode(), TEXT)

    port = Port(
        worker.settings.METRICS_HOST,
        worker.options.metrics_port,
        {
            "/metrics": lambda accept: Answer(200, *metrics.page(accept)),
            "/healthz": lambda _: told(health.live()),
            "/readyz": lambda _: told(health.ready()),
        },
    )
    metrics.serve_worker(worker)
    try:
        port.open()
        _log.info("answering Prometheus and probes: %s/metrics /healthz /readyz", port.url)
        yield port
    finally:
        metrics.forget_worker(worker)
        port.close()

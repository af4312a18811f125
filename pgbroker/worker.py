"""
A worker inside another process: `with BackgroundWorker(WorkerOptions(queues=("mail",))): ...`.

Also what every process needs around a worker: the port for Prometheus and probes.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

from django.db import connections

from pgbroker import backend, logs
from pgbroker.errors import AlreadyStarted, UnknownQueue
from pgbroker.lifecycle.declare import list_queues
from pgbroker.management.start import look_at
from pgbroker.policy.values import whole
from pgbroker.registry import types
from pgbroker.runtime.health import Health, SchedulerHealth, Verdict
from pgbroker.runtime.options import MOST_SLOTS, WorkerOptions, checked_name
from pgbroker.runtime.port import TEXT, Answer, Port
from pgbroker.runtime.scheduler import Scheduler
from pgbroker.runtime.supervisor import Worker

__all__ = [
    "BackgroundWorker",
    "Verdict",
    "WorkerOptions",
    "answering",
    "answering_scheduler",
    "unknown_queues",
]

_log = logging.getLogger("pgbroker.worker")


class BackgroundWorker:
    """
    A worker in threads of this process, for tests and for servers that work off their own queue.

    It installs no signal handler: whoever starts it stops it. It belongs to the process that started it, so a
    server that forks starts it after the fork. `async with` does the same without holding up the event loop.
    """

    def __init__(self, options: WorkerOptions | None = None) -> None:
        self.options = options or WorkerOptions()
        whole("concurrency", self.options.concurrency, 1, MOST_SLOTS)
        if self.options.name is not None:
            checked_name("name", self.options.name)
        # What runs, or ran last; None before the first start.
        self.worker: Worker | None = None
        # Where it answers Prometheus and probes, if its options name a port.
        self.port: Port | None = None
        self.exit_code = 0
        self._health: Health | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    # -------------------------------------------------------------- start and stop

    def start(self) -> Self:
        """
        Start it; returns once its queues and job types are known and its loops turn.

        Raises `AlreadyStarted` where it runs, and otherwise what keeps it from running: `DatabaseUnreachable`,
        `SchemaTooOld`, `UnknownQueue`, `WorkerNameTaken`, `InvalidSetting`, `PortUnavailable`. Then nothing is left
        behind.
        """
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise AlreadyStarted("this worker runs already. Stop it first, or make another one.")
            begun = _Begun()
            # Daemon: a process that forgets to stop it can end. Its jobs come back when their leases run out.
            self._thread = threading.Thread(
                target=self._run, args=(begun,), name="pgbroker-worker", daemon=True
            )
            self._thread.start()
            begun.event.wait()
            if begun.error is not None:
                self._thread.join()
                raise begun.error
        return self

    def stop(self, *, timeout: float | None = None) -> int:
        """
        Drain and end it; returns its exit code, 0 for a clean end. A second call does nothing more.

        Running jobs get *timeout* seconds, by default those of the options or `SHUTDOWN_TIMEOUT_SECONDS`; what
        still runs then is handed back unharmed. Never call it from a job of this very worker.
        """
        thread, worker = self._thread, self.worker
        if thread is None or worker is None:
            return self.exit_code
        if timeout is not None:
            worker.settings = replace(worker.settings, SHUTDOWN_TIMEOUT_SECONDS=timeout)
        worker.stop()
        thread.join()
        return self.exit_code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    # -------------------------------------------------------------- health

    @property
    def is_running(self) -> bool:
        """True from `start` until it has ended, by `stop` or because it could not go on."""
        return self._thread is not None and self._thread.is_alive()

    def live(self) -> Verdict:
        """Tell whether its claim loop turns, and why it counts as dead if not."""
        return self._asked(Health.live)

    def ready(self) -> Verdict:
        """Tell whether it is connected and registered, and takes new work."""
        return self._asked(Health.ready)

    def _asked(self, question: Callable[[Health], Verdict]) -> Verdict:
        if self._health is None or not self.is_running:
            ended = f"it has ended with exit code {self.exit_code}"
            return Verdict(False, "it was never started" if self._health is None else ended)
        return question(self._health)

    # -------------------------------------------------------------- its thread

    def _run(self, begun: "_Begun") -> None:
        try:
            worker = Worker(self.options)
            # All in this thread: the caller's connections, and its transaction, are its own.
            target = look_at(worker.alias)
            if unknown := unknown_queues(self.options.queues, worker.alias):
                raise unknown[0]
            logs.serve_logs()
            backend.serve_signals()
            with answering(worker, facts=target.facts) as self.port:
                self.worker, self._health, self.exit_code = worker, Health(worker, facts=target.facts), 0
                if worker.prepare():
                    worker.start_services()
                    begun.event.set()
                    self.exit_code = worker.run_to_end()
        except BaseException as error:
            begun.error = error
            if begun.event.is_set():
                self.exit_code = 1
                _log.exception("a background worker has ended")
        finally:
            connections.close_all()
            begun.event.set()


class _Begun:
    """How a start went."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.error: BaseException | None = None


def unknown_queues(names: Iterable[str], alias: str) -> list[UnknownQueue]:
    """Make an error of each named queue that neither exists nor is declared: a slip, most likely."""
    names = list(names)
    if not names:
        return []
    known = {each.task.queue_name for each in types().values()} | {"default"}
    known |= {each.name for each in list_queues(using=alias)}
    return [UnknownQueue(name, known) for name in names if name not in known]


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

    port = _port(worker.settings.METRICS_HOST, worker.options.metrics_port, Health(worker, facts=facts))
    metrics.serve_worker(worker)
    try:
        yield _opened(port)
    finally:
        metrics.forget_worker(worker)
        port.close()


@contextmanager
def answering_scheduler(
    scheduler: Scheduler, *, facts: Mapping[str, object] | None = None
) -> Iterator[Port | None]:
    """Answer Prometheus and probes for a scheduler, as `answering` does for a worker."""
    if scheduler.options.metrics_port is None:
        yield None
        return
    from pgbroker import metrics

    health = SchedulerHealth(scheduler, facts=facts)
    port = _port(scheduler.settings.METRICS_HOST, scheduler.options.metrics_port, health)
    metrics.serve_scheduler(scheduler.scheduling)
    try:
        yield _opened(port)
    finally:
        metrics.forget_scheduler(scheduler.scheduling)
        port.close()


def _port(host: str, number: int, health: Health | SchedulerHealth) -> Port:
    from pgbroker import metrics

    def told(verdict: Verdict) -> Answer:
        return Answer(200 if verdict.holds else 503, health.report(verdict).encode(), TEXT)

    return Port(
        host,
        number,
        {
            "/metrics": lambda accept: Answer(200, *metrics.page(accept)),
            "/healthz": lambda _: told(health.live()),
            "/readyz": lambda _: told(health.ready()),
        },
    )


def _opened(port: Port) -> Port:
    port.open()
    _log.info("answering Prometheus and probes: %s/metrics /healthz /readyz", port.url)
    return port

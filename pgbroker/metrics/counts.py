"""What a worker counts: by batches, from the events of its claims and settles."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from pgbroker.metrics import catalogue
from pgbroker.metrics.catalogue import Family
from pgbroker.metrics.histogram import Histogram
from pgbroker.metrics.pairs import Pairs
from pgbroker.states import AttemptState, Status

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker

_KINDS: dict[str, type[Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


_TYPE = attrgetter("job_type_id")


def family_of(family: Family) -> Any:
    """Make the empty family that a collector fills."""
    return _KINDS[family.kind](family.name, family.says, labels=family.labels)


class Counts:
    """
    A listener of telemetry, and a collector of Prometheus.

    The hot paths tell of batches, so that a job costs a look at its numbers and no lock of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pairs = Pairs()
        self._counters: dict[Family, Counter[tuple[str, ...]]] = defaultdict(Counter)
        self._histograms: dict[Family, dict[tuple[str, ...], Histogram]] = defaultdict(dict)
        # Whose slots are told.
        self.workers: list[Worker] = []
        self._heard: dict[str, Callable[[dict[str, Any]], None]] = {
            "batch.claimed": self._claimed,
            "batch.settled": self._settled,
            "attempt.lease_lost": self._one(catalogue.LOST),
            "attempt.released": self._one(catalogue.RELEASED),
            "attempt.reaped": self._one(catalogue.REAPED),
            "job.expired": self._one(catalogue.EXPIRED),
            "worker.connection_lost": self._connection_lost,
        }

    def wants(self, event: str) -> bool:
        """Tell whether an event is counted."""
        return event in self._heard

    def listen(self, event: str, keys: dict[str, Any]) -> None:
        """Count one event."""
        self._heard[event](keys)

    # -------------------------------------------------------------- from events to counts

    def _add(self, family: Family, labels: tuple[str, ...], count: int = 1) -> None:
        self._counters[family][labels] += count

    def _one(self, family: Family) -> Callable[[dict[str, Any]], None]:
        def count(keys: dict[str, Any]) -> None:
            with self._lock:
                pair = self._pairs.of(keys.get("queue"), keys.get("job_type"))
                self._add(family, pair)
                if family is catalogue.EXPIRED:
                    self._add(catalogue.ENDED, (*pair, Status.FAILED.label))
                elif (status := keys.get("status")) == Status.SCHEDULED.label:
                    self._add(catalogue.RETRIED, pair)
                elif status is not None:
                    self._add(catalogue.ENDED, (*pair, status))

        return count

    def _connection_lost(self, keys: dict[str, Any]) -> None:
        with self._lock:
            self._add(catalogue.CONNECTION_LOSSES, (loop_name(keys["loop"]),))

    def _claimed(self, keys: dict[str, Any]) -> None:
        worker: Worker = keys["worker"]
        # A claim takes from one queue.
        found = Counter(map(_TYPE, keys["leases"]))
        with self._lock:
            for type_id, count in found.items():
                pair = self._pairs.of(keys["queue"], worker.type_name(type_id))
                self._add(catalogue.CLAIMED, pair, count)

    def _settled(self, keys: dict[str, Any]) -> None:
        worker: Worker = keys["worker"]
        statuses: dict[int, int] = keys["statuses"]
        # What has the same labels, with its seconds of running and waiting.
        groups: dict[tuple[int, int, AttemptState, int], tuple[list[float], list[float]]] = {}
        queue_id = type_id = state = status = None
        for _, ended in keys["batch"]:
            lease = ended.lease
            decided = statuses.get(lease.job_id.int)
            # Neighbours are alike as a rule, and to compare four things costs half of what a look-up does.
            if (
                decided != status
                or lease.job_type_id != type_id
                or lease.queue_id != queue_id
                or ended.state is not state
            ):
                if decided is None:
                    # Its lease was lost, which is an event of its own.
                    continue
                queue_id, type_id, state, status = lease.queue_id, lease.job_type_id, ended.state, decided
                run, waited = groups.setdefault((queue_id, type_id, state, status), ([], []))
            run.append(ended.seconds)
            waited.append((ended.started_at - lease.ready_at).total_seconds())
        with self._lock:
            for (queue_id, type_id, state, status), (run, waited) in groups.items():
                pair = self._pair_of(worker, queue_id, type_id)
                self._add(catalogue.SETTLED, (*pair, state.label), len(run))
                if status != Status.SCHEDULED:
                    self._add(catalogue.ENDED, (*pair, Status(status).label), len(run))
                elif state != AttemptState.SNOOZED:
                    self._add(catalogue.RETRIED, pair, len(run))
                self._histogram(catalogue.RUN, pair).observe(run)
                self._histogram(catalogue.WAIT, pair).observe(waited)

    def _pair_of(self, worker: "Worker", queue_id: int, type_id: int) -> tuple[str, str]:
        return self._pairs.of(worker.queue_name(queue_id), worker.type_name(type_id))

    def _histogram(self, family: Family, labels: tuple[str, ...]) -> Histogram:
        known = self._histograms[family]
        if labels not in known:
            known[labels] = Histogram()
        return known[labels]

    # -------------------------------------------------------------- from counts to Prometheus

    def describe(self) -> Iterator[Metric]:
        """Name what `collect` returns."""
        return map(family_of, catalogue.OF_WORKERS)

    def collect(self) -> Iterator[Metric]:
        """Return everything that was counted, and how the workers of this process stand now."""
        families = {each: family_of(each) for each in catalogue.OF_WORKERS}
        with self._lock:
            for family, counted in self._counters.items():
                for labels, count in counted.items():
                    families[family].add_metric(labels, count)
            for family, histograms in self._histograms.items():
                for labels, histogram in histograms.items():
                    families[family].add_metric(labels, histogram.cumulative(), histogram.total)
        workers = list(self.workers)
        for family, value in (
            (catalogue.SLOTS, sum(each.board.slots for each in workers)),
            (catalogue.RUNNING, sum(each.board.running for each in workers)),
            (catalogue.HELD, sum(each.board.held for each in workers)),
            (catalogue.UNSETTLED, sum(each.settler.backlog for each in workers)),
        ):
            families[family].add_metric((), value)
        for loop, age in loop_ages(workers).items():
            families[catalogue.LOOP_AGE].add_metric((loop,), age)
        yield from families.values()


def loop_name(thread_name: str) -> str:
    """Return a loop's name without the prefix of its thread."""
    return thread_name.removeprefix("pgbroker-")


def loop_ages(workers: "list[Worker]") -> dict[str, float]:
    """Return how long ago each loop began its last turn, the longest of all workers."""
    now = time.monotonic()
    ages: dict[str, float] = {}
    for worker in workers:
        for name, service in worker.services.items():
            if service.is_alive():
                ages[name] = max(ages.get(name, 0.0), now - service.turned_at)
    return ages

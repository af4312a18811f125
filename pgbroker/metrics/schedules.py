"""What a scheduler counts: by pages, from the events of its ticks; and what became of their jobs."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from prometheus_client.core import Metric

from pgbroker.metrics import catalogue
from pgbroker.metrics.catalogue import Family
from pgbroker.metrics.counts import family_of
from pgbroker.metrics.histogram import Histogram
from pgbroker.metrics.pairs import Pairs
from pgbroker.policy.misfire import GRACE


class Leads(Protocol):
    """A loop that creates occurrences while it leads."""

    @property
    def leads(self) -> bool: ...


class ScheduleCounts:
    """A listener of telemetry, and a collector of Prometheus. No label names a schedule: there may be ten thousand."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pairs = Pairs()
        self._counters: dict[Family, Counter[tuple[str, ...]]] = defaultdict(Counter)
        self._histograms = {catalogue.LATENESS: Histogram(), catalogue.CREATION: Histogram()}
        # Whether one of them leads is told.
        self.schedulers: list[Leads] = []
        self._heard: dict[str, Callable[[dict[str, Any]], None]] = {
            "batch.dispatched": self._dispatched,
            "schedule.misfired": self._misfired,
            "schedule.disabled": lambda keys: self._add(catalogue.DISABLED, ()),
            "schedule.gone": lambda keys: self._add(catalogue.DISABLED, ()),
            "job.gave_up": self._gave_up,
            "job.discarded": self._gave_up,
        }

    def wants(self, event: str) -> bool:
        """Tell whether an event is counted."""
        return event in self._heard

    def listen(self, event: str, keys: dict[str, Any]) -> None:
        """Count one event."""
        with self._lock:
            self._heard[event](keys)

    def _add(self, family: Family, labels: tuple[str, ...], count: int = 1) -> None:
        self._counters[family][labels] += count

    def _dispatched(self, keys: dict[str, Any]) -> None:
        states = Counter(each.state for each in keys["batch"])
        # Of a schedule that has changed meanwhile nothing was decided.
        states.pop("stale", None)
        for state, count in states.items():
            self._add(catalogue.OCCURRENCES, (state,), count)
        late = [each.lateness_seconds for each in keys["batch"] if each.lateness_seconds is not None]
        on_time = [seconds for seconds in late if seconds <= GRACE.total_seconds()]
        if on_time:
            self._histograms[catalogue.LATENESS].observe(on_time)
        self._histograms[catalogue.CREATION].observe([keys["duration_seconds"]])

    def _misfired(self, keys: dict[str, Any]) -> None:
        self._add(catalogue.MISFIRED, ("missed",), keys["missed"])
        self._add(catalogue.MISFIRED, ("late",), keys["late"])

    def _gave_up(self, keys: dict[str, Any]) -> None:
        options = keys["ended"].lease.options
        if isinstance(options, dict) and "scheduled_for" in options:
            self._add(catalogue.OCCURRENCES_FAILED, self._pairs.of(keys.get("queue"), keys.get("job_type")))

    def describe(self) -> Iterator[Metric]:
        """Name what `collect` returns."""
        return map(family_of, catalogue.OF_SCHEDULERS)

    def collect(self) -> Iterator[Metric]:
        """Return everything that was counted, and whether this process leads."""
        families = {each: family_of(each) for each in catalogue.OF_SCHEDULERS}
        with self._lock:
            for family, counted in self._counters.items():
                for labels, count in counted.items():
                    families[family].add_metric(labels, count)
            for family, histogram in self._histograms.items():
                families[family].add_metric((), histogram.cumulative(), histogram.total)
        families[catalogue.SCHEDULER_LEADS].add_metric((), float(any(each.leads for each in self.schedulers)))
        yield from families.values()

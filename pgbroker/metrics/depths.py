"""How much stands in the queues, asked for when somebody looks, and seldom."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import psycopg
from django.db import Error
from prometheus_client.core import Metric

from pgbroker import reports
from pgbroker.conf import settings
from pgbroker.db import Session
from pgbroker.errors import PgBrokerError
from pgbroker.metrics import catalogue
from pgbroker.metrics.counts import family_of
from pgbroker.tenancy import scope_all

_log = logging.getLogger("pgbroker.metrics")

# How long the database may take over a statement, and how long a look waits for the answer. What is late is
# there for the next look.
STATEMENT_SECONDS = 5
WAIT_SECONDS = 2.0
# An answer is told for so many periods, where the next one is late.
PERIODS_TOLD = 3

_FAMILIES = (
    catalogue.DATABASE_UP,
    catalogue.DEPTH,
    catalogue.OLDEST,
    catalogue.WORKERS,
    catalogue.SCHEDULES,
    catalogue.OVERDUE,
)
# Those that stopped are history.
_STATES = ("alive", "draining", "silent")


class Reading(NamedTuple):
    """What one database answered, and when by the monotonic clock."""

    at: float
    depths: list[reports.QueueDepth]
    workers: Counter[str]
    schedules: reports.ScheduleDepth


class Depths:
    """
    A collector of Prometheus for some databases.

    However many look, each database is asked once in SAMPLE_SECONDS at most, in a thread of its own: a
    database that does not answer delays nobody by more than `WAIT_SECONDS`.
    """

    def __init__(self, aliases: Callable[[], Sequence[str]]) -> None:
        # Asked for late: what is wrong with the settings is for the system checks to say.
        self._aliases = aliases
        self._sources: dict[str, _Source] = {}

    def describe(self) -> Iterator[Metric]:
        """Name what `collect` returns; asks no database."""
        return map(family_of, _FAMILIES)

    def collect(self) -> Iterator[Metric]:
        """Return what the databases answered last."""
        up, depth, oldest, workers, schedules, overdue = map(family_of, _FAMILIES)
        sources = {alias: self._sources.setdefault(alias, _Source(alias)) for alias in self._aliases()}
        for source in sources.values():
            source.ask_if_due()
        until = time.monotonic() + WAIT_SECONDS
        for alias, source in sources.items():
            reading = source.read(until)
            up.add_metric((alias,), int(reading is not None))
            if reading is None:
                continue
            for each in reading.depths:
                for status, count in each.counts.items():
                    depth.add_metric((alias, each.queue, status), count)
                oldest.add_metric((alias, each.queue), each.oldest_ready_seconds or 0.0)
            for state in _STATES:
                workers.add_metric((alias, state), reading.workers[state])
            schedules.add_metric((alias, "disabled"), reading.schedules.disabled)
            schedules.add_metric((alias, "paused"), reading.schedules.paused)
            overdue.add_metric((alias,), reading.schedules.overdue_seconds)
        return iter((up, depth, oldest, workers, schedules, overdue))


class _Source:
    """One database, and what it answered last."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._answered = threading.Event()
        self._answered.set()
        self._reading: Reading | None = None

    def ask_if_due(self) -> None:
        """Begin to ask, if that was not done for a period, and nobody waits for an answer."""
        now = time.monotonic()
        with self._lock:
            lately = self._asked_at is not None and now - self._asked_at < settings().SAMPLE_SECONDS
            if lately or not self._answered.is_set():
                return
            self._asked_at = now
            self._answered.clear()
        threading.Thread(target=self._ask, name=f"pgbroker-depths-{self.alias}", daemon=True).start()

    def read(self, until: float) -> Reading | None:
        """Return the last answer; None when there is none that is still true."""
        self._answered.wait(max(0.0, until - time.monotonic()))
        reading = self._reading
        if reading is None or time.monotonic() - reading.at > PERIODS_TOLD * settings().SAMPLE_SECONDS:
            return None
        return reading

    def _ask(self) -> None:
        # A connection of its own: in a web process the thread's belongs to the request and its transaction.
        session = Session(
            self.alias,
            purpose="metrics",
            statement_timeout=f"{STATEMENT_SECONDS}s",
            patience=2 * STATEMENT_SECONDS,
        )
        try:
            with scope_all():
                depths = reports.list_depths(using=session)
                workers = Counter(
                    each.state for each in reports.list_workers(using=session) if not each.is_gone
                )
                schedules = reports.read_schedule_depth(using=session)
            self._reading = Reading(time.monotonic(), depths, workers, schedules)
        except (psycopg.Error, Error, PgBrokerError) as error:
            self._reading = None
            _log.warning(
                "depths of %s cannot be told: %s", self.alias, str(error).strip() or type(error).__name__
            )
        finally:
            session.drop()
            self._answered.set()

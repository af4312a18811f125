"""A server, workers and a load of one scenario, and the times at which things happened to them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from django.db import connection, connections

from pgbroker.states import Status
from pgbroker.tenancy import scope_all
from testproject.chaos import clock, judge, pace
from testproject.chaos.fleet import Fleet
from testproject.chaos.load import Load
from testproject.chaos.mix import COMPLETING
from testproject.chaos.proxy import Proxy
from testproject.chaos.scenarios import Scenario
from testproject.chaos.settings import LEASE_SECONDS
from testproject.database import django_database
from testproject.embedded_pg import ROLE, Running

RECOVERY_SECONDS = 2 * LEASE_SECONDS
WARM_SECONDS = 2.0
# How long after the load has ended everything must have ended too.
DRAIN_SECONDS = 60.0
SLOTS = 16
# What the short form watches at least.
QUICK_SECONDS = 6


class Stage:
    """
    What a fault is made on. A scenario uses `server`, `fleet`, `proxy`, `dice`, `superuser()` and `wait()`.

    Everything is new for each scenario but the server: a database of its own, its own workers and load.
    """

    def __init__(self, scenario: Scenario, server: Running, *, seed: int, rate: float, quick: bool) -> None:
        self.scenario, self.server, self.seed, self.rate, self.quick = scenario, server, seed, rate, quick
        self.before = 4 if quick else 8
        self.dice = random.Random(seed)
        self.database = f"chaos_{scenario.make.__name__}"
        self.fleet: Fleet
        self.proxy: Proxy
        self.load: Load
        # What a scenario has to add to its line.
        self.facts: dict[str, Any] = {}
        self._other_ledgers: list[Callable[[], Mapping[UUID, Status | None]]] = []
        self._other_judges: list[Callable[[judge.Verdict], None]] = []

    # -------------------------------------------------------------- what scenarios use

    def superuser(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect as the superuser, past every fault of the network, in autocommit."""
        return psycopg.connect(self.server.superuser_dsn(database=self.database), autocommit=True)

    def session(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect as the application does, in autocommit; it sees all tenants."""
        session = psycopg.connect(self._dsn(), autocommit=True)
        session.execute("select set_config('pgbroker.scope', 'all', false)")
        return session

    def wait(self, seconds: float) -> None:
        """Let so much time pass: how long a fault lasts is part of what it is."""
        time.sleep(seconds)

    def signal(self, number: int, which: int = 0) -> None:
        """Send a worker a signal."""
        self.fleet.places[which].signal(number)

    def kill(self, which: int = 0) -> None:
        """End a worker on the spot; its service manager starts another."""
        self.signal(signal.SIGKILL, which)

    def also_judge(
        self, ledger: Callable[[], Mapping[UUID, Status | None]], blame: Callable[[judge.Verdict], None]
    ) -> None:
        """Let jobs that a scenario has enqueued itself be judged too: how each must end, and what more there is."""
        self._other_ledgers.append(ledger)
        self._other_judges.append(blame)

    # -------------------------------------------------------------- the run

    def run(self) -> dict[str, Any]:
        """Play the scenario from beginning to end and return its line. Raises `clock.NoClock`."""
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgbroker-chaos-")))
            shutil.rmtree(os.environ["CHAOS_BODIES"], ignore_errors=True)
            self._make_database(stack)
            self.fleet = Fleet(directory, self._environments(stack, directory), ("--concurrency", str(SLOTS)))
            stack.callback(self.fleet.kill)
            try:
                return self._play(stack)
            except BaseException as error:
                error.add_note(self.fleet.last_words())
                raise

    def _play(self, stack: ExitStack) -> dict[str, Any]:
        self._wait_until(self._all_registered, "all workers have registered")
        self.load = load = Load(seed=self.seed, rate=self.rate)
        load.start()
        time.sleep(WARM_SECONDS + self.before)
        began = time.time()
        # No more is done in the long run than is asked for.
        before = min(pace.usual(judge.completed_by_second(began), -self.before, 0), self.rate * COMPLETING)
        # The fault may end this connection too.
        connections.close_all()
        self.scenario.make(self)
        over = time.time()
        watched = self._watch(over, before)
        load.stop()
        left = self._seconds_until_all_ended()
        ends, last_ends = self.fleet.ends, self.fleet.stop()
        meddles = self.scenario.meddles
        ledger = {job_id: None if meddles else item.ends for job_id, item in load.accepted.items()}
        for other in self._other_ledgers:
            ledger |= other()
        found = judge.verdict(ledger)
        for blame in self._other_judges:
            blame(found)
        counts = judge.completed_by_second(over)
        recovery = pace.recovery(counts, until=watched, before=before)
        lasted = round(over - began)
        holds = (
            found.is_clean
            and recovery is not None
            and recovery <= RECOVERY_SECONDS
            and left is not None
            and last_ends == [0] * len(last_ends)
        )
        if not holds:
            found.trouble.append(self.fleet.last_words())
        return {
            "name": self.scenario.name,
            "holds": holds,
            "goal": f"lost, doubled, stranded, inconsistent 0; throughput >= {pace.SHARE:g} in {RECOVERY_SECONDS:g} s",
            "lost": found.lost,
            "doubled": found.doubled,
            "stranded": found.stranded,
            "inconsistent": found.inconsistent,
            "before": before,
            "during": min(pace.between(counts, -lasted, 0), default=None),
            "after": pace.usual(counts, min(recovery or 0, watched - pace.WIDTH), watched),
            "recovery_seconds": recovery,
            "by_second": pace.between(counts, -lasted - self.before, watched),
            "fault_seconds": round(over - began, 1),
            "drained_seconds": left,
            "jobs": found.jobs,
            "attempts": found.attempts,
            "repeated": found.repeated,
            "bodies": found.bodies,
            "bodies_left": found.bodies_left,
            "answers_lost": load.answers_lost,
            "enqueue_errors": load.errors,
            "restarts": ends,
            "ends": last_ends,
            **self.facts,
            "seed": self.seed,
            "rate": self.rate,
            "lease_seconds": LEASE_SECONDS,
            "trouble": found.trouble,
        }

    def _watch(self, over: float, before: float) -> int:
        """
        Watch until throughput must be back; returns how many whole seconds were watched.

        The short form ends as soon as it is back.
        """
        while (watched := int(time.time() - over)) < RECOVERY_SECONDS + pace.WIDTH:
            if self.quick and watched >= QUICK_SECONDS:
                counts = judge.completed_by_second(over)
                if pace.recovery(counts, until=watched, before=before) is not None:
                    break
            time.sleep(over + watched + 1 - time.time())
        return watched

    def _dsn(self) -> str:
        return self.server.cluster.dsn(database=self.database)

    def _make_database(self, stack: ExitStack) -> None:
        """Copy the migrated database, and point Django at the copy."""
        connections.close_all()
        template = self.server.cluster.dsn
        with psycopg.connect(self.server.superuser_dsn(), autocommit=True) as session:
            session.execute(f"create database {self.database} template pgbroker owner {ROLE}")
        settings = connections["default"].settings_dict
        before = dict(settings)
        settings.update(django_database(template(database=self.database)))

        def put_back() -> None:
            connections.close_all()
            settings.update(before)
            with psycopg.connect(self.server.superuser_dsn(), autocommit=True) as session:
                session.execute(f"drop database {self.database} with (force)")

        stack.callback(put_back)

    def _environments(self, stack: ExitStack, directory: Path) -> list[Mapping[str, str]]:
        url = self._dsn()
        if self.scenario.proxied:
            self.proxy = Proxy(Path(self.server.host) / f".s.PGSQL.{self.server.port}")
            stack.callback(self.proxy.close)
            url = f"host=127.0.0.1 port={self.proxy.port} dbname={self.database} user={ROLE} sslmode=disable"
        common = {"DJANGO_SETTINGS_MODULE": "testproject.chaos.settings", "DATABASE_URL": url}
        return [
            {**common, **(clock.environment(directory, seconds) if seconds else {})}
            for seconds in self.scenario.clocks
        ]

    def _all_registered(self) -> bool:
        with scope_all(), connection.cursor() as cursor:
            cursor.execute("select count(*) from pgbroker.worker where expires_at > statement_timestamp()")
            (count,) = cursor.fetchone()
        return bool(count >= len(self.fleet.places))

    def _seconds_until_all_ended(self) -> float | None:
        """Wait until no job lives; None when that does not come about."""
        began = time.monotonic()
        while time.monotonic() - began < DRAIN_SECONDS:
            with scope_all(), connection.cursor() as cursor:
                cursor.execute("select exists (select from pgbroker.job where status < 10)")
                if cursor.fetchone() == (False,):
                    return round(time.monotonic() - began, 1)
            time.sleep(0.1)
        return None

    def _wait_until(self, true: Any, what: str, seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while not true():
            if time.monotonic() > until:
                raise AssertionError(f"not in {seconds:g} s: {what}")
            time.sleep(0.05)

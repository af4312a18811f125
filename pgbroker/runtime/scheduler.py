"""One scheduler process: the schedules and the upkeep, each in a loop of its own, and nothing that runs jobs."""

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import psycopg
from django.db import connections

from pgbroker import telemetry
from pgbroker.conf import Settings, settings
from pgbroker.db import Session
from pgbroker.ids import new_id
from pgbroker.lifecycle.take_due import BEGINNING
from pgbroker.runtime.connecting import ConnectGate
from pgbroker.runtime.declaring import DeclaringNames, declare_once
from pgbroker.runtime.leader import Leader
from pgbroker.runtime.scheduling import Scheduling
from pgbroker.runtime.service import CONNECTION_TROUBLE, Service
from pgbroker.runtime.sessions import patience_of
from pgbroker.runtime.upkeep import Upkeep, limits
from pgbroker.schedules.tick import Ticked, may_be_a_row, replan, tick, tick_apart

# How long a loop may take to end its page.
JOIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """How one scheduler process is to run; the flags of `broker_scheduler`."""

    database: str | None = None
    name: str | None = None
    metrics_port: int | None = None


class Scheduler:
    """
    A scheduler process, as an object: `run()` blocks until it has stopped and returns the exit code.

    Start as many as you like: one leads, the others take over when its lease has run out. It holds two connections.
    """

    def __init__(self, options: SchedulerOptions) -> None:
        self.options = options
        self.settings: Settings = settings()
        self.id: UUID = new_id()
        self.pid = os.getpid()
        self.alias = options.database or self.settings.DATABASES[0]
        self.name = options.name or f"{socket.gethostname()}:{os.getpid()}"
        self.exit_code = 0
        self.stopping = False
        self._stop = threading.Event()
        gate = ConnectGate()
        self.sessions = {
            loop: Session(
                self.alias,
                purpose=loop,
                gate=gate.passing,
                patience=patience_of("upkeep", self.settings),
                **limits(self.settings),
            )
            for loop in ("schedule", "upkeep")
        }
        self.scheduling = Scheduling(
            holder=self.id, name=self.name, settings=self.settings, session=self.sessions["schedule"]
        )
        self.upkeep = Upkeep(
            holder=self.id, name=self.name, settings=self.settings, session=self.sessions["upkeep"]
        )
        self.names = DeclaringNames(self.alias)
        self.services = {
            "schedule": self._service("schedule", self.scheduling.step),
            "upkeep": self._service("upkeep", self._upkeep_step),
        }

    def _service(self, name: str, step: Callable[[], float]) -> Service:
        return Service(
            name,
            step,
            sessions=(self.sessions[name],),
            on_fatal=self.fail,
            longest_wait=min(2.0, self.settings.LEADER_SECONDS / 4),
            # What goes wrong is told and tried again, for ever: there is nothing that a fresh process would do better.
            vital=False,
        )

    @property
    def leads(self) -> bool:
        """True while it is the one that creates occurrences."""
        return self.scheduling.leader.leads

    def run(self) -> int:
        """Make rows of what the code declares, then work until told to stop; returns the exit code."""
        self.names.begin()
        self.scheduling.declaring.begin()
        for connection in connections.all(initialized_only=True):
            # This thread only waits from here on.
            if not connection.in_atomic_block:
                connection.close()
        telemetry.emit("scheduler.started", worker_id=self.id, name=self.name, alias=self.alias)
        for service in self.services.values():
            service.start()
        try:
            self._stop.wait()
        finally:
            self.stopping = True
            for service in self.services.values():
                service.stop()
            for service in self.services.values():
                service.join(JOIN_SECONDS)
            self._resign()
            telemetry.emit("scheduler.stopped", worker_id=self.id, name=self.name)
        return self.exit_code

    def _upkeep_step(self) -> float:
        self.names.again_if_due()
        return self.upkeep.step()

    def _resign(self) -> None:
        session = Session(self.alias, purpose="drain", patience=patience_of("upkeep", self.settings))
        try:
            for name, leader in (("schedule", self.scheduling.leader), ("upkeep", self.upkeep.leader)):
                if not self.services[name].is_alive():
                    resign(leader, session)
        finally:
            session.drop()

    def stop(self) -> None:
        """Ask it to end after the page that is under way. It takes a lock: not for signal handlers."""
        self._stop.set()

    def fail(self, error: BaseException) -> None:
        """End the process: one of its loops cannot go on."""
        self.exit_code = 1
        self._stop.set()


def resign(leader: Leader, session: Session) -> None:
    """Give a lease back; where that cannot be, it runs out by itself."""
    try:
        leader.resign(using=session)
    except CONNECTION_TROUBLE:
        session.drop()
    except psycopg.Error as error:
        telemetry.emit("worker.loop_failed", loop="drain", error_code=type(error).__name__, exception=error)
        session.drop()


def run_once(alias: str, *, stopping: threading.Event | None = None) -> int:
    """
    Make rows of what the code declares, create what is due, and return how many occurrences; for hosts with cron.

    Beside a scheduler that runs it does no harm: no occurrence is created twice.
    """
    declare_once(alias)
    telemetry.emit("scheduler.started", alias=alias, once=True)
    session = Session(alias, purpose="schedule")
    created = 0
    try:
        while replan(using=session):
            pass
        after: tuple[datetime, UUID] | None = BEGINNING
        broken: set[UUID] = set()
        while after is not None and not (stopping is not None and stopping.is_set()):
            page, failed = _page(after, broken, session)
            broken |= failed
            created, after = created + page.created, page.after
    finally:
        session.drop()
    return created


def _page(after: tuple[datetime, UUID], avoid: set[UUID], session: Session) -> tuple[Ticked, set[UUID]]:
    """Create a page, or each of it apart: what breaks one schedule stops no other. Returns those that broke too."""
    try:
        return tick(after=after, avoid=avoid, using=session), set()
    except psycopg.Error as error:
        if not may_be_a_row(error):
            raise
        return tick_apart(after=after, avoid=avoid, using=session)

"""One worker process: wires claimer, executors, settler, heartbeats, listener, watchdog and upkeep together."""

import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from django.db import connections

from pgbroker import telemetry
from pgbroker.context import StopReason
from pgbroker.db import Session
from pgbroker.ids import new_id
from pgbroker.lease import Lease
from pgbroker.outcomes import Ended
from pgbroker.policy.prefetch import Pace
from pgbroker.policy.restarts import RECYCLE
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.board import Board
from pgbroker.runtime.catalogue import Catalogue
from pgbroker.runtime.claimer import Claimer
from pgbroker.runtime.declaring import DeclaringNames
from pgbroker.runtime.drain import drain
from pgbroker.runtime.exclusive import ExclusiveName
from pgbroker.runtime.executors.choice import Executors
from pgbroker.runtime.executors.nursery import Nursery
from pgbroker.runtime.finished import is_finished
from pgbroker.runtime.handback import HandBack
from pgbroker.runtime.heartbeats import Heartbeats
from pgbroker.runtime.isolation import LogTail, losses
from pgbroker.runtime.leftovers import Leftovers
from pgbroker.runtime.listener import Listener
from pgbroker.runtime.options import WorkerOptions, effective_settings
from pgbroker.runtime.scheduling import Scheduling
from pgbroker.runtime.service import Service
from pgbroker.runtime.sessions import Sessions
from pgbroker.runtime.settler import Pair, Settler, seconds_by_type, shortest_wait
from pgbroker.runtime.severed import Severed
from pgbroker.runtime.upkeep import upkeep_of
from pgbroker.runtime.watchdog import Watchdog
from pgbroker.states import AttemptState

__all__ = ["RECYCLE", "Worker", "WorkerOptions"]


class Worker:
    """
    A worker process, as an object: `run()` blocks until it has stopped and returns the exit code.

    It holds five connections at most (claims, settles, heartbeats, upkeep, notifications; with schedules six) besides
    those that handlers open. Each start is a new id, never reused: the fence depends on it.
    """

    def __init__(self, options: WorkerOptions, nursery: Nursery | None = None) -> None:
        self.options = options
        self.settings = effective_settings(options)
        self.id: UUID = new_id()
        # Of the process that runs the handlers: one may fork, and return in the child as well.
        self.pid = os.getpid()
        self.alias = options.database or self.settings.DATABASES[0]
        self.name = options.name or f"{socket.gethostname()}:{os.getpid()}"
        self.lease_time = timedelta(seconds=self.settings.LEASE_SECONDS)
        self.exclusive = (
            ExclusiveName(options.name, holder=self.id, lease=self.lease_time) if options.name else None
        )
        self.board = Board(options.concurrency)
        self.pace = Pace()
        self.draining = False
        self.exit_code = 0
        self.claimed_count = 0
        # Handlers that had not come back when the process was about to end.
        self.left_running = 0
        self._stop = threading.Event()
        self.sessions = sessions = Sessions(self.alias, self.settings)
        self.claimer = Claimer(self, sessions["claim"])
        self.names = DeclaringNames(self.alias, options.queues)
        self.catalogue = Catalogue(self, sessions["claim"])
        self.settler = Settler(self, sessions["settle"])
        self.heartbeats = Heartbeats(self, sessions["heartbeat"])
        self.listener = Listener(self, sessions["listen"])
        self.upkeep = upkeep_of(self, sessions["upkeep"])
        self.scheduling = (
            Scheduling(holder=self.id, name=self.name, settings=self.settings, session=sessions["schedule"])
            if options.with_scheduler
            else None
        )
        self.hand_back = HandBack(self)
        self.watchdog = Watchdog(self)
        self.leftovers = Leftovers(self)
        self.severed = Severed(self.alias)
        self.executors = Executors(self, nursery)
        self.services = {
            "claim": self._service("claim", self._claim_step, on_trouble=self.claimer.trust_nothing),
            "settle": self._service("settle", self.settler.step),
            # Backs off for less than a heartbeat: leases must be renewed as soon as the database is back.
            "heartbeat": self._service(
                "heartbeat", self.heartbeats.step, longest_wait=min(2.0, self.settings.HEARTBEAT_SECONDS)
            ),
            # Without these two the work goes on, if later or less tidily.
            "upkeep": self._service(
                "upkeep",
                self._upkeep_step,
                vital=False,
                longest_wait=min(2.0, self.settings.LEADER_SECONDS / 4),
            ),
            "listen": self._service(
                "listen", self.listener.step, vital=False, longest_wait=self.settings.LISTEN_RETRY_SECONDS
            ),
            "watchdog": Service("watchdog", self.watchdog.step, on_fatal=self.fail),
        }
        if self.scheduling is not None:
            self.services["schedule"] = self._service(
                "schedule",
                self.scheduling.step,
                vital=False,
                longest_wait=min(2.0, self.settings.LEADER_SECONDS / 4),
            )
        self.settler.wake = self.services["settle"].wake
        self.board.on_room = self.services["claim"].wake
        self._touched_at = 0.0
        self._log_tail: LogTail | None = None

    def _service(self, name: str, step: Any, *, on_trouble: Any = lambda: None, **more: Any) -> Service:
        def trouble() -> None:
            losses.note()
            # Handlers may have lost theirs too, without a word.
            self.services["upkeep"].wake()
            self.executors.processes.tell_loss()
            on_trouble()

        return Service(
            name, step, sessions=(self.sessions[name],), on_fatal=self.fail, on_trouble=trouble, **more
        )

    # -------------------------------------------------------------- life

    def prepare(self) -> bool:
        """
        Take its name, if it has one of its own, make rows of what the code declares and learn the ids.

        Raises `WorkerNameTaken`, and what the database says. False when told to stop while it waited for the name.
        """
        prepared, session = False, self.sessions["heartbeat"]
        try:
            if self.exclusive is None or self.exclusive.take(session, stopping=self._stop):
                self.catalogue.learn_all(using=self.alias)
                if self.scheduling is not None:
                    self.scheduling.declaring.begin()
                prepared = True
        finally:
            if not prepared:
                if self.exclusive is not None:
                    # Whoever corrects what is wrong need not wait for it.
                    with suppress(psycopg.Error):
                        self.exclusive.give_back(session)
                session.drop()
        return prepared

    def start_services(self) -> None:
        """Start the loops; returns at once."""
        self.pid = os.getpid()
        self.severed.watch()
        self.executors.open()
        if self.settings.MAX_LOG_BYTES:
            import logging

            self._log_tail = LogTail(self.id)
            logging.getLogger().addHandler(self._log_tail)
        for name, service in self.services.items():
            if name != "listen" or self.settings.NOTIFY:
                service.start()
        telemetry.emit(
            "worker.started",
            worker_id=self.id,
            queue=",".join(self.claimer.by_name),
            alias=self.alias,
            slots=self.board.slots,
        )

    def run(self) -> int:
        """Work until told to stop, then drain; returns the exit code."""
        if not self.prepare():
            return self.exit_code
        for connection in connections.all(initialized_only=True):
            # This thread only waits from here on.
            if not connection.in_atomic_block:
                connection.close()
        self.start_services()
        return self.run_to_end()

    def run_to_end(self) -> int:
        """Wait until told to stop, or done, then drain; returns the exit code."""
        try:
            while not self._stop.wait(0.2):
                if is_finished(self):
                    break
        finally:
            drain(self)
            if self._log_tail is not None:
                import logging

                logging.getLogger().removeHandler(self._log_tail)
        telemetry.emit("worker.stopped", worker_id=self.id, settled=self.settler.settled_count)
        return self.exit_code

    def stop(self) -> None:
        """Ask the worker to drain and end; nothing is claimed from now on. It takes a lock: not for signal handlers."""
        self.draining = True
        self._stop.set()

    def fail(self, error: BaseException) -> None:
        """End the process: one of its loops cannot go on."""
        self.exit_code = 1
        self._stop.set()

    def recycle(self) -> None:
        """End the process for a fresh start: too many of its threads are stuck."""
        self.exit_code = RECYCLE
        self._stop.set()

    def lose_name(self) -> None:
        """Drain and end: another worker has this one's name."""
        self.exclusive = None
        telemetry.emit("worker.name_lost", worker_id=self.id, name=self.name)
        self.exit_code = 1
        self.stop()

    def jobs_left(self) -> int | None:
        """Return how many jobs it may still claim, or None without `--max-jobs`."""
        if self.options.max_jobs is None:
            return None
        return max(0, self.options.max_jobs - self.claimed_count + self.hand_back.released_count)

    # -------------------------------------------------------------- loops

    def _claim_step(self) -> float:
        now = time.monotonic()
        self._touch_heartbeat_file(now)
        self.catalogue.refresh_queues_if_due(now)
        if self.executors.processes.is_warming:
            return 1.0
        wait = self.claimer.step()
        # The loop turns at least once a second where somebody watches it turn.
        return min(wait, 1.0) if self.options.heartbeat_file else wait

    def _upkeep_step(self) -> float:
        self.names.again_if_due()
        wait = self.severed.look(using=self.sessions["upkeep"])
        return min(wait, self.upkeep.step())

    def _touch_heartbeat_file(self, now: float) -> None:
        if self.options.heartbeat_file and now - self._touched_at >= 1.0:
            Path(self.options.heartbeat_file).touch()
            self._touched_at = now

    def wake_claimer(self) -> None:
        """End the claimer's wait."""
        self.services["claim"].wake()

    def resolve_now(self) -> None:
        """Look at once at the dependents that somebody left to a pass."""
        self.upkeep.bring_on("resolve")
        self.services["upkeep"].wake()

    def wake_watchdog(self) -> None:
        """End the watchdog's wait."""
        self.services["watchdog"].wake()

    # -------------------------------------------------------------- from claim to settle

    def start(self, attempt: Attempt) -> None:
        """Start one attempt that the board gave a slot."""
        self.executors.start_all([attempt])

    def tell_started(self, attempt: Attempt) -> None:
        """Tell that a handler is about to be called."""
        if telemetry.wanted("attempt.started"):
            telemetry.emit("attempt.started", **self.keys(attempt.lease), attempt=attempt)

    def report(self, attempt: Attempt, ended: Ended) -> None:
        """Hand an outcome to the settler, unless the attempt was given up before."""
        if not attempt.end_once():
            self.leftovers.put(ended)
            return
        if "lease_lost" in attempt.told and ended.state != AttemptState.COMPLETED:
            # It failed because it was told to stop. Whoever reaps it records what happened: a lost lease.
            self.board.settled([attempt])
        else:
            self.settler.put(attempt, ended)

    def next_after(self, attempt: Attempt) -> Attempt | None:
        """Free the slot of an attempt whose handler is done; returns what runs next in it, to be started."""
        return self.board.next_after(attempt)

    def finish(self, attempt: Attempt, ended: Ended, ahead: Attempt | None = None) -> Attempt | None:
        """Report and free the slot; what is returned is for the same thread to run, which is to watch it."""
        self.report(attempt, ended)
        following = self.board.next_after(attempt, ahead)
        if following is not None and following.executor is not attempt.executor:
            self.start(following)
            return None
        return following

    def stop_attempt(self, attempt: Attempt, reason: StopReason) -> None:
        """
        Ask an attempt to stop, once for each reason; one that is held never starts.

        A handler that is stopping already hears no more of a cancel: its clean-up must not be cancelled.
        """
        if reason in attempt.told or (attempt.told and reason in ("cancelled", "shutdown")):
            return
        attempt.told = (*attempt.told, reason)
        if reason == "lease_lost":
            telemetry.emit("attempt.lease_lost", **self.keys(attempt.lease), state="running")
        attempt.ask_to_stop(reason)
        if attempt.started is None and self.board.withdraw(attempt):
            self.report(attempt, attempt.cancelled_unstarted(self.settings))
            return
        attempt.executor.ask_to_stop(attempt)

    def abandon(self, attempt: Attempt) -> None:
        """Give a handler up that does not stop, and let the next one have its slot."""
        following = self.board.abandon(attempt)
        if following is not None:
            self.start(following)

    def after_settle(self, batch: list[Pair], statuses: dict[int, int]) -> None:
        """Learn from settled attempts, and make room for more."""
        self.pace.saw(seconds_by_type(batch))
        wait = shortest_wait(batch, statuses)
        if wait is not None:
            self.claimer.due_in(wait)
        self.wake_claimer()

    def release(self, attempts: Sequence[Attempt], *, code: str, using: Session) -> None:
        """Hand attempts back unharmed; what was asked to cancel meanwhile is settled instead."""
        self.hand_back.release(attempts, code=code, using=using)

    # -------------------------------------------------------------- what others ask

    def lease_time_of(self, queue_id: int) -> timedelta:
        """Return how long a claim or a heartbeat in this queue holds a job."""
        lane = self.claimer.lanes.get(queue_id)
        seconds = lane.queue.lease_seconds if lane else None
        if seconds is None or self.options.lease_seconds is not None:
            return self.lease_time
        return timedelta(seconds=max(seconds, 3 * self.settings.HEARTBEAT_SECONDS))

    @property
    def shortest_lease(self) -> timedelta:
        """The shortest lease of all queues it serves; three heartbeats at least."""
        return min(
            [self.lease_time, *(self.lease_time_of(queue_id) for queue_id in list(self.claimer.lanes))]
        )

    def type_name(self, job_type_id: int) -> str | None:
        """Return the key of a type this worker knows."""
        job_type = self.catalogue.types.get(job_type_id)
        return job_type.key if job_type else None

    def queue_name(self, queue_id: int) -> str | None:
        """Return the name of a queue this worker serves."""
        lane = self.claimer.lanes.get(queue_id)
        return lane.queue.name if lane else None

    def keys(self, lease: Lease) -> dict[str, Any]:
        """Return the telemetry keys of an attempt."""
        return {
            "job_id": lease.job_id,
            "job_type": self.type_name(lease.job_type_id),
            "queue": self.queue_name(lease.queue_id),
            "tenant_id": lease.tenant_id,
            "attempt_no": lease.attempt_count,
            "lease_token": lease.lease_token,
            "worker_id": lease.worker_id,
            "correlation_id": lease.correlation_id,
        }

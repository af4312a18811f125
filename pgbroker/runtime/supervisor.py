"""One worker process: wires claimer, executors, settler, heartbeats, listener, watchdog and upkeep together."""

import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from pgbroker import __version__, telemetry
from pgbroker.conf import Settings, settings
from pgbroker.context import StopReason
from pgbroker.db import Session
from pgbroker.ids import new_id
from pgbroker.lease import Lease
from pgbroker.lifecycle.beat import WorkerState
from pgbroker.lifecycle.declare import QueueRow, declare_queues, list_queues, type_ids
from pgbroker.lifecycle.release import release
from pgbroker.outcomes import Ended
from pgbroker.policy.prefetch import Pace
from pgbroker.registry import JobType, synchronise, types
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.board import Board
from pgbroker.runtime.claimer import Claimer
from pgbroker.runtime.drain import drain
from pgbroker.runtime.executors.event_loop import EventLoopExecutor
from pgbroker.runtime.executors.threads import ThreadExecutor
from pgbroker.runtime.heartbeats import Heartbeats
from pgbroker.runtime.isolation import LogTail
from pgbroker.runtime.listener import Listener
from pgbroker.runtime.service import Service
from pgbroker.runtime.settler import Pair, Settler, seconds_by_type, shortest_wait
from pgbroker.runtime.unknown import put_back_unknown
from pgbroker.runtime.upkeep import Upkeep
from pgbroker.runtime.watchdog import Watchdog

RECYCLE = 75
QUEUES_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How one worker process is to run; the flags of `broker_worker`."""

    queues: tuple[str, ...] = ()
    exclude_queues: tuple[str, ...] = ()
    concurrency: int = 8
    database: str | None = None
    lease_seconds: float | None = None
    poll_interval: float | None = None
    shutdown_timeout: float | None = None
    burst: bool = False
    max_jobs: int | None = None
    heartbeat_file: str | None = None
    name: str | None = None


class Worker:
    """
    A worker process, as an object: `run()` blocks until it has stopped and returns the exit code.

    It holds four connections (claims, settles, heartbeats and upkeep, notifications) besides those that
    handlers open. Each start is a new id, never reused: the fence depends on it.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.settings = _effective(options)
        self.id: UUID = new_id()
        self.alias = options.database or self.settings.DATABASES[0]
        self.name = options.name or f"{socket.gethostname()}:{os.getpid()}"
        self.lease_time = timedelta(seconds=self.settings.LEASE_SECONDS)
        self.board = Board(options.concurrency)
        self.pace = Pace()
        self.draining = False
        self.exit_code = 0
        self.claimed_count = 0
        self._released_count = 0
        self._types: dict[int, JobType] = {}
        self._stop = threading.Event()
        self._queues_at = 0.0
        sessions = {
            purpose: Session(self._alias_of(purpose), purpose=purpose)
            for purpose in ("claim", "settle", "heartbeat", "listen")
        }
        self.claimer = Claimer(self, sessions["claim"])
        self.settler = Settler(self, sessions["settle"])
        self.heartbeats = Heartbeats(self, sessions["heartbeat"])
        self.listener = Listener(self, sessions["listen"])
        self.upkeep = Upkeep(self, sessions["heartbeat"])
        self.watchdog = Watchdog(self)
        self.threads = ThreadExecutor(self)
        self.event_loop = EventLoopExecutor(self)
        self.sessions = sessions
        self.services = {
            "claim": Service(
                "claim",
                self._claim_step,
                sessions=(sessions["claim"],),
                on_fatal=self.fail,
                on_reconnect=self.claimer.reconnected,
            ),
            "settle": Service(
                "settle", self.settler.step, sessions=(sessions["settle"],), on_fatal=self.fail
            ),
            "heartbeat": Service(
                "heartbeat",
                self._heartbeat_step,
                sessions=(sessions["heartbeat"],),
                on_fatal=self.fail,
                # Shorter than a heartbeat: the lease must be renewed as soon as the database is back.
                longest_wait=min(2.0, self.settings.HEARTBEAT_SECONDS),
            ),
            "listen": Service(
                "listen",
                self.listener.step,
                sessions=(sessions["listen"],),
                on_fatal=self.fail,
                longest_wait=self.settings.LISTEN_RETRY_SECONDS,
            ),
            "watchdog": Service("watchdog", self.watchdog.step, on_fatal=self.fail),
        }
        self.settler.wake = self.services["settle"].wake
        self.board.on_room = self.services["claim"].wake
        self._upkeep_at = 0.0
        self._beat_at = 0.0
        self._touched_at = 0.0
        self._log_tail: LogTail | None = None

    def _alias_of(self, purpose: str) -> str:
        return (self.settings.LISTEN_DATABASE or self.alias) if purpose == "listen" else self.alias

    # -------------------------------------------------------------- life

    def prepare(self) -> None:
        """Make rows of what the code declares and learn the ids; raises what the database says."""
        ids = synchronise(using=self.alias)
        known = types()
        former = {alias: key for key, each in known.items() for alias in each.task.aliases}
        if former:
            ids.update(type_ids(list(former), using=self.alias))
        self._types = {number: known[former.get(name, name)] for name, number in ids.items()}
        self._refresh_queues(make=True)

    def _refresh_queues(self, *, make: bool = False) -> None:
        """Learn the queues to serve: the named ones, or all there are, less the excluded."""
        using: str | Session = self.alias if make else self.sessions["claim"]
        if self.options.queues:
            rows = declare_queues(self.options.queues, using=using) if make else list_queues(using=using)
            rows = [row for row in rows if row.name in self.options.queues]
        else:
            rows = [row for row in list_queues(using=using) if row.name not in self.options.exclude_queues]
        self.claimer.serve(rows)
        self._queues_at = time.monotonic()

    def start_services(self) -> None:
        """Start the loops; returns at once."""
        if self.settings.MAX_LOG_BYTES:
            import logging

            self._log_tail = LogTail()
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
        self.prepare()
        self.start_services()
        return self.run_to_end()

    def run_to_end(self) -> int:
        """Wait until told to stop, or done, then drain; returns the exit code."""
        try:
            while not self._stop.wait(0.2):
                if self._is_finished():
                    break
        finally:
            drain(self)
            if self._log_tail is not None:
                import logging

                logging.getLogger().removeHandler(self._log_tail)
        telemetry.emit("worker.stopped", worker_id=self.id, settled=self.settler.settled_count)
        return self.exit_code

    def stop(self) -> None:
        """Ask the worker to drain and end; safe in a signal handler."""
        self._stop.set()

    def fail(self, error: BaseException) -> None:
        """End the process: one of its loops cannot go on."""
        self.exit_code = 1
        self._stop.set()

    def recycle(self) -> None:
        """End the process for a fresh start: too many of its threads are stuck."""
        self.exit_code = RECYCLE
        self._stop.set()

    def _is_finished(self) -> bool:
        if self.board.stuck > self.board.slots:
            self.recycle()
            return True
        if self.jobs_left() == 0 and self.board.size == 0:
            return True
        return self.options.burst and self.claimer.dry and self.board.size == 0

    def jobs_left(self) -> int | None:
        """Return how many jobs it may still claim, or None without `--max-jobs`."""
        if self.options.max_jobs is None:
            return None
        return max(0, self.options.max_jobs - self.claimed_count + self._released_count)

    # -------------------------------------------------------------- loops

    def _claim_step(self) -> float:
        now = time.monotonic()
        self._touch_heartbeat_file(now)
        if now - self._queues_at >= QUEUES_SECONDS:
            self._refresh_queues()
        wait = self.claimer.step()
        # The loop turns at least once a second where somebody watches it turn.
        return min(wait, 1.0) if self.options.heartbeat_file else wait

    def _touch_heartbeat_file(self, now: float) -> None:
        if self.options.heartbeat_file and now - self._touched_at >= 1.0:
            Path(self.options.heartbeat_file).touch()
            self._touched_at = now

    def _heartbeat_step(self) -> float:
        """Beat when it is time to, and do the upkeep in between: it may wait, a heartbeat may not."""
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + self.heartbeats.step()
        elif now >= self._upkeep_at:
            self._upkeep_at = now + self.upkeep.step()
        return max(0.0, min(self._beat_at, max(self._upkeep_at, now + 0.001)) - time.monotonic())

    def wake_claimer(self) -> None:
        """End the claimer's wait."""
        self.services["claim"].wake()

    def wake_watchdog(self) -> None:
        """End the watchdog's wait."""
        self.services["watchdog"].wake()

    # -------------------------------------------------------------- from claim to settle

    def take_in(self, leases: Sequence[Lease]) -> None:
        """Take claimed jobs in: start what has a slot, hold the rest, put back what nobody here can run."""
        now = time.monotonic()
        self.claimed_count += len(leases)
        known: list[Attempt] = []
        unknown: list[Lease] = []
        for lease in leases:
            job_type = self._types.get(lease.job_type_id)
            if job_type is None or lease.type_version > job_type.task.version:
                unknown.append(lease)
            else:
                known.append(Attempt(lease, job_type, now, self.settings))
        self.start_all(self.board.add(known))
        if unknown:
            self._released_count += len(unknown)
            put_back_unknown(self, unknown, using=self.sessions["claim"])

    def start_all(self, attempts: list[Attempt]) -> None:
        """Start attempts that the board gave a slot."""
        for attempt in attempts:
            if attempt.is_async:
                self.watchdog.watch(attempt)
            else:
                self.start(attempt)
        self.event_loop.start_many([attempt for attempt in attempts if attempt.is_async])

    def start(self, attempt: Attempt) -> None:
        """Start one attempt that the board gave a slot."""
        self.watchdog.watch(attempt)
        executor = self.event_loop if attempt.is_async else self.threads
        executor.start(attempt)

    def finish(self, attempt: Attempt, ended: Ended) -> Attempt | None:
        """Hand an outcome to the settler, unless the attempt was given up; returns what runs next in its slot."""
        if attempt.end_once():
            self.settler.put(attempt, ended)
        following = self.board.next_after(attempt)
        if following is not None and not following.is_async and not attempt.is_async:
            self.watchdog.watch(following)
        return following

    def stop_attempt(self, attempt: Attempt, reason: StopReason) -> None:
        """Ask a running attempt to stop; a held one that lost its lease or is cancelled never starts."""
        attempt.ask_to_stop(reason)
        if attempt.started is None and self.board.withdraw(attempt):
            if attempt.end_once():
                from pgbroker.errors import AttemptCancelled

                self.settler.put(
                    attempt, attempt.failed(AttemptCancelled("cancelled before it started"), self.settings)
                )
            return
        (self.event_loop if attempt.is_async else self.threads).ask_to_stop(attempt)

    def abandon(self, attempt: Attempt) -> None:
        """Give a handler up that does not stop, and let the next one have its slot."""
        following = self.board.abandon(attempt)
        if following is not None:
            self.start(following)

    def after_settle(self, batch: list[Pair], statuses: dict[object, int]) -> None:
        """Learn from settled attempts, and make room for more."""
        self.pace.saw(seconds_by_type(batch))
        wait = shortest_wait(batch, statuses)
        if wait is not None:
            self.claimer.due_in(wait)
        self.wake_claimer()

    def release(
        self, attempts: Sequence[Attempt], *, code: str, using: Session, delay: timedelta | None = None
    ) -> None:
        """Hand attempts back unharmed; what was asked to cancel meanwhile is settled instead."""
        ours = [attempt for attempt in attempts if attempt.end_once()]
        if not ours:
            return
        released = {
            each.job_id
            for each in release([(attempt.lease, delay) for attempt in ours], code=code, using=using)
        }
        self._released_count += len(released)
        gone = []
        for attempt in ours:
            if attempt.lease.job_id in released:
                gone.append(attempt)
                telemetry.emit("attempt.released", **self.keys(attempt.lease), error_code=code)
            else:
                from pgbroker.errors import AttemptCancelled

                self.settler.put(
                    attempt, attempt.failed(AttemptCancelled("cancelled before it ran"), self.settings)
                )
        self.board.settled(gone)

    # -------------------------------------------------------------- what others ask

    def state(self) -> WorkerState:
        """Return what the worker's row tells."""
        return WorkerState(
            worker_id=self.id,
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            queues=sorted(self.claimer.by_name),
            slots=self.board.slots,
            running=self.board.running,
            held=self.board.held,
            draining=self.draining,
        )

    def lease_time_of(self, queue: QueueRow) -> timedelta:
        """Return how long a claim of this queue holds a job."""
        if queue.lease_seconds is None or self.options.lease_seconds is not None:
            return self.lease_time
        return timedelta(seconds=max(queue.lease_seconds, 3 * self.settings.HEARTBEAT_SECONDS))

    def type_name(self, job_type_id: int) -> str | None:
        """Return the key of a type this worker knows."""
        job_type = self._types.get(job_type_id)
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


def _effective(options: WorkerOptions) -> Settings:
    """Return the project's settings as this process's flags change them. Raises `InvalidSetting`."""
    from dataclasses import asdict

    from pgbroker.conf import problems

    chosen = settings()
    changes: dict[str, Any] = {}
    if options.lease_seconds is not None:
        changes["LEASE_SECONDS"] = options.lease_seconds
        # A shorter lease brings shorter heartbeats along: three must fit.
        changes["HEARTBEAT_SECONDS"] = min(chosen.HEARTBEAT_SECONDS, options.lease_seconds / 3)
        changes["REAP_SECONDS"] = min(chosen.REAP_SECONDS, max(options.lease_seconds / 3, 0.1))
    if options.poll_interval is not None:
        changes["POLL_SECONDS"] = options.poll_interval
    if options.shutdown_timeout is not None:
        changes["SHUTDOWN_TIMEOUT_SECONDS"] = options.shutdown_timeout
    if not changes:
        return chosen
    values, found = problems({**asdict(chosen), "BACKOFF": chosen.BACKOFF, **changes})
    if found:
        raise found[0]
    return Settings(**values)

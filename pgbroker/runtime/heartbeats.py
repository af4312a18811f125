"""Heartbeats: renew the worker's row and its leases, and hear which attempts must stop."""

import os
import random
import socket
import time
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from pgbroker import __version__
from pgbroker.db import Session
from pgbroker.lifecycle.beat import WorkerState, beat
from pgbroker.lifecycle.heartbeat import Held, heartbeat

if TYPE_CHECKING:
    from pgbroker.runtime.attempt import Attempt
    from pgbroker.runtime.supervisor import Worker

# Leases that one statement renews.
PAGE = 1000


class Heartbeats:
    """Own thread, own connection: a busy worker must not lose its leases."""

    def __init__(self, worker: "Worker", session: Session) -> None:
        self.worker, self.session = worker, session
        self.period = worker.settings.HEARTBEAT_SECONDS
        self.renewed_at = time.monotonic()
        self._beaten = False

    @property
    def keep_up(self) -> bool:
        """True while leases are renewed in time: work that cannot be kept is not to be claimed."""
        return (
            self._beaten
            and time.monotonic() - self.renewed_at < self.worker.lease_time.total_seconds() * 2 / 3
        )

    def step(self) -> float:
        """Beat once; returns the jittered period. Never longer than the setting: a lease counts on three."""
        worker = self.worker
        self.lose_what_expired()
        kept_up = self.keep_up
        started = time.monotonic()
        attempts = sorted(
            (attempt for attempt in worker.board.attempts() if "lease_lost" not in attempt.told),
            key=self._lease_of,
        )
        for lease, group in groupby(attempts, key=self._lease_of):
            leases = [attempt.lease for attempt in group]
            for start in range(0, len(leases), PAGE):
                for answer in heartbeat(leases[start : start + PAGE], lease=lease, using=self.session):
                    self._hear(answer)
        self.renewed_at = started
        # The leases first: who locks the table of workers must not end healthy work. The row's lease is the
        # shortest: when a job of a dead worker is taken back, its row has been silent for long enough to tell.
        beat(state_of(worker), lease=worker.shortest_lease, using=self.session)
        if worker.exclusive is not None and not worker.exclusive.renew(self.session):
            worker.lose_name()
        self._beaten = True
        if not kept_up:
            worker.wake_claimer()
        return self.period * (0.85 + random.random() * 0.15)  # noqa: S311 - jitter

    def _lease_of(self, attempt: "Attempt") -> timedelta:
        return self.worker.lease_time_of(attempt.lease.queue_id)

    def _hear(self, answer: Held) -> None:
        if answer.kept and not answer.cancel:
            return
        attempt = self.worker.board.find(answer.job_id, answer.lease_token)
        # Settled while we asked: its lease is gone because it is done.
        if attempt is not None and attempt.is_open:
            self.worker.stop_attempt(attempt, "cancelled" if answer.kept else "lease_lost")

    def lose_what_expired(self) -> None:
        """Stop work whose lease must have run out while the database, or this process, stood still."""
        shortest = self.worker.shortest_lease.total_seconds()
        now = time.monotonic()
        if now - self.renewed_at < shortest:
            return
        for attempt in self.worker.board.attempts():
            renewed_at = max(attempt.leased_from, self.renewed_at)
            if attempt.is_open and now - renewed_at >= self._lease_of(attempt).total_seconds():
                self.worker.stop_attempt(attempt, "lease_lost")


def state_of(worker: "Worker") -> WorkerState:
    """Return what the worker's row tells."""
    return WorkerState(
        worker_id=worker.id,
        name=worker.name,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        queues=sorted(worker.claimer.by_name),
        slots=worker.board.slots,
        running=worker.board.running,
        held=worker.board.held,
        draining=worker.draining,
    )


def goodbye(worker: "Worker", session: Session) -> None:
    """Tell with a last beat that the worker has stopped."""
    beat(state_of(worker)._replace(stopped=True, draining=True), lease=timedelta(0), using=session)

"""Heartbeats: renew the worker's row and its leases, and hear which attempts must stop."""

import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from pgbroker import telemetry
from pgbroker.db import Session
from pgbroker.lifecycle.beat import beat
from pgbroker.lifecycle.heartbeat import heartbeat

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker

# Leases that one statement renews.
PAGE = 1000


class Heartbeats:
    """Own thread, own connection: a busy worker must not lose its leases."""

    def __init__(self, worker: "Worker", session: Session) -> None:
        self.worker, self.session = worker, session
        self.period = worker.settings.HEARTBEAT_SECONDS
        self.renewed_at = time.monotonic()

    def step(self) -> float:
        """Beat once; returns the jittered period. Never longer than the setting: a lease counts on three."""
        worker = self.worker
        self._lose_what_expired()
        # The worker first: a lease must not outlive its worker's row, or a crash looks like a slow one.
        beat(worker.state(), lease=worker.lease_time, using=self.session)
        attempts = [attempt for attempt in worker.board.attempts() if attempt.stop.reason != "lease_lost"]
        started = time.monotonic()
        for start in range(0, len(attempts), PAGE):
            page = attempts[start : start + PAGE]
            answers = heartbeat(
                [attempt.lease for attempt in page], lease=worker.lease_time, using=self.session
            )
            for answer in answers:
                if answer.kept and not answer.cancel:
                    continue
                attempt = worker.board.find(answer.job_id, answer.lease_token)
                # Settled while we asked: its lease is gone because it is done.
                if attempt is None or not attempt.is_open:
                    continue
                worker.stop_attempt(attempt, "cancelled" if answer.kept else "lease_lost")
        self.renewed_at = started
        return self.period * (0.85 + random.random() * 0.15)  # noqa: S311 - jitter

    def _lose_what_expired(self) -> None:
        """Stop work whose lease must have run out while the database could not be reached."""
        limit = self.worker.lease_time.total_seconds()
        now = time.monotonic()
        if now - self.renewed_at < limit:
            return
        for attempt in self.worker.board.attempts():
            if now - max(attempt.claimed_at, self.renewed_at) >= limit and attempt.stop.reason is None:
                telemetry.emit("attempt.lease_lost", **self.worker.keys(attempt.lease), state="running")
                self.worker.stop_attempt(attempt, "lease_lost")


def goodbye(worker: "Worker", session: Session) -> None:
    """Tell with a last beat that the worker has stopped."""
    beat(worker.state()._replace(stopped=True, draining=True), lease=timedelta(0), using=session)

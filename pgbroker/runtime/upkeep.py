"""What some worker must do now and then for all: take back expired leases, end what is overdue, make partitions."""

import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg

from pgbroker import telemetry
from pgbroker.db import Session
from pgbroker.lifecycle.expire import expire
from pgbroker.lifecycle.partitions import ensure_partitions
from pgbroker.lifecycle.reap import EVERYTHING, reap
from pgbroker.runtime.service import CONNECTION_TROUBLE
from pgbroker.states import Status

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker

PAGE = 500
PAGES = 20
FULL_LOOK_SECONDS = 600.0
PARTITION_SECONDS = 3600.0
PARTITION_RETRY_SECONDS = 60.0


# From this period on a connection that is opened for each pass costs less than one that is kept.
LONG_PERIOD_SECONDS = 5.0


class Upkeep:
    """
    Bounded passes, skip-locked: any number of workers may do them at once.

    In a loop of its own: a pass may wait for a lock or fail, a heartbeat may not.
    """

    def __init__(self, worker: "Worker", session: Session) -> None:
        self.worker, self.session = worker, session
        self._looked_all_at: float | None = None
        self._partitions_at: float | None = None
        self._reaped_at = 0.0

    def step(self) -> float:
        """Do one pass of each; returns the jittered period."""
        settings = self.worker.settings
        now = time.monotonic()
        everything = self._looked_all_at is None or now - self._looked_all_at >= FULL_LOOK_SECONDS
        # What expired while nobody reaped, this process being stopped or the database away, is older than that.
        within = max(20 * settings.REAP_SECONDS, 2 * (now - self._reaped_at))
        self._reap(EVERYTHING if everything else timedelta(seconds=within))
        self._reaped_at = now
        if everything:
            self._looked_all_at = now
        self._expire()
        if self._partitions_at is None or now - self._partitions_at >= PARTITION_SECONDS:
            self._partitions_at = now
            self.ensure_partitions()
        if settings.REAP_SECONDS >= LONG_PERIOD_SECONDS:
            self.session.drop()
        return settings.REAP_SECONDS * (0.8 + random.random() * 0.2)  # noqa: S311 - jitter

    def _reap(self, within: timedelta) -> None:
        settings = self.worker.settings
        for _ in range(PAGES):
            reaped = reap(
                limit=PAGE,
                max_crashes=settings.MAX_CRASHES,
                backoff=settings.BACKOFF,
                within=within,
                using=self.session,
            )
            for each in reaped:
                telemetry.emit(
                    "attempt.reaped",
                    job_id=each.job_id,
                    job_type=self.worker.type_name(each.job_type_id),
                    queue=self.worker.queue_name(each.queue_id),
                    tenant_id=each.tenant_id,
                    attempt_no=each.attempt_no,
                    lease_token=each.lease_token,
                    worker_id=each.worker_id,
                    error_code="worker_lost",
                    status=Status(each.status).label,
                )
            if any(each.status == Status.SCHEDULED for each in reaped):
                self.worker.claimer.due_in(0.0)
            if len(reaped) < PAGE:
                return

    def _expire(self) -> None:
        for _ in range(PAGES):
            expired = expire(limit=PAGE, using=self.session)
            for each in expired:
                telemetry.emit(
                    "job.expired",
                    job_id=each.job_id,
                    job_type=self.worker.type_name(each.job_type_id),
                    queue=self.worker.queue_name(each.queue_id),
                    tenant_id=each.tenant_id,
                    error_code="deadline_exceeded",
                )
            if len(expired) < PAGE:
                return

    def ensure_partitions(self) -> None:
        """Make history partitions ahead; a failure is told and harmless, the default partition takes the rows."""
        try:
            ensure_partitions(self.worker.settings.PARTITION, using=self.session)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as error:
            self._partitions_failed(error)
        except CONNECTION_TROUBLE:
            self._partitions_at = None
            raise
        except psycopg.Error as error:
            self._partitions_failed(error)

    def _partitions_failed(self, error: psycopg.Error) -> None:
        telemetry.emit("partitions.failed", error_code=type(error).__name__, error=str(error).strip())
        self._partitions_at = time.monotonic() - PARTITION_SECONDS + PARTITION_RETRY_SECONDS

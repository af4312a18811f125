"""What a worker knows of the database's names: which handler a type id stands for, and which queues to serve."""

import time
from typing import TYPE_CHECKING

from pgbroker.db import Session
from pgbroker.lease import Lease
from pgbroker.lifecycle.declare import QueueRow, list_queues, type_ids
from pgbroker.registry import JobType, names, types

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker

# How often a worker looks for queues that are new, at most; a notification from one makes it look at once.
QUEUES_SECONDS = 5.0
# How often a job of an unknown type makes it look whether the type got a row meanwhile, at most.
TYPES_SECONDS = 5.0


class Catalogue:
    """Learned at the start, and again while it runs: others declare types and queues too."""

    def __init__(self, worker: "Worker", session: Session) -> None:
        self.worker, self.session = worker, session
        self.types: dict[int, JobType] = {}
        self._types_at = 0.0
        self._queues_at = 0.0

    def learn_all(self, *, using: str) -> None:
        """
        Make rows of what the code declares and learn the ids; raises what the database says.

        What others hold is learned later: a type when there is a job of it, a queue when they are read again.
        """
        self._learn_types(self.worker.names.begin(), using=using)
        self._serve(list_queues(using=using))

    def _learn_types(self, ids: dict[str, int], *, using: str | Session) -> None:
        known = names()
        former = list(known.keys() - types().keys())
        if former:
            ids.update(type_ids(former, using=using))
        self.types.update({number: known[name] for name, number in ids.items()})
        self._types_at = time.monotonic()

    def handler_of(self, lease: Lease) -> JobType | None:
        """Find the handler of a job; None when this worker has none, or one of an older version only."""
        job_type = self.types.get(lease.job_type_id)
        if job_type is None and time.monotonic() - self._types_at >= TYPES_SECONDS:
            # A producer of another release may have declared a former name since this process started.
            self._learn_types(type_ids(list(types()), using=self.session), using=self.session)
            job_type = self.types.get(lease.job_type_id)
        return None if job_type is None or lease.type_version > job_type.task.version else job_type

    def look_for_queues(self) -> None:
        """Look at the next turn whether there are new queues: a notification named one."""
        if not self.worker.options.queues:
            self._queues_at = 0.0
            self.worker.wake_claimer()

    def refresh_queues_if_due(self, now: float) -> None:
        """Read the queues again when it is time to: new ones, and changed settings of the known."""
        if self._queues_at == 0.0 or now - self._queues_at >= max(
            QUEUES_SECONDS, self.worker.settings.POLL_SECONDS
        ):
            self._serve(list_queues(using=self.session))

    def _serve(self, rows: list[QueueRow]) -> None:
        named, excluded = self.worker.options.queues, self.worker.options.exclude_queues
        self._queues_at = time.monotonic()
        self.worker.claimer.serve(
            [row for row in rows if row.name not in excluded and (not named or row.name in named)]
        )

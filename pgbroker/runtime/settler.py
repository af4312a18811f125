"""The settler: writes whatever has ended since its last write, in one statement."""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

import psycopg

from pgbroker import telemetry
from pgbroker.db import Session
from pgbroker.lifecycle.settle import settle
from pgbroker.outcomes import Ended
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.service import CONNECTION_TROUBLE
from pgbroker.states import AttemptState, Status

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker

Pair = tuple[Attempt, Ended]

# What the outcomes of one statement may weigh together: results, errors and logs of a thousand jobs can be
# more than the server takes in one message. A single one may be larger.
BATCH_BYTES = 4 * 1024 * 1024
# Limits of the server that an outcome hit (54xxx: too deep, too large): no fault of the connection.
_PROGRAM_LIMIT = "54"


class Settler:
    """
    Outcomes come in from every executor and go out in batches, as they gather: no timer.

    When the database is away they wait here; each settles later if its fence still holds. One outcome
    that cannot be stored fails alone.
    """

    def __init__(self, worker: "Worker", session: Session) -> None:
        self.worker, self.session = worker, session
        self.wake: Callable[[], None] = lambda: None
        self.settled_count = 0
        self._ended: deque[Pair] = deque()
        # Taken and not known to be written: kept through a lost connection.
        self._batch: list[Pair] = []
        self._sleeping = False

    @property
    def backlog(self) -> int:
        """How many outcomes are not written yet."""
        return len(self._ended) + len(self._batch)

    def put(self, attempt: Attempt, ended: Ended) -> None:
        """Take an outcome in, from any thread."""
        self._ended.append((attempt, ended))
        if self._sleeping:
            self.wake()

    def step(self) -> float:
        """Write one batch; waits for the next outcome when there is none."""
        if not self.session.is_open:
            # Before there is anything to write: what could not be settled is not claimed.
            _ = self.session.connection
            self.worker.wake_claimer()
        if not self._batch:
            self._sleeping = False
            self._gather()
        if self._batch:
            self._write(self._batch)
            self._batch = []
        if self._ended:
            return 0.0
        self._sleeping = True
        # Checked again: an outcome may have come between the look and the flag.
        return 0.0 if self._ended else 5.0

    def _gather(self) -> None:
        most, size = self.worker.settings.SETTLE_MAX, 0
        while self._ended and len(self._batch) < most and size < BATCH_BYTES:
            # First in, then out: at no moment is an outcome in neither, where `backlog` would miss it.
            self._batch.append(self._ended[0])
            self._ended.popleft()
            size += _weight(self._batch[-1][1])

    def _write(self, batch: list[Pair]) -> None:
        try:
            decisions = settle([ended for _, ended in batch], using=self.session)
        except CONNECTION_TROUBLE as error:
            if not (getattr(error, "sqlstate", None) or "").startswith(_PROGRAM_LIMIT):
                raise
            self._write_apart(batch, error)
            return
        except (psycopg.DataError, psycopg.IntegrityError, UnicodeError, ValueError, TypeError) as error:
            self._write_apart(batch, error)
            return
        statuses = {decision.job_id: decision.status for decision in decisions}
        self._tell(batch, statuses)
        self.worker.board.settled(attempt for attempt, _ in batch)
        self.settled_count += len(decisions)
        self.worker.after_settle(batch, statuses)

    def _write_apart(self, batch: list[Pair], error: Exception) -> None:
        """Find the outcome that the database refuses by halves, and record that it could not be stored."""
        if len(batch) > 1:
            middle = len(batch) // 2
            self._write(list(islice(batch, middle)))
            self._write(list(islice(batch, middle, None)))
            return
        attempt, ended = batch[0]
        if ended.error_code == "outcome_not_stored":
            # Not even that: let go of it. Its lease runs out, and it is taken back as lost.
            telemetry.emit(
                "worker.loop_failed", loop="settle", error_code=type(error).__name__, exception=error
            )
            self.worker.board.settled([attempt])
            return
        bare = Ended(
            ended.lease,
            AttemptState.FAILED,
            ended.started_at,
            ended.seconds,
            # The delay may be what did not fit.
            delay=self.worker.settings.BACKOFF.delay(ended.lease.failures_before + 1, 1.0),
            permanent=ended.permanent,
            error_code="outcome_not_stored",
            error=f"the outcome could not be stored: {type(error).__name__}",
        )
        self._write([(attempt, bare)])

    def _tell(self, batch: list[Pair], statuses: dict[object, int]) -> None:
        wanted = telemetry.wanted("attempt.settled")
        if not wanted and len(statuses) == len(batch) and not any(ended.error_code for _, ended in batch):
            return
        for attempt, ended in batch:
            status = statuses.get(ended.lease.job_id)
            if status is None:
                telemetry.emit(
                    "attempt.lease_lost", **self.worker.keys(attempt.lease), state=ended.state.label
                )
            elif wanted or ended.error_code:
                event = _event_of(ended, status)
                telemetry.emit(
                    event,
                    **self.worker.keys(attempt.lease),
                    duration_seconds=ended.seconds,
                    error_code=ended.error_code,
                    state=ended.state.label,
                    status=Status(status).label,
                    error=None if event == "attempt.settled" else ended.error,
                    exception=attempt.error if event == "job.gave_up" else None,
                    attempt=attempt,
                    ended=ended,
                )


def _event_of(ended: Ended, status: int) -> str:
    """Name what the row decided: a success, a failure that is tried again, or one that a person may want to see."""
    match status:
        case Status.SCHEDULED if ended.error_code:
            return "attempt.failed"
        case Status.FAILED if ended.error_code == "discarded":
            return "job.discarded"
        case Status.FAILED | Status.DEAD_LETTER:
            return "job.gave_up"
    return "attempt.settled"


def _weight(ended: Ended) -> int:
    return sum(len(text) for text in (ended.error, ended.traceback, ended.result, ended.log_tail) if text)


def shortest_wait(batch: list[Pair], statuses: dict[object, int]) -> float | None:
    """Return the seconds until the first of these jobs is due again; None when none of them is."""
    waits = [
        ended.delay.total_seconds() if ended.delay else 0.0
        for _, ended in batch
        if statuses.get(ended.lease.job_id) == Status.SCHEDULED
    ]
    return min(waits) if waits else None


def seconds_by_type(batch: list[Pair]) -> dict[int, tuple[int, float]]:
    """Add up how many attempts of each type ended, and their seconds."""
    totals: dict[int, tuple[int, float]] = {}
    for _, ended in batch:
        count, seconds = totals.get(ended.lease.job_type_id, (0, 0.0))
        totals[ended.lease.job_type_id] = (count + 1, seconds + ended.seconds)
    return totals

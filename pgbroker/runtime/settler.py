"""The settler: writes whatever has ended since its last write, in one statement."""

import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from psycopg.errors import LockNotAvailable

from pgbroker import telemetry
from pgbroker.db import Session
from pgbroker.lifecycle.settle import settle
from pgbroker.outcomes import Ended, Settled
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.blocked import ASK_SECONDS, Blocked
from pgbroker.runtime.isolation import clean_connections, freshen_connections
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
_DATA_EXCEPTION, _CONSTRAINT = "22", "23"
_OF_THE_DATA = (_DATA_EXCEPTION, _CONSTRAINT, _PROGRAM_LIMIT)
# A batch of few costs the database little less than one of a hundred: while more is in hand such a write is followed
# by a rest of three times as long as it took, in which others gather.
SMALL_BATCH = 100
REST_FACTOR, LONGEST_REST_SECONDS = 3.0, 0.05
# How often an outcome that was refused for no fault of its own is written again, and the wait between.
REPEATS = 3
REPEAT_SECONDS = 0.05


class Settler:
    """
    Outcomes come in from every executor and go out in batches, as they gather. The first one goes at once.

    When the database is away they wait here; each settles later if its fence still holds. One outcome
    that cannot be stored fails alone, and one whose row is locked waits alone.
    """

    def __init__(self, worker: "Worker", session: Session) -> None:
        self.worker, self.session = worker, session
        self.wake: Callable[[], None] = lambda: None
        self.settled_count = 0
        self._ended: deque[Pair] = deque()
        # Taken and not known to be written: kept through a lost connection.
        self._batch: list[Pair] = []
        # There was no room in it for more: a rest would gather nothing.
        self._is_full = False
        self._blocked = Blocked(session)
        self._sleeping = False

    @property
    def backlog(self) -> int:
        """How many outcomes are not written yet."""
        return len(self._ended) + len(self._batch) + len(self._blocked)

    def put(self, attempt: Attempt, ended: Ended) -> None:
        """Take an outcome in, from any thread."""
        self._ended.append((attempt, ended))
        if self._sleeping:
            self.wake()

    def step(self) -> float:
        """Write one batch; waits for the next outcome when there is none, and after a small batch for others."""
        if not self.session.is_open:
            # Before there is anything to write: what could not be settled is not claimed.
            _ = self.session.connection
            self.worker.wake_claimer()
        try:
            if not self._batch:
                self._sleeping = False
                self._batch = self._blocked.free()
                self._blocked.let_go(self._batch)
                self._is_full = self._gather()
            written, began = len(self._batch), time.monotonic()
            if written:
                self._write(self._batch)
                self._batch = []
        except LockNotAvailable:
            # Not of single rows: somebody has locked a table.
            return ASK_SECONDS
        if (
            0 < written < SMALL_BATCH
            and not self._is_full
            and self.worker.board.size
            and not self.worker.draining
        ):
            return min(REST_FACTOR * (time.monotonic() - began), LONGEST_REST_SECONDS)
        if self._ended:
            return 0.0
        self._sleeping = True
        # Checked again: an outcome may have come between the look and the flag.
        return 0.0 if self._ended else min(5.0, self._blocked.wait)

    def _gather(self) -> bool:
        """Add what has ended to the batch; tells whether it has as many, or as much, as it may."""
        most, size = self.worker.settings.SETTLE_MAX, 0
        jobs = {ended.lease.job_id.int for _, ended in self._batch}
        while self._ended and len(self._batch) < most and size < BATCH_BYTES:
            ended = self._ended[0][1]
            if (job := ended.lease.job_id.int) in jobs:
                # Of two attempts of a job at most one holds: what becomes of them is told by the job.
                break
            jobs.add(job)
            # First in, then out: at no moment is an outcome in neither, where `backlog` would miss it.
            self._batch.append(self._ended[0])
            self._ended.popleft()
            size += _weight(ended)
        return len(self._batch) >= most or size >= BATCH_BYTES

    def _write(self, batch: list[Pair]) -> None:
        try:
            decisions = self._settle(batch)
        except LockNotAvailable:
            passing, locked = self._blocked.part(batch)
            if not locked:
                raise
            self._forget(locked)
            if passing:
                self._write(passing)
        except Exception as error:
            if _is_connection_trouble(error):
                raise
            self._write_apart(batch, error)
        else:
            self._written(batch, decisions)

    def _settle(self, batch: list[Pair]) -> list[Settled]:
        return settle([ended for _, ended in batch], using=self.session)

    def _written(self, batch: list[Pair], decisions: list[Settled]) -> None:
        self._forget(batch)
        statuses = {decision.job_id.int: decision.status for decision in decisions}
        if telemetry.wanted("batch.settled"):
            telemetry.emit(
                "batch.settled",
                worker_id=self.worker.id,
                count=len(decisions),
                batch=batch,
                statuses=statuses,
                worker=self.worker,
            )
        self._tell(batch, statuses)
        self.worker.board.settled(attempt for attempt, _ in batch)
        self.settled_count += len(decisions)
        self.worker.after_settle(batch, statuses)

    def _forget(self, batch: list[Pair]) -> None:
        # What is written is not written again when one of the others ends this step with an error.
        if batch is not self._batch:
            done = {id(attempt) for attempt, _ in batch}
            self._batch = [pair for pair in self._batch if id(pair[0]) not in done]

    def _write_apart(self, batch: list[Pair], error: Exception) -> None:
        """
        Find the outcome that the database refuses by halves, and record that it could not be stored.

        Raises what the database says when it refuses that too, and not for what is in it: then the schema is
        at fault, and no outcome is given up for it.
        """
        if len(batch) > 1:
            middle = len(batch) // 2
            self._write(list(islice(batch, middle)))
            self._write(list(islice(batch, middle, None)))
            return
        still = self._repeat(batch, error)
        if still is None:
            return
        attempt, ended = batch[0]
        bare = Ended(
            ended.lease,
            AttemptState.FAILED,
            ended.started_at,
            ended.seconds,
            # The delay may be what did not fit.
            delay=self.worker.settings.BACKOFF.delay(ended.lease.failures_before + 1, 1.0),
            permanent=ended.permanent,
            error_code="outcome_not_stored",
            error=f"the outcome could not be stored: {type(still).__name__}",
        )
        try:
            decisions = self._settle([(attempt, bare)])
        except Exception as trouble:
            if _is_connection_trouble(trouble) or not _is_of_the_data(trouble):
                raise
            # Not even that: let go of it. Its lease runs out, and it is taken back as lost.
            telemetry.emit(
                "worker.loop_failed", loop="settle", error_code=type(trouble).__name__, exception=trouble
            )
            self._forget(batch)
            self.worker.board.settled([attempt])
        else:
            self._written([(attempt, bare)], decisions)
        self.worker.leftovers.put(ended)

    def _repeat(self, batch: list[Pair], error: Exception) -> Exception | None:
        """
        Write the same outcome again if what refused it may pass; returns what still refuses it, or None.

        Whoever waited for a lock may find that the row's place has moved, such as to a partition attached
        meanwhile: work that is done must not fail for that.
        """
        for number in range(REPEATS):
            if not _may_pass(error):
                break
            time.sleep(number * REPEAT_SECONDS)
            try:
                decisions = self._settle(batch)
            except Exception as again:
                if _is_connection_trouble(again):
                    raise
                error = again
            else:
                self._written(batch, decisions)
                return None
        return error

    def _tell(self, batch: list[Pair], statuses: dict[int, int]) -> None:
        wanted = telemetry.wanted("attempt.settled")
        if not wanted and len(statuses) == len(batch) and not any(ended.error_code for _, ended in batch):
            return
        # Listeners are the project's code too, and may ask the database with Django's connection.
        freshen_connections()
        self._tell_each(batch, statuses, wanted=wanted)
        clean_connections()

    def _tell_each(self, batch: list[Pair], statuses: dict[int, int], *, wanted: bool) -> None:
        for attempt, ended in batch:
            status = statuses.get(ended.lease.job_id.int)
            if status is None:
                self.worker.leftovers.put(ended)
                telemetry.emit(
                    "attempt.lease_lost", **self.worker.keys(attempt.lease), state=ended.state.label
                )
            elif wanted or ended.error_code:
                tell_ended(self.worker.keys(attempt.lease), attempt, ended, status)


def tell_ended(keys: dict[str, Any], attempt: Attempt, ended: Ended, status: int) -> None:
    """Tell how an attempt ended and what the row decided; *keys* are those of the attempt."""
    event = _event_of(ended, status)
    telemetry.emit(
        event,
        **keys,
        duration_seconds=ended.seconds,
        error_code=ended.error_code,
        state=ended.state.label,
        status=Status(status).label,
        error=None if event == "attempt.settled" else ended.error,
        exception=attempt.error if event == "job.gave_up" else None,
        attempt=attempt,
        ended=ended,
    )


def _is_connection_trouble(error: Exception) -> bool:
    return isinstance(error, CONNECTION_TROUBLE) and not _sqlstate(error).startswith(_PROGRAM_LIMIT)


def _is_of_the_data(error: Exception) -> bool:
    """Tell whether an outcome was refused for what is in it: by the driver, which has no code, or by the server."""
    return not _sqlstate(error) or _sqlstate(error).startswith(_OF_THE_DATA)


def _may_pass(error: Exception) -> bool:
    """Tell whether the same outcome may be taken the next time."""
    return bool(_sqlstate(error)) and not _sqlstate(error).startswith((_DATA_EXCEPTION, _PROGRAM_LIMIT))


def _sqlstate(error: Exception) -> str:
    return getattr(error, "sqlstate", None) or ""


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


def shortest_wait(batch: list[Pair], statuses: dict[int, int]) -> float | None:
    """Return the seconds until the first of these jobs is due again; None when none of them is."""
    waits = [
        ended.delay.total_seconds() if ended.delay else 0.0
        for _, ended in batch
        if statuses.get(ended.lease.job_id.int) == Status.SCHEDULED
    ]
    return min(waits) if waits else None


def seconds_by_type(batch: list[Pair]) -> dict[int, tuple[int, float]]:
    """Add up how many attempts of each type ended, and their seconds."""
    totals: dict[int, tuple[int, float]] = {}
    for _, ended in batch:
        count, seconds = totals.get(ended.lease.job_type_id, (0, 0.0))
        totals[ended.lease.job_type_id] = (count + 1, seconds + ended.seconds)
    return totals

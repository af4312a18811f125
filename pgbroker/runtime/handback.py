"""Handing claimed jobs back unharmed, and not forgetting them when the database is away at that moment."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgbroker import telemetry
from pgbroker.db import Session
from pgbroker.lifecycle.release import release
from pgbroker.runtime.attempt import Attempt

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker


class HandBack:
    """
    Attempts that are to be released, until the database has said so.

    They stay on the board, and under heartbeat, till then: one that was forgotten here would be kept
    running by a worker that does not run it.
    """

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        self.released_count = 0
        self._waiting: list[tuple[Attempt, str]] = []

    @property
    def pending(self) -> bool:
        """True while some are not handed back yet."""
        return bool(self._waiting)

    def release(self, attempts: Sequence[Attempt], *, code: str, using: Session) -> None:
        """Hand attempts back, unless their outcome is decided already; a failure leaves them for `finish`."""
        self._waiting += [(attempt, code) for attempt in attempts if attempt.end_once()]
        self.finish(using=using)

    def finish(self, *, using: Session) -> None:
        """Hand back whatever waits; what was asked to cancel meanwhile is settled instead."""
        while self._waiting:
            code = self._waiting[0][1]
            ours = [attempt for attempt, why in self._waiting if why == code]
            answers = release([(attempt.lease, None) for attempt in ours], code=code, using=using)
            self._waiting = [(attempt, why) for attempt, why in self._waiting if why != code]
            released = {each.job_id for each in answers}
            self.released_count += len(released)
            gone = [attempt for attempt in ours if attempt.lease.job_id in released]
            for attempt in gone:
                telemetry.emit("attempt.released", **self.worker.keys(attempt.lease), error_code=code)
            self.worker.board.settled(gone)
            for attempt in ours:
                if attempt.lease.job_id not in released:
                    self.worker.settler.put(attempt, attempt.cancelled_unstarted(self.worker.settings))

"""A worker's name that no other worker has: a lease on it, by the database's clock."""

import threading
import time
from datetime import timedelta
from uuid import UUID

from pgbroker import telemetry
from pgbroker.db import Session
from pgbroker.errors import WorkerNameTaken
from pgbroker.lifecycle.lead import Answer, lead
from pgbroker.lifecycle.resign import resign

# The name is a duty like others: what only one process has.
PREFIX = "worker:"
# How often whoever waits for a name looks at its lease, as a share of it.
LOOK_SHARE = 0.1


class ExclusiveName:
    """
    The lease on a name. It is renewed with the heartbeat, given back at a clean end, and left to run out by a
    process that dies.

    It is for people, who start a thing once: the safety of jobs hangs on their own leases alone.
    """

    def __init__(self, name: str, *, holder: UUID, lease: timedelta) -> None:
        self.name, self.holder, self.lease = name, holder, lease
        self._epoch: int | None = None

    def take(self, session: Session, *, stopping: threading.Event) -> bool:
        """
        Take the name, or wait until its holder's lease has run out and take it then.

        Raises `WorkerNameTaken` as soon as the holder is seen to renew it. False when told to stop meanwhile.
        """
        first: tuple[Answer, float] | None = None
        while True:
            sent_at = time.monotonic()
            answer = self._ask(session)
            if answer is not None and answer.leads:
                self._epoch = answer.epoch
                return True
            if answer is not None:
                if first is None:
                    # Asked then, answered by now: its lease ends before this.
                    first = (answer, time.monotonic() + answer.seconds)
                    telemetry.emit(
                        "worker.name_awaited", worker_id=self.holder, name=self.name, seconds=answer.seconds
                    )
                elif answer.epoch != first[0].epoch or sent_at + answer.seconds > first[1]:
                    raise WorkerNameTaken(self.name, self.lease)
            left = answer.seconds if answer is not None else 0.0
            # It may be renewed at any time until it has run out.
            wait = min(max(left, 0.0) + 0.01, LOOK_SHARE * self.lease.total_seconds(), 1.0)
            if stopping.wait(wait):
                return False

    def renew(self, session: Session) -> bool:
        """Keep the name; False when another process has it, which may be only after this one stood still for long."""
        answer = self._ask(session)
        if answer is not None and answer.leads:
            self._epoch = answer.epoch
            return True
        self._epoch = None
        return False

    def give_back(self, session: Session) -> None:
        """Let whoever asks next have the name at once."""
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            resign(PREFIX + self.name, holder=self.holder, epoch=epoch, using=session)

    def _ask(self, session: Session) -> Answer | None:
        return lead(PREFIX + self.name, holder=self.holder, name=self.name, lease=self.lease, using=session)

"""The leader: an expiring lease on what only one process has to do."""

import random
import time
from datetime import timedelta
from uuid import UUID

from pgbroker import telemetry
from pgbroker.db import Session
from pgbroker.lifecycle.lead import Answer, Reign, lead
from pgbroker.lifecycle.resign import resign

# Of the lease, from when a renewal was sent: when to renew, and how long a page may begin. What then begins may
# take PAGE_SHARE, and is over when the lease ends.
RENEW_SHARE, WORK_SHARE, PAGE_SHARE = 0.25, 0.7, 0.25
# How long after the end of somebody else's lease this candidate asks for it: not all at once.
SPREAD_SECONDS = 1.0


class Leader:
    """
    One candidate for a duty. It asks for the lease, renews it, and knows how long it may go on.

    It counts by its own monotonic clock from the moment a renewal was sent, which is before the database
    counted from, and stops before the lease ends there. No two candidates lead at one instant of the
    database's clock, as long as that clock is not set forward; against that, and against a process that is
    stopped in the middle of a page, stands the epoch.
    """

    def __init__(self, duty: str, *, holder: UUID, name: str, lease_seconds: float, session: Session) -> None:
        self.duty, self.holder, self.name = duty, holder, name
        self.lease_seconds = lease_seconds
        self.session = session
        self.ask_at = 0.0
        self._reign: Reign | None = None
        self._asked_at = 0.0

    @property
    def reign(self) -> Reign | None:
        """What it leads under, or None; it may be the leader and have too little time left to begin anything."""
        return self._reign

    @property
    def leads(self) -> bool:
        """True while a page of work that begins now is over before the lease ends."""
        return self._reign is not None and self._age < WORK_SHARE * self.lease_seconds

    @property
    def _age(self) -> float:
        return time.monotonic() - self._asked_at

    def keep(self) -> bool:
        """Ask for the lease or renew it, if it is time to; tells whether a new reign began."""
        if self._reign is not None and self._age >= self.lease_seconds:
            self._lose("not renewed in time")
        asked_at = time.monotonic()
        if asked_at < self.ask_at:
            return False
        # Until there is an answer: whatever goes wrong, the next try is not far.
        self.ask_at = asked_at + min(1.0, self.lease_seconds / 10)
        answer = lead(
            self.duty,
            holder=self.holder,
            name=self.name,
            lease=timedelta(seconds=self.lease_seconds),
            using=self.session,
        )
        return self._take_in(answer, asked_at)

    def _take_in(self, answer: Answer | None, asked_at: float) -> bool:
        if answer is None or not answer.leads:
            if self._reign is not None:
                self._lose("taken by another")
            left = 0.0 if answer is None else max(0.0, min(answer.seconds, self.lease_seconds))
            spread = min(SPREAD_SECONDS, self.lease_seconds / 10)
            self.ask_at = time.monotonic() + left + spread * (0.05 + 0.95 * random.random())  # noqa: S311 - jitter
            return False
        self._asked_at = asked_at
        self.ask_at = asked_at + RENEW_SHARE * self.lease_seconds * (0.8 + 0.2 * random.random())  # noqa: S311 - jitter
        if self._reign is not None and self._reign.epoch == answer.epoch:
            return False
        if self._reign is not None:
            self._lose("not renewed in time")
        self._reign = Reign(self.duty, self.holder, answer.epoch)
        telemetry.emit("leader.elected", **self._keys(self._reign))
        return True

    def _lose(self, reason: str) -> None:
        assert self._reign is not None
        reign, self._reign = self._reign, None
        telemetry.emit("leader.lost", **self._keys(reign), reason=reason)

    def resign(self, *, using: Session) -> None:
        """Give the lease back; whoever asks next may have it. Nothing may be under way under it."""
        reign, self._reign = self._reign, None
        if reign is not None and resign(reign.duty, holder=reign.holder, epoch=reign.epoch, using=using):
            telemetry.emit("leader.resigned", **self._keys(reign))

    def _keys(self, reign: Reign) -> dict[str, object]:
        return {"duty": reign.duty, "epoch": reign.epoch, "worker_id": reign.holder, "name": self.name}

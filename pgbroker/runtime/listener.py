"""The listener: turns notifications into wake-ups. With all of them lost, polling still finds everything."""

import time
from typing import TYPE_CHECKING

from pgbroker import db

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker

# How long one wait for notifications lasts; between waits the loop looks whether it should stop, so a stop
# takes so long at most. A wait costs the database nothing.
WAIT_SECONDS = 0.2
# What is said where dependents were left to a pass; no queue is called so.
RESOLVE = "*resolve"


class Listener:
    """A direct connection of its own, since LISTEN through a transaction pooler never delivers."""

    def __init__(self, worker: "Worker", session: db.Session) -> None:
        self.worker, self.session = worker, session
        self._listening_on: object = None
        self._ask_at = 0.0

    def step(self) -> float:
        """Wait a moment for notifications and pass them on."""
        connection = self.session.connection
        now = time.monotonic()
        if self._listening_on is not connection:
            db.listen(self.session)
            self._listening_on, self._ask_at = connection, now + self.session.patience
            # What was told while nobody listened is found by a look.
            self.worker.claimer.look_now()
        elif now >= self._ask_at:
            # Who only listens never notices that nobody speaks any more.
            db.listen(self.session)
            self._ask_at = now + self.session.patience
        for notification in connection.notifies(timeout=WAIT_SECONDS):
            if notification.payload == RESOLVE:
                self.worker.resolve_now()
            else:
                self.worker.claimer.heard(notification.payload)
            if self.worker.draining:
                break
        return 0.0

"""Say now and then that this code runs, and write what it declares when it has become the newest of its project."""

import time

from django.db import connections, transaction

from pgbroker import telemetry
from pgbroker.db import Session
from pgbroker.lifecycle.limit import limit
from pgbroker.runtime.service import CONNECTION_TROUBLE
from pgbroker.runtime.upkeep import ONLY_SLOW
from pgbroker.schedules.sync import QUIET, speaks, sync_if_newest

# Often enough for others to know that it runs.
SPEAK_SECONDS = QUIET.total_seconds() / 5
# How long a write may wait for a row that somebody holds.
LOCK_TIMEOUT = "500ms"


class Declaring:
    """What keeps the rows of schedules with the newest code while processes of several releases run."""

    def __init__(self, session: Session) -> None:
        self.session = session
        # Whoever starts has written just now.
        self.speak_at = time.monotonic() + SPEAK_SECONDS
        # It has the word, and what it declares is not written yet.
        self._owes = False

    def speak_if_due(self) -> None:
        """Say it; after a release was gone back to, and the newer one is no longer seen, write."""
        if time.monotonic() < self.speak_at:
            return
        self.speak_at = time.monotonic() + SPEAK_SECONDS
        try:
            if speaks(using=self.session) or self._owes:
                self._owes = True
                self._write()
                self._owes = False
        except ONLY_SLOW:
            # Another process writes at this moment.
            return
        except CONNECTION_TROUBLE:
            raise
        except Exception as error:
            telemetry.emit("duty.failed", duty="declare", error_code=type(error).__name__, exception=error)

    def _write(self) -> None:
        connection = connections[self.session.alias]
        try:
            with transaction.atomic(using=self.session.alias):
                # The loop that keeps the lead waits for it: where somebody holds a row it is tried again later.
                limit("lock_timeout", LOCK_TIMEOUT, using=self.session.alias)
                sync_if_newest(using=self.session.alias)
        finally:
            # This thread does not need it again for long.
            if not connection.in_atomic_block:
                connection.close()

"""Write what the code declares when a process starts, and again while others hold some of it; tell that it runs."""

import time
from collections.abc import Callable, Iterable, Sequence

from django.db import OperationalError, connections

from pgbroker import telemetry
from pgbroker.conf import project
from pgbroker.db import Session
from pgbroker.declared_rows import HeldRow, tell_held, write_names
from pgbroker.lock_waits import is_held
from pgbroker.runtime.service import CONNECTION_TROUBLE
from pgbroker.runtime.upkeep import ONLY_SLOW
from pgbroker.schedules.sync import AT_START, MEANWHILE, QUIET, held_of, speaks, sync_if_newest

# Often enough for others to know that it runs.
SPEAK_SECONDS = QUIET.total_seconds() / 5
# How soon what somebody holds is tried again.
AGAIN_SECONDS = 5.0


class Owed:
    """What is left to be written since somebody holds it: each is told once."""

    def __init__(self) -> None:
        self.rows: set[HeldRow] = set()

    def now(self, rows: Iterable[HeldRow]) -> None:
        """Take note of what is left, and tell of what is new among it."""
        left = set(rows)
        tell_held(sorted(left - self.rows))
        self.rows = left


class DeclaringNames:
    """What makes rows of job types and queues. Costs nothing once all of them are written."""

    def __init__(self, alias: str, queues: Sequence[str] = ()) -> None:
        self.alias, self.queues = alias, queues
        self._owed = Owed()
        self._again_at = 0.0

    def begin(self) -> dict[str, int]:
        """Write them, but for what others hold; returns the ids of the types that have a row. Raises all else."""
        written = write_names(using=self.alias, queues=self.queues)
        self._owed.now(written.held)
        self._again_at = time.monotonic() + AGAIN_SECONDS
        return written.ids

    def again_if_due(self) -> None:
        """Try once more what others held."""
        if self._owed.rows and time.monotonic() >= self._again_at:
            _apart(self.alias, self.begin)
            self._again_at = time.monotonic() + AGAIN_SECONDS


class Declaring:
    """What keeps the rows of schedules with the newest code while processes of several releases run."""

    def __init__(self, session: Session) -> None:
        self.session = session
        # Whoever starts has written just now.
        self.speak_at = time.monotonic() + SPEAK_SECONDS
        # It has the word, and what it declares is not written yet.
        self._owes = False
        self._held = Owed()

    def begin(self) -> None:
        """Write what the code declares, as a process that starts; what others hold is left for later."""
        self._write(AT_START)

    def speak_if_due(self) -> None:
        """Say it, and write what is owed: also after a release was gone back to, once the newer one is not seen."""
        if time.monotonic() < self.speak_at:
            return
        self.speak_at = time.monotonic() + SPEAK_SECONDS
        try:
            if speaks(using=self.session) or self._owes:
                self._owes = True
                _apart(self.session.alias, lambda: self._write(MEANWHILE))
        except ONLY_SLOW:
            # Another process writes at this moment.
            return
        except CONNECTION_TROUBLE:
            raise
        except Exception as error:
            _tell(error)

    def _write(self, patience: float) -> None:
        try:
            left = held_of(sync_if_newest(patience=patience, using=self.session.alias))
        except OperationalError as error:
            if not is_held(error):
                raise
            left = [HeldRow("project", project())]
        self._held.now(left)
        self._owes = bool(left)
        if self._owes:
            self.speak_at = time.monotonic() + AGAIN_SECONDS


def declare_once(alias: str) -> None:
    """Write everything that the code declares, for a process that does its work and ends; tells what others hold."""
    DeclaringNames(alias).begin()
    Declaring(Session(alias, purpose="declare")).begin()


def _apart(alias: str, work: Callable[[], object]) -> None:
    """Do work beside a loop's own: what goes wrong is told, and the loop goes on."""
    connection = connections[alias]
    try:
        work()
    except Exception as error:
        _tell(error)
    finally:
        # This thread does not need it again for long.
        if not connection.in_atomic_block:
            connection.close()


def _tell(error: Exception) -> None:
    telemetry.emit("duty.failed", duty="declare", error_code=type(error).__name__, exception=error)

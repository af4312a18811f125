"""
Remove bodies that no row names, in a thread of its own: a storage may hang, and so may the database.

Whoever hands a body in goes on at once, be it a worker's loop or a finalizer that the garbage collector runs
in the middle of anything.
"""

import atexit
import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from uuid import UUID

from django.core.files.storage import Storage

from pgbroker import bodies
from pgbroker.db import Session
from pgbroker.errors import BodyLeft
from pgbroker.lifecycle.find_bodies import find_bodies

# Bodies that one look at the database takes.
BATCH = 100
# What waits for a storage that hangs; what comes beyond it stays.
MOST = 10_000
# How long the end of a process waits for what is not removed yet.
EXIT_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class Removal:
    """
    A body that may be nobody's.

    It is removed unless a row names it. Without *certain*, a row that is not committed yet may name it: then
    it stays, and that is told.
    """

    name: str
    job_id: UUID
    using: str
    # None: the one that `BODY_STORAGE` names.
    storage: Storage | None = None
    certain: bool = True
    told: bool = False


class Removals:
    """
    What is to be removed, and the thread that does it: one a process, from the first body on.

    `put` takes no lock of Python's: a finalizer that calls it may have interrupted any code, this one too.
    So it cannot start the thread, which `start` has done before there was anything to put.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: what waits in a process that forked is the parent's, and so is its thread."""
        self._starting = threading.RLock()
        self._waiting: deque[Removal | threading.Event] = deque()
        # What the thread is at.
        self._batch: list[Removal] = []
        # One token an entry; unlike a condition's, its `put` may interrupt itself.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Make sure that the thread runs; where no more threads can be made, whoever comes next tries again."""
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                return
            thread = threading.Thread(target=self._run, name="pgbroker-removals", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return
            self._thread = thread

    def put(self, removal: Removal) -> bool:
        """Take a body in, from anywhere; False when too many wait already."""
        if len(self._waiting) >= MOST:
            return False
        self._append(removal)
        return True

    def settle(self, seconds: float) -> bool:
        """Wait until all that was put before is done, for *seconds* at most; tells whether it is."""
        if not self._waiting and not self._batch:
            return True
        self.start()
        done = threading.Event()
        self._append(done)
        return done.wait(seconds)

    def tell_waiting(self) -> None:
        """Tell of each body that is not removed yet and perhaps never will, since the process ends."""
        for removal in self._untold():
            removal.told = True
            bodies.tell_left(removal.name, BodyLeft("it was not removed when the process was about to end"))

    def finish(self) -> None:
        """Give what waits a moment and tell of the rest: at the end of the process."""
        # What was told has had its time.
        if self._untold() and not self.settle(EXIT_SECONDS):
            self.tell_waiting()

    def _untold(self) -> list[Removal]:
        waiting: list[Removal | threading.Event] = []
        for _ in range(100):
            # One that comes or goes while we look spoils the look.
            with suppress(RuntimeError):
                waiting = [*self._waiting]
                break
        # The batch last: what has moved there meanwhile is seen twice, never missed.
        found = dict.fromkeys([*waiting, *self._batch.copy()])
        return [each for each in found if isinstance(each, Removal) and not each.told]

    def _append(self, entry: Removal | threading.Event) -> None:
        self._waiting.append(entry)
        self._wake.put(None)

    def _run(self) -> None:
        while True:
            while self._waiting:
                self._step()
            self._wake.get()

    def _step(self) -> None:
        first = self._waiting[0]
        if isinstance(first, threading.Event):
            self._waiting.popleft()
            first.set()
            return
        while self._waiting and len(self._batch) < BATCH:
            entry = self._waiting[0]
            if isinstance(entry, threading.Event) or entry.using != first.using:
                break
            # First in, then out: at no moment is it in neither.
            self._batch.append(entry)
            self._waiting.popleft()
        try:
            self._remove(self._batch.copy(), using=first.using)
        except BaseException as error:
            # Also of what ends a thread: this one has more to do, and nobody to tell but the log.
            for entry in self._batch:
                bodies.tell_left(entry.name, error)
        self._batch.clear()

    def _remove(self, batch: Sequence[Removal], *, using: str) -> None:
        named = _named(batch, using=using)
        for removal in batch:
            if removal.name not in named:
                _remove_one(removal)
            self._batch.remove(removal)


def _named(batch: Sequence[Removal], *, using: str) -> set[str]:
    session = Session(using, purpose="bodies", lock_timeout="2s")
    try:
        return find_bodies([(each.job_id, each.name) for each in batch], using=session)
    finally:
        session.drop()


def _remove_one(removal: Removal) -> None:
    if not removal.certain:
        bodies.tell_left(removal.name, BodyLeft("its transaction may not have ended, or nobody knows how"))
        return
    try:
        storage = removal.storage or bodies.chosen_storage()
    except Exception as error:
        bodies.tell_left(removal.name, error)
    else:
        bodies.remove(removal.name, storage)


removals = Removals()
atexit.register(removals.finish)
os.register_at_fork(after_in_child=removals.forget)

"""Bodies of results that no row took: removed in a thread of its own, since a storage may hang."""

import threading
from collections import deque
from typing import TYPE_CHECKING

from pgbroker import bodies
from pgbroker.custody import remove_unless_named
from pgbroker.errors import InvalidSetting
from pgbroker.outcomes import Ended

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker

# Bodies that one look at the database takes.
BATCH = 100
# What waits for a storage that hangs; what comes beyond it stays, and is swept as an orphan.
MOST = 10_000


class Leftovers:
    """
    Takes outcomes that were refused, given up or replaced, and removes their bodies.

    Each is looked for in the database first: a settle whose answer was lost looks like a lost lease.
    The thread, and its connection, live only while there is something to do.
    """

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
        self._lock = threading.Lock()
        self._waiting: deque[Ended] = deque(maxlen=MOST)
        self._working = False

    @property
    def is_idle(self) -> bool:
        """True when nothing is left to be removed."""
        return not self._working

    def put(self, ended: Ended) -> None:
        """Take an outcome that was not settled as it is; does nothing for one without a body. From any thread."""
        if ended.result_body is None:
            return
        with self._lock:
            self._waiting.append(ended)
            if self._working:
                return
            self._working = True
        try:
            threading.Thread(target=self._run, name="pgbroker-leftovers", daemon=True).start()
        except RuntimeError:
            # No more threads can be made. Whoever comes next tries again.
            self._working = False

    def _run(self) -> None:
        while True:
            with self._lock:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                if not batch:
                    self._working = False
                    return
            self._remove(batch)

    def _remove(self, batch: list[Ended]) -> None:
        try:
            storage = bodies.chosen_storage()
        except InvalidSetting as error:
            for ended in batch:
                bodies.tell_left(str(ended.result_body), error)
            return
        entries = [(ended.lease.job_id, str(ended.result_body), storage) for ended in batch]
        remove_unless_named(entries, using=self.worker.alias)

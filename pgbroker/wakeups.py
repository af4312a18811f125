"""
Wake idle workers after commit: one notification a queue, debounced on both edges.

The first enqueue is told at once, what follows within the window by one more at its end. It goes in a
transaction of its own, because a notification inside a business transaction serialises every commit
of the database. Losing one costs time only: workers poll.
"""

import os
import threading
import time
from collections.abc import Callable
from functools import partial

import psycopg
from django.db import DatabaseError, connections, transaction

from pgbroker import db, telemetry
from pgbroker.conf import settings
from pgbroker.lifecycle.notify import notify

WINDOW_SECONDS = 0.02
# How long the timer keeps its connection after the last wake-up. Well below the 5 s for which PostgreSQL waits for
# the sessions of a database that is to be dropped, as that of a test run is when the last test has enqueued.
LINGER_SECONDS = 1.0


# Who is told of a queue in place of other processes: `pgbroker.testing.inline_jobs`.
instead: Callable[[str, str], None] | None = None


class _Debounce:
    """Per process: what was told when, what waits for the trailing edge, and the thread that tells it."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.told_at: dict[tuple[str, str], float] = {}
        self.waiting: dict[str, set[str]] = {}
        self.thread: threading.Thread | None = None

    def expects(self, using: str, queue: str) -> bool:
        """Tell, without the lock, whether somebody is about to tell of this queue: only after this look."""
        thread = self.thread
        return queue in self.waiting.get(using, ()) and thread is not None and thread.is_alive()

    def leading(self, using: str, queue: str) -> bool:
        """Tell whether this one goes out now; if not, it is noted for the trailing edge."""
        with self.lock:
            now = time.monotonic()
            if now - self.told_at.get((using, queue), -WINDOW_SECONDS) >= WINDOW_SECONDS:
                self.told_at[using, queue] = now
                return True
            self.later(using, queue)
            return False

    def later(self, using: str, queue: str) -> None:
        """Note a wake-up for the trailing edge and make sure that somebody tells it."""
        with self.lock:
            self.waiting.setdefault(using, set()).add(queue)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._tell, name="pgbroker-wakeups", daemon=True)
                self.thread.start()
            self.lock.notify()

    def _tell(self) -> None:
        """Tell what waits, a window after it came, over short-lived connections; end when idle."""
        sessions: dict[str, db.Session] = {}
        try:
            while True:
                with self.lock:
                    if not self.waiting and not self.lock.wait(LINGER_SECONDS):
                        self.thread = None
                        return
                time.sleep(WINDOW_SECONDS)
                with self.lock:
                    waiting, self.waiting = self.waiting, {}
                    now = time.monotonic()
                    self.told_at.update(
                        {(using, queue): now for using, queues in waiting.items() for queue in queues}
                    )
                for using, queues in waiting.items():
                    session = sessions.setdefault(using, db.Session(using, purpose="notify"))
                    _send(sorted(queues), using, session)
        finally:
            for session in sessions.values():
                session.drop()


_debounce = _Debounce()


def _begin_anew() -> None:
    """Forget, in a process that was forked: nobody there lets go of the lock, and the thread stayed behind."""
    global _debounce
    _debounce = _Debounce()


os.register_at_fork(after_in_child=_begin_anew)


def _send(queues: list[str], using: str, through: str | db.Session) -> None:
    try:
        notify(queues, using=through)
    except (psycopg.Error, DatabaseError) as error:
        if isinstance(through, db.Session):
            through.drop()
        telemetry.emit("notify.failed", queue=",".join(queues), error_code=type(error).__name__, alias=using)


def _wake_now(queue: str, using: str) -> None:
    if not _debounce.expects(using, queue) and _debounce.leading(using, queue):
        _send([queue], using, using)


def tell_freed(*, using: str) -> None:
    """
    Tell whoever is told in place of workers that jobs may have become ready, of whatever queue.

    The workers themselves are woken by the statement that freed them.
    """
    if instead is not None:
        instead("", using)


def wake_after_commit(queue: str, *, using: str) -> None:
    """Wake the workers of a queue once the current transaction has committed; never if it rolls back."""
    if instead is not None:
        instead(queue, using)
        return
    if not settings().NOTIFY:
        return
    connection = connections[using]
    if connection.in_atomic_block:
        transaction.on_commit(partial(_wake_now, queue, using), using=using, robust=True)
    elif connection.get_autocommit():
        _wake_now(queue, using)
    else:
        # The caller runs its transactions by hand, where no hook can know of the commit. The trailing edge
        # may come too early; polling makes up for it.
        _debounce.later(using, queue)

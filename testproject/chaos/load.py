"""Who enqueues: so many jobs a second, evenly, and each of them until the database has said yes."""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import islice
from uuid import UUID

from django.db import connections

from pgbroker import cancel, enqueue_many, tenant_context
from testproject.chaos.mix import Item, items

TICK_SECONDS = 0.05
AGAIN_SECONDS = 0.1
MOST_AT_ONCE = 100
# Of each tick's jobs so many are enqueued one by one, the others together.
SINGLES = 2


class Load(threading.Thread):
    """
    A client like others: what fails is tried again, with the same key, for nobody knows whether it was stored.

    `accepted` is the ledger: every job that the database said it has. None of them may be lost.
    """

    def __init__(self, *, seed: int, rate: float) -> None:
        super().__init__(name="chaos-load", daemon=True)
        self.rate = rate
        self.accepted: dict[UUID, Item] = {}
        # Asked for again, and found: the answer to the first question was lost.
        self.answers_lost = 0
        self.errors = 0
        self.trouble: BaseException | None = None
        self._items = items(seed)
        self._open: deque[Item] = deque()
        self._to_cancel: deque[tuple[float, UUID, Item]] = deque()
        self._over = threading.Event()

    def stop(self) -> None:
        """Enqueue no more; returns once all that was begun is stored."""
        self._over.set()
        self.join(60)
        if self.is_alive() or self.trouble is not None:
            raise AssertionError(f"the load did not come to an end: {self.trouble!r}")

    def run(self) -> None:
        """Enqueue until told to stop, and then what is begun."""
        try:
            self._run()
        except BaseException as error:
            self.trouble = error
        finally:
            connections.close_all()

    def _run(self) -> None:
        began, taken = time.monotonic(), 0
        while not self._over.is_set() or self._open or self._to_cancel:
            if not self._over.is_set():
                due = int((time.monotonic() - began) * self.rate) - taken
                self._open.extend(islice(self._items, due))
                taken += due
            try:
                self._enqueue_open()
                self._cancel_due()
            except Exception:
                # A client knows nothing of the fault: whatever it is, it connects again and asks again.
                self.errors += 1
                connections.close_all()
                time.sleep(AGAIN_SECONDS)
            else:
                time.sleep(TICK_SECONDS)

    def _enqueue_open(self) -> None:
        for size in (*[1] * SINGLES, *[MOST_AT_ONCE] * (len(self._open) // MOST_AT_ONCE + 1)):
            chunk = list(islice(self._open, size))
            if not chunk:
                return
            outcomes = enqueue_many([item.call for item in chunk])
            for item, outcome in zip(chunk, outcomes, strict=True):
                if outcome.error is not None:
                    raise outcome.error
                assert outcome.job_id is not None
                self._open.popleft()
                self.accepted[outcome.job_id] = item
                self.answers_lost += outcome.outcome == "existing"
                if item.is_cancelled:
                    self._to_cancel.append((time.monotonic() + 0.5, outcome.job_id, item))

    def _cancel_due(self) -> None:
        while self._to_cancel and (self._over.is_set() or self._to_cancel[0][0] <= time.monotonic()):
            _, job_id, item = self._to_cancel[0]
            with tenant_context(item.tenant):
                cancel(job_id, reason="chaos")
            self._to_cancel.popleft()

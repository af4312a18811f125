"""A transaction that stays open beside the test's own, and what to do in it and beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar
from uuid import UUID, uuid4

import psycopg
from django.db import DatabaseError, transaction

from pgbroker.errors import PgBrokerError
from pgbroker.lease import Lease
from pgbroker.lifecycle.resolve import resolve
from pgbroker.lifecycle.settle import settle
from pgbroker.states import Status
from tests.support.jobs import completed, failed
from tests.support.links import COMPLETED, add, claim, job, links, open_group
from tests.support.sessions import PATIENCE_SECONDS, InThread, second_session

T = TypeVar("T")


class Held(Generic[T]):
    """Work that is done, and not committed; `answer` is what it returned, `pid` the backend that holds it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._done, self._go = threading.Event(), threading.Event()
        self._keep, self.ended = True, False
        self._answer: list[T] = []
        self._thread = InThread(self._run)

    def _run(self) -> None:
        try:
            with transaction.atomic():
                self._answer.append(self._work())
                self._done.set()
                assert self._go.wait(PATIENCE_SECONDS), "nobody ended it"
                transaction.set_rollback(not self._keep)
        finally:
            self._done.set()

    def start(self) -> Held[T]:
        """Do the work, and return once it is done."""
        self._thread.start()
        assert self._done.wait(PATIENCE_SECONDS), "the work did not come to an end"
        if not self._answer:
            self._thread.result()
        return self

    @property
    def answer(self) -> T:
        """What the work returned."""
        return self._answer[0]

    @property
    def thread(self) -> InThread[None]:
        """The thread, of which others wait to be rid."""
        return self._thread

    def commit(self) -> None:
        """End well; raises what the commit raised."""
        self.ended = True
        self._go.set()
        self._thread.result()

    def roll_back(self) -> None:
        """Undo it."""
        self._keep = False
        self.commit()


@contextmanager
def held(work: Callable[[], T]) -> Iterator[Held[T]]:
    """Do work in a transaction of its own, which stays open until the block says how it ends, or is left."""
    open_ = Held(work).start()
    try:
        yield open_
    finally:
        if not open_.ended:
            open_.commit()


def settling(lease, how: Status = COMPLETED) -> Callable[[], object]:
    """Settle an attempt: what a worker does."""
    outcome = completed(lease) if how == COMPLETED else failed(lease, permanent=True)
    return lambda: settle([outcome])


def claim_apart(*job_ids: UUID) -> list[Lease]:
    """Claim jobs for a worker each: one worker settles one batch at a time."""
    return [claim(job_id, worker_id=uuid4())[0] for job_id in job_ids]


def at_once(work: Callable[[], object]) -> object:
    """Do work in another session that must wait for nobody: it comes back while all others are still open."""
    return InThread(work).start().result()


def passes_while_open() -> None:
    """Let a pass come by that finds what another transaction holds; it must leave that for later."""
    with second_session() as session:
        session.execute("update pgbroker.unresolved set not_before = statement_timestamp()")
    at_once(lambda: resolve(limit=500))


def outcome_of(work: Callable[[], object]) -> object:
    """Do work; returns its answer, or the code of what refused it."""
    try:
        return work()
    except PgBrokerError as error:
        return error.code
    except DatabaseError as error:
        cause = error.__cause__
        assert isinstance(cause, psycopg.Error)
        return cause.diag.message_hint if cause.sqlstate == "PB001" else cause.sqlstate


# Two calls, each good alone, that close a cycle together.
CLOSING = (
    "a member waits for a job that waits for the group",
    "two jobs wait for each other",
    "members of two groups wait for the other group",
)


def closing(what: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Two calls, each good alone, that close a cycle together."""
    if what == "a member waits for a job that waits for the group":
        open_group("g")
        outside = job()
        return (
            lambda: links({"group": "g", "depends_on": [str(outside)]})[0].outcome,
            lambda: add(outside, "g"),
        )
    if what == "two jobs wait for each other":
        first, second = job(), job()
        return lambda: add(first, second), lambda: add(second, first)
    for name in ("g", "h"):
        open_group(name)
    return (
        lambda: links({"group": "g", "depends_on": [{"group": "h"}]})[0].outcome,
        lambda: links({"group": "h", "depends_on": [{"group": "g"}]})[0].outcome,
    )

"""Run jobs as soon as the code that enqueued them has committed, without a call for it in the test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction

from pgbroker import wakeups
from pgbroker.conf import settings
from pgbroker.testing.running import Ran, run_each


@contextmanager
def inline_jobs(*, reraise: bool = False, limit: int = 1000, using: str | None = None) -> Iterator[list[Ran]]:
    """
    Run each job as soon as the code that enqueued it has committed; yields the list of attempts, which grows.

    Outside of `atomic()` that is before `enqueue` returns. In a `TestCase` nothing commits: there the end of
    the code's outermost `atomic()` counts. Jobs run by the real pipeline (see `run_jobs`), and what is
    scheduled waits. With *reraise* a handler's error is raised, once recorded, where the code commits. Raises
    `AssertionError` when jobs enqueue jobs until *limit* have run.
    """
    inline = _Inline(using or settings().DATABASES[0], reraise=reraise, limit=limit)
    before, wakeups.instead = wakeups.instead, inline.enqueued
    try:
        yield inline.ran
    finally:
        wakeups.instead = before
        inline.end()


class _Inline:
    def __init__(self, alias: str, *, reraise: bool, limit: int) -> None:
        self.alias, self.reraise, self.limit = alias, reraise, limit
        self.ran: list[Ran] = []
        # Of each thread: whether it runs jobs, and whether some wait for the end of a block.
        self._here = threading.local()
        self._watched: list[Any] = []

    def enqueued(self, queue: str, using: str) -> None:
        """Run jobs now if nothing is left to commit; otherwise once it is."""
        if using != self.alias or self._is_running:
            return
        connection = connections[using]
        if not connection.in_atomic_block:
            self._run()
        elif not any(map(_is_of_a_test_case, connection.atomic_blocks)):
            transaction.on_commit(self._run, using=using)
        elif _has_committed(connection):
            self._run()
        else:
            self._here.due = True
            self._watch(connection)

    def end(self) -> None:
        """Watch no more."""
        for connection in self._watched:
            connection.execute_wrappers.remove(self._see)

    def _watch(self, connection: Any) -> None:
        if self._see not in connection.execute_wrappers:
            # First, not last: `with connection.execute_wrapper(...)` takes the last one away when it ends.
            connection.execute_wrappers.insert(0, self._see)
            self._watched.append(connection)

    def _see(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        """See the end of the code's own `atomic()`; an execute wrapper."""
        answer = execute(sql, params, many, context)
        # By now Django has taken the block off its list.
        if (
            getattr(self._here, "due", False)
            and not self._is_running
            and isinstance(sql, str)
            and sql.startswith("RELEASE SAVEPOINT")
            and _has_committed(context["connection"])
        ):
            self._here.due = False
            self._run()
        return answer

    @property
    def _is_running(self) -> bool:
        return getattr(self._here, "running", False)

    def _run(self) -> None:
        self._here.running = True
        try:
            for number, ran in enumerate(run_each(limit=self.limit, using=self.alias), start=1):
                self.ran.append(ran)
                if self.reraise and ran.error is not None:
                    raise ran.error
                if number == self.limit:
                    raise AssertionError(
                        f"{number} jobs ran, and more may be ready: does one enqueue itself?"
                    )
        finally:
            self._here.running = False


def _is_of_a_test_case(block: Any) -> bool:
    # Django's own mark, by which it lets durable blocks into a TestCase.
    return bool(block._from_testcase)


def _has_committed(connection: Any) -> bool:
    """Tell whether no block of the code is open; one without a savepoint ends with the one around it."""
    return not any(block.savepoint and not _is_of_a_test_case(block) for block in connection.atomic_blocks)

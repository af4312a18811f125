"""One event loop for async handlers."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Sequence
from contextvars import Context
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections

from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.attempt_run import Place, run_async
from pgbroker.runtime.isolation import (
    IDLE_SECONDS,
    clean_connections,
    close_idle_connections,
    enter_empty,
    freshen_connections,
    losses,
)

_log = logging.getLogger("pgbroker.runtime")

# How long the thread of a job's sync parts may take to come free and be cleaned, before it is given up.
CLEAN_SECONDS = 5.0
# How long tasks may take to end when the loop does.
END_SECONDS = 1.0
# How often a cancel that would be swallowed is tried again.
RETRY_SECONDS = 0.05


class _JobThread(ThreadSensitiveContext):
    """The thread of one job's sync parts, made by asgiref when it is first needed."""

    cleaned_at = math.inf
    closed_at = -math.inf


class EventLoopExecutor:
    """
    A task for each coroutine, in a loop of its own thread.

    Django runs its sync parts (the ORM) in one thread a loop unless told otherwise: each running job
    has a `ThreadSensitiveContext` of its own, from a pool, so that jobs do not wait for each other's
    queries and connections are reused.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending = False
        # Threads of sync parts that did not come free: they keep Python from ending the process.
        self.strays = 0
        self._contexts: list[_JobThread] = []
        self._closing_idle = False
        # The loop keeps weak references only: a task that nobody holds may vanish while it waits.
        self._tasks: set[asyncio.Task[None]] = set()

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        """Run attempts with one wake-up of the loop; the board has given them slots. From any thread."""
        if threading.current_thread() is self._thread:
            self._spawn_many(attempts)
        else:
            self._running_loop().call_soon_threadsafe(self._spawn_many, attempts)

    def ask_to_stop(self, attempt: Attempt) -> None:
        """Cancel the attempt's task."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._cancel, attempt)

    def end_by_force(self, attempt: Attempt) -> bool:
        """Do nothing, and say so."""
        return False

    def stop(self) -> None:
        """End the loop; what still runs in it was cancelled or given up before."""
        with self._lock:
            loop, self._loop = self._loop, None
            self._ending = True
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            # A coroutine that blocks the loop keeps its thread, a daemon.
            self._thread.join(2 * END_SECONDS)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run_loop, args=(self._loop,), name="pgbroker-event-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while not self._ending:
            try:
                loop.run_forever()
            except BaseException:
                # A task that a handler left behind raised SystemExit: the loop lets it out, and would be gone.
                _log.exception("a task of a handler tried to end the event loop")
        try:
            if self._tasks:
                for task in self._tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(self._tasks, timeout=END_SECONDS))
            loop.run_until_complete(loop.shutdown_asyncgens())
        except BaseException:
            _log.debug("ending the event loop failed", exc_info=True)
        for sensitive in self._contexts:
            if (executor := SyncToAsync.context_to_thread_executor.pop(sensitive, None)) is not None:
                executor.submit(connections.close_all)
                executor.shutdown(wait=False)
        loop.close()

    def _spawn_many(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            self._spawn(attempt)

    def _spawn(self, attempt: Attempt) -> None:
        # An empty context: a task would take over that of whoever makes it, such as the job that just ended here.
        task = asyncio.get_running_loop().create_task(self._run(attempt), context=Context())
        self._tasks.add(task)

    def _cancel(self, attempt: Attempt) -> None:
        """
        Cancel a task inside its handler. Before, its stop signal is enough; after, its outcome stands.

        asgiref swallows a cancel that arrives while its thread works, which nobody can interrupt anyway:
        such a task is cancelled when it has come out of there.
        """
        task: asyncio.Task[None] | None = attempt.handle
        if task is None or task.done():
            return
        if _waits_for_a_thread(task):
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._cancel, attempt)
        else:
            task.cancel()

    async def _run(self, attempt: Attempt) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._run_in(task, attempt)
        finally:
            self._tasks.discard(task)

    async def _run_in(self, task: "asyncio.Task[None]", attempt: Attempt) -> None:
        # The task has a context of its own, so nothing set here needs to be put back.
        enter_empty(attempt)
        sensitive = self._contexts.pop() if self._contexts else _JobThread()
        SyncToAsync.thread_sensitive_context.set(sensitive)
        if sensitive.cleaned_at <= losses.last_at:
            await self._clean(sensitive)
        attempt.handle = task
        ended = await run_async(attempt, self.place)
        attempt.handle = None
        # Told before the cleaning: a thread that the handler left at work may take long, or for ever.
        self.place.report(attempt, ended)
        if await self._clean(sensitive):
            self._contexts.append(sensitive)
            if not self._closing_idle:
                self._closing_idle = True
                asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close_idle)
        else:
            self.strays += 1
        following = self.place.next_after(attempt)
        if following is not None:
            self.place.start(following)

    def _close_idle(self) -> None:
        """Let go of the connections of threads that no job has used for a while."""
        idle_since = time.monotonic() - IDLE_SECONDS
        waiting = False
        for sensitive in self._contexts:
            if sensitive.closed_at >= sensitive.cleaned_at:
                continue
            if sensitive.cleaned_at > idle_since:
                waiting = True
                continue
            sensitive.closed_at = sensitive.cleaned_at
            executor: Any = SyncToAsync.context_to_thread_executor.get(sensitive)
            if executor is not None:
                executor.submit(close_idle_connections)
        self._closing_idle = waiting
        if waiting:
            asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close_idle)

    @staticmethod
    async def _clean(sensitive: "_JobThread") -> bool:
        """
        Clean Django's connections in the thread this job used, if it used one.

        False when that thread does not come free: it is not for the next job then.
        """
        executor: Any = SyncToAsync.context_to_thread_executor.get(sensitive)
        sensitive.cleaned_at = time.monotonic()
        if executor is None:
            return True
        try:
            cleaning = asyncio.get_running_loop().run_in_executor(executor, _clean_and_freshen)
            done, _ = await asyncio.wait([cleaning], timeout=CLEAN_SECONDS)
        except BaseException:
            # A handler may have cancelled its own task, or shut the executor down.
            return False
        return bool(done) and cleaning.exception() is None


def _waits_for_a_thread(task: "asyncio.Task[None]") -> bool:
    """Tell whether a task is inside `sync_to_async`; Django's async ORM methods are."""
    awaited: Any = task.get_coro()
    for _ in range(1000):
        if getattr(awaited, "cr_code", None) is SyncToAsync.__call__.__code__:
            return True
        awaited = getattr(awaited, "cr_await", None)
        if awaited is None:
            return False
    return False


def _clean_and_freshen() -> None:
    # In this order: cleaning marks a connection as seen, and what was lost before is older.
    freshen_connections()
    clean_connections()

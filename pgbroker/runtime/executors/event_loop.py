"""One event loop for async handlers."""

import asyncio
import logging
import math
import threading
import time
from contextvars import Context
from typing import TYPE_CHECKING, Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections

from pgbroker.errors import UndecodableArgument
from pgbroker.payload import decode
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.attempt_bodies import fetch_arguments, is_too_large, save_result
from pgbroker.runtime.calling import call_handler_async
from pgbroker.runtime.isolation import (
    IDLE_SECONDS,
    clean_connections,
    close_idle_connections,
    end_if_forked,
    enter_empty,
    freshen_connections,
    losses,
)

if TYPE_CHECKING:
    from pgbroker.outcomes import Ended
    from pgbroker.runtime.supervisor import Worker

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

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker
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

    def start(self, attempt: Attempt) -> None:
        """Run an attempt; the board has given it a slot. From any thread."""
        if threading.current_thread() is self._thread:
            self._spawn(attempt)
        else:
            self._running_loop().call_soon_threadsafe(self._spawn, attempt)

    def start_many(self, attempts: list[Attempt]) -> None:
        """Run several attempts with one wake-up of the loop."""
        if attempts:
            self._running_loop().call_soon_threadsafe(self._spawn_many, attempts)

    def ask_to_stop(self, attempt: Attempt) -> None:
        """Cancel the attempt's task."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._cancel, attempt)

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

    def _spawn_many(self, attempts: list[Attempt]) -> None:
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
        ended = await self._attempt(attempt)
        attempt.handle = None
        # Told before the cleaning: a thread that the handler left at work may take long, or for ever.
        self.worker.report(attempt, ended)
        if await self._clean(sensitive):
            self._contexts.append(sensitive)
            if not self._closing_idle:
                self._closing_idle = True
                asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close_idle)
        else:
            self.strays += 1
        following = self.worker.next_after(attempt)
        if following is not None:
            self.worker.start(following)

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

    async def _attempt(self, attempt: Attempt) -> "Ended":
        settings = self.worker.settings
        job_type = attempt.job_type
        try:
            if (stopped := attempt.stopped_before_it_ran()) is not None:
                return attempt.failed(stopped, settings)
            if attempt.lease.args_body is not None:
                # In the thread of the job's sync parts: one that does not come back is given up with the job,
                # and connections that the storage opens there are cleaned like the handler's.
                await sync_to_async(fetch_arguments)(attempt)
                if (stopped := attempt.stopped_before_it_ran()) is not None:
                    return attempt.failed(stopped, settings)
            self.worker.tell_started(attempt)
            try:
                args, kwargs = decode(job_type.signature, attempt.lease.args)
            except UndecodableArgument as error:
                return attempt.undecodable(error, settings)
            ended = attempt.completed(await call_handler_async(attempt, args, kwargs), settings)
            if is_too_large(ended, settings):
                ended = await sync_to_async(save_result)(attempt, ended, settings)
            return ended
        except BaseException as error:
            # A cancel, SystemExit and KeyboardInterrupt too: out of here they would end the loop.
            return attempt.failed(error, settings)
        finally:
            end_if_forked(self.worker.pid)

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

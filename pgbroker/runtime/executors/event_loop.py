"""One event loop for async handlers."""

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from pgbroker.errors import UndecodableArgument
from pgbroker.payload import decode
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.isolation import clean_connections, enter, freshen_connections

if TYPE_CHECKING:
    from pgbroker.outcomes import Ended
    from pgbroker.runtime.supervisor import Worker


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
        self._contexts: list[ThreadSensitiveContext] = []
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
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run_loop, args=(self._loop,), name="pgbroker-event-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    @staticmethod
    def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.close()

    def _spawn_many(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            self._spawn(attempt)

    def _spawn(self, attempt: Attempt) -> None:
        task = asyncio.get_running_loop().create_task(self._run(attempt))
        attempt.handle = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if attempt.stop.reason is not None:
            task.cancel()

    @staticmethod
    def _cancel(attempt: Attempt) -> None:
        if attempt.handle is not None:
            attempt.handle.cancel()

    async def _run(self, attempt: Attempt) -> None:
        # The task has a context of its own, so nothing set here needs to be put back.
        enter(attempt)
        sensitive = self._contexts.pop() if self._contexts else ThreadSensitiveContext()
        SyncToAsync.thread_sensitive_context.set(sensitive)
        try:
            ended = await self._attempt(attempt)
            await self._clean(sensitive)
        finally:
            self._contexts.append(sensitive)
        following = self.worker.finish(attempt, ended)
        if following is not None:
            self.worker.start(following)

    async def _attempt(self, attempt: Attempt) -> "Ended":
        settings = self.worker.settings
        job_type = attempt.job_type
        try:
            try:
                args, kwargs = decode(job_type.signature, attempt.lease.args)
            except UndecodableArgument as error:
                return attempt.undecodable(error, settings)
            if job_type.task.takes_context:
                return attempt.completed(
                    await job_type.task.func(attempt.context(), *args, **kwargs), settings
                )
            return attempt.completed(await job_type.task.func(*args, **kwargs), settings)
        except BaseException as error:
            # A cancel, SystemExit and KeyboardInterrupt too: out of here they would end the loop.
            return attempt.failed(error, settings)

    @staticmethod
    async def _clean(sensitive: ThreadSensitiveContext) -> None:
        """Clean Django's connections in the thread this job used, if it used one."""
        executor: Any = SyncToAsync.context_to_thread_executor.get(sensitive)
        if executor is None:
            return
        loop = asyncio.get_running_loop()
        try:
            await asyncio.shield(loop.run_in_executor(executor, _clean_and_freshen))
        except asyncio.CancelledError:
            # A late cancel of a handler that is done already: it must not undo its outcome.
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()


def _clean_and_freshen() -> None:
    clean_connections()
    freshen_connections()

"""The ways to run a handler, and which of them a job type takes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgbroker.registry import JobType, types
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.executors.base import Executor
from pgbroker.runtime.executors.event_loop import EventLoopExecutor
from pgbroker.runtime.executors.processes import ProcessExecutor
from pgbroker.runtime.executors.threads import ThreadExecutor

if TYPE_CHECKING:
    from pgbroker.runtime.executors.nursery import Nursery
    from pgbroker.runtime.supervisor import Worker


def runs_in_child(job_type: JobType, default: str) -> bool:
    """Tell whether jobs of this type run in child processes, where *default* is what the worker was told."""
    return (job_type.task.executor or default) == "process"


def needs_children(default: str) -> bool:
    """Tell whether any job of this process's code runs in child processes."""
    return any(runs_in_child(job_type, default) for job_type in types().values())


class Executors:
    """Threads for sync handlers, an event loop for async ones, child processes for either."""

    def __init__(self, worker: "Worker", nursery: "Nursery | None") -> None:
        self.worker = worker
        default = worker.options.executor
        inside = [each for each in types().values() if not runs_in_child(each, default)]
        # Nothing that runs in the worker's own process can take a job in a child along.
        self.all_in_children = not inside
        self.threads = ThreadExecutor(worker)
        self.event_loop = EventLoopExecutor(worker)
        self.processes = ProcessExecutor(worker, nursery, all_slots=default == "process")

    def of(self, job_type: JobType) -> Executor:
        """Return who runs jobs of this type."""
        if runs_in_child(job_type, self.worker.options.executor):
            return self.processes
        return self.event_loop if job_type.is_async else self.threads

    def open(self) -> None:
        """Make what must be ready before the first job."""
        if needs_children(self.worker.options.executor):
            self.processes.open()

    def start_all(self, attempts: Sequence[Attempt]) -> None:
        """Start attempts that the board gave a slot."""
        groups: dict[Executor, list[Attempt]] = {}
        for attempt in attempts:
            if attempt.executor is not self.processes:
                # In a child its time begins when it is given to one.
                self.worker.watchdog.watch(attempt)
            groups.setdefault(attempt.executor, []).append(attempt)
        for executor, group in groups.items():
            executor.start_many(group)

    def tell_shutting_down(self, attempts: Sequence[Attempt]) -> None:
        """Let handlers know that their worker drains."""
        for attempt in attempts:
            attempt.stop.shutting_down = True
        self.processes.tell_shutting_down()

    @property
    def strays(self) -> int:
        """Threads that handlers left at work, besides those the board counts."""
        return self.event_loop.strays

    def stop(self) -> None:
        """End all that runs nothing."""
        self.event_loop.stop()
        self.threads.stop()
        self.processes.close()

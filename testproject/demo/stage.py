"""The demo in its order: a schema, workers, a scheduler, a web server, the load, the summary; and then it stays."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from testproject.airports import jobs
from testproject.demo import database, report, timetable
from testproject.demo.batch import Batch, Task
from testproject.demo.load import TENANTS, AirportsLoad, enqueue_nothing
from testproject.demo.processes import Children, DemoFailed
from testproject.demo.progress import Progress
from testproject.demo.services import reserved_port, start_scheduler, start_web, start_worker

if TYPE_CHECKING:
    from testproject.demo.__main__ import Choices

# Jobs that do nothing, async and sync each, for each job that works with airports.
NOTHING_SHARE = 5
LOOK_SECONDS = 0.5
# So long without the end of a single job, and something is wrong.
PATIENCE_SECONDS = 120.0


def run(choices: Choices, children: Children) -> None:
    """Do everything in its order; returns when the demo is over."""
    progress = Progress()
    progress.say(f"database  {database.migrate()}, migrated")
    with reserved_port(choices.port) as port:
        for number in range(1, choices.workers + 1):
            start_worker(children, number)
        start_scheduler(children)
        start_web(children, port)
        address = f"http://127.0.0.1:{port}/admin/"
        progress.say(f"admin     {address}  user {database.USER}, password {database.make_admin()}")
        progress.say(f"logs      {children.logs}")
        if others := report.live_jobs():
            progress.say(
                f"{others:,} jobs of an earlier run or another demo are there, and are worked off too"
            )
        work(choices.jobs, Watcher(children, progress), progress)
        if choices.leave:
            return
        progress.say(f"\nThe admin stays at {address} until Ctrl-C.")
        progress.say(f'It shows the jobs of one tenant, "{TENANTS[0]}", and what went wrong there is at')
        for what, where in report.failures(TENANTS[0]).items():
            progress.say(f"  {what:<14} {address}{where}")
        stay(children, progress)


def stay(children: Children, progress: Progress) -> None:
    """Tell of the timetable, and of what it fires, until Ctrl-C."""
    progress.say("\nThe timetable, and when it fires next:")
    for line in timetable.coming():
        progress.say(f"  {line}")
    if (told := timetable.refresh_now()) is not None:
        progress.say(told)
    fired = timetable.Fired()
    while True:
        for sentence in (*children.look_after(), *fired.look()):
            progress.say(sentence)
        time.sleep(LOOK_SECONDS)


def work(size: int, watcher: Watcher, progress: Progress) -> None:
    """Run the load and the measurements, and print what became of them."""
    airports = Batch(watcher.children.run)
    progress.say(f"\nairports of the world: about {size:,} jobs of {len(TENANTS)} tenants")
    work_with_airports(airports, size, watcher, progress)
    measured = []
    for kind, task in (("async", jobs.nothing_async), ("sync", jobs.nothing_sync)):
        batch = Batch(f"{airports.name}-{kind}")
        measured.append((kind, batch))
        progress.say(f"jobs without ORM: {size * NOTHING_SHARE:,} {kind} ones")
        work_at_nothing(batch, task, size * NOTHING_SHARE, watcher)
    progress.say(f"\n{report.summary([airports, *(batch for _, batch in measured)])}\n")
    if airports.existing:
        progress.say(
            f"{airports.existing} imports were asked for twice: their idempotency keys made one job of two"
        )
    for kind, batch in measured:
        progress.say(sentence_about(kind, report.speed(batch)))


def work_with_airports(batch: Batch, size: int, watcher: Watcher, progress: Progress) -> None:
    """Enqueue the load while the workers are at it already, and wait for its end."""
    load = AirportsLoad(batch, size, today=datetime.now(UTC).date())

    def cancel_one() -> None:
        if load.cancel_the_unwanted():
            progress.say("cancelled one slow_summary while it ran")

    watcher.begin(batch, on_look=cancel_one)
    for _ in load.enqueue():
        watcher.look_now_and_then()
    watcher.wait_for_the_end()


def work_at_nothing(batch: Batch, task: Task, count: int, watcher: Watcher) -> None:
    """Have jobs that do nothing worked off, and nothing else, so that their speed is the broker's."""
    enqueue_nothing(batch, task, count)
    watcher.begin(batch)
    watcher.wait_for_the_end()


def sentence_about(kind: str, speed: report.Speed) -> str:
    """Say how fast jobs without ORM ran."""
    workers = "one worker process" if speed.workers == 1 else f"{speed.workers} worker processes"
    return f"jobs without ORM: {speed.jobs:,} {kind} jobs at {speed.a_second:,.0f}/s on {workers}"


class Watcher:
    """Shows how far a batch is, and starts children again that ended."""

    def __init__(self, children: Children, progress: Progress) -> None:
        self.children, self.progress = children, progress
        self._on_look: Callable[[], None] = _nothing_more

    def begin(self, batch: Batch, *, on_look: Callable[[], None] | None = None) -> None:
        """Turn to a batch; *on_look* is called at each look at it."""
        self._batch = batch
        self._on_look = on_look or _nothing_more
        self._ended = 0
        self._moved_at = time.monotonic()
        self._looked_at = 0.0
        self.progress.begin()

    def look_now_and_then(self) -> None:
        """Look, if the last look was long enough ago."""
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self.look()

    def look(self) -> bool:
        """Look once; tells whether all jobs made so far have ended. Raises `DemoFailed` if nothing moves."""
        for sentence in self.children.look_after():
            self.progress.say(sentence)
        self._on_look()
        counts, total = self._batch.counts(), len(self._batch.ids)
        ended = self.progress.show(counts, total)
        self._looked_at = time.monotonic()
        if ended != self._ended:
            self._ended, self._moved_at = ended, self._looked_at
        elif self._looked_at - self._moved_at > PATIENCE_SECONDS and ended < total:
            raise DemoFailed(
                f"No job has ended for {PATIENCE_SECONDS:.0f} s, and {total - ended:,} have not yet.\n"
                f"{report.summary([self._batch])}\nThe logs are in {self.children.logs}"
            )
        return ended == total

    def wait_for_the_end(self) -> None:
        """Look until all jobs of the batch have ended."""
        while not self.look():
            time.sleep(LOOK_SECONDS)


def _nothing_more() -> None:
    pass

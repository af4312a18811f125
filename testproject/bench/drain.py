"""How fast workers empty a queue of jobs that do nothing, beside a bare loop of the same statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pgbroker.registry import JobTask
from testproject.bench import jobs, raw, stage, worker
from testproject.bench.compare import against, rotate, row
from testproject.bench.conditions import versions
from testproject.bench.rivals import all_rivals, contestants, verdicts
from testproject.bench.rows import Row, Scale

RAW = "a raw loop of the same statements, 500 a batch, on one connection"
SLOTS = "--concurrency=8"
ASYNC_PEERS = ("pgqueuer", "awa-pg", "oban", "chancy")
SYNC_PEERS = ("procrastinate", "django-tasks-db", "dj-queue", "django-ox", "celery with Redis")


def measured(task: JobTask[Any, Any], count: int, run: Callable[[], float]) -> float:
    """Fill, run, and prove that each job is completed and recorded once; jobs a second."""
    stage.empty()
    stage.fill(task, count)
    rate = run()
    stage.prove_completed(count)
    return rate


def drained(task: JobTask[Any, Any], count: int, processes: int = 1) -> float:
    """Drain *count* jobs with so many worker processes; jobs a second."""

    def run() -> float:
        look = stage.notes(count)
        seconds = worker.drain(processes, look, SLOTS)
        look.prove_once()
        return count / seconds

    return measured(task, count, run)


def _drain(
    scale: Scale, task: JobTask[Any, Any], *, at_least: float, peers: Sequence[str], times: float
) -> dict[str, Any]:
    """Drain beside the raw loop, and beside each of these peers, which are to be left behind so many times."""
    count, rounds = scale.count(quick=10_000, full=60_000), scale.turns(quick=3, full=5)
    rivals = {name: rival for name, rival in all_rivals().items() if name in peers}
    figures = rotate(
        {
            "raw": lambda: measured(task, count, lambda: raw.drain(count)),
            "pgbroker": partial(drained, task, count),
            **contestants(rivals, "drain", scale),
        },
        rounds=rounds,
    )
    return row(
        figures.median("pgbroker"),
        "jobs/s",
        [
            against(figures, "pgbroker", "raw", what=RAW, at_least=at_least),
            *verdicts(figures, rivals, at_least=times),
        ],
        jobs=count,
        rounds=rounds,
        quick=scale.quick,
        versions=versions(),
    )


def _two_workers(scale: Scale) -> dict[str, Any]:
    count, rounds = scale.count(quick=10_000, full=60_000), scale.turns(quick=3, full=5)
    figures = rotate(
        {
            "one": partial(drained, jobs.noop_async, count),
            "two": partial(drained, jobs.noop_async, count, processes=2),
        },
        rounds=rounds,
    )
    return row(
        figures.median("two"),
        "jobs/s",
        [against(figures, "two", "one", what="one worker process", at_least=1.2)],
        jobs=count,
        rounds=rounds,
        quick=scale.quick,
        versions=versions(),
    )


ROWS = [
    Row(
        name="drain-async",
        what="one worker process empties a queue of async jobs that do nothing",
        measure=lambda scale: _drain(scale, jobs.noop_async, at_least=0.5, peers=ASYNC_PEERS, times=1.0),
    ),
    Row(
        name="drain-threads",
        what="one worker process empties a queue of sync jobs that do nothing, in threads",
        measure=lambda scale: _drain(scale, jobs.noop_sync, at_least=0.4, peers=SYNC_PEERS, times=10.0),
    ),
    Row(
        name="two-workers",
        what="two worker processes empty it, beside one",
        measure=_two_workers,
    ),
]

"""What a child process around each job costs, beside the same worker with threads."""

from __future__ import annotations

from functools import partial
from typing import Any

from pgbroker.registry import JobTask
from testproject.bench import jobs, stage, worker
from testproject.bench.compare import against, rotate, row
from testproject.bench.conditions import versions
from testproject.bench.drain import SLOTS, measured
from testproject.bench.rows import Row, Scale

CHILDREN = "--executor=process"


def _drained(task: JobTask[Any, Any], count: int, *flags: str) -> float:
    """Drain *count* jobs with one worker process; jobs a second. Its children are warm when the first one begins."""

    def run() -> float:
        look = stage.notes(count)
        seconds = worker.drain(1, look, SLOTS, *flags)
        look.prove_once()
        return count / seconds

    return measured(task, count, run)


def _isolation_cost(scale: Scale) -> dict[str, Any]:
    count, rounds = scale.count(quick=10_000, full=60_000), scale.turns(quick=3, full=5)
    figures = rotate(
        {
            "threads": partial(_drained, jobs.noop_sync, count),
            "children": partial(_drained, jobs.noop_sync, count, CHILDREN),
            "event loop": partial(_drained, jobs.noop_async, count),
            "children, async": partial(_drained, jobs.noop_async, count, CHILDREN),
        },
        rounds=rounds,
    )
    return row(
        figures.median("children"),
        "jobs/s",
        [
            against(figures, "children", "threads", what="sync jobs in 8 threads", at_least=0.3),
            against(figures, "children, async", "event loop", what="async jobs on the event loop"),
        ],
        jobs=count,
        rounds=rounds,
        quick=scale.quick,
        versions=versions(),
    )


ROWS = [
    Row(
        name="isolation-cost",
        what="one worker process empties a queue of jobs that do nothing, each of them in a warm child process",
        measure=_isolation_cost,
    ),
]

"""What a worker asks of the database while there is nothing to do."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext
from typing import Any

from django.db import connection

from pgbroker import db
from pgbroker.lifecycle.declare import declare_queues
from pgbroker.runtime.supervisor import Worker, WorkerOptions
from testproject.bench import stage, worker
from testproject.bench.compare import figure, row, tell
from testproject.bench.conditions import versions
from testproject.bench.rows import Row, Scale

QUEUES = tuple(f"idle-{number}" for number in range(10))
# Until what a worker does once is over: this is about what goes on for ever.
WARM_UP_SECONDS = 10.0
GOAL = 2.0
# Not by the server: its counts of transactions come late, and have those of autovacuum and of the bench in them.
COUNTED = (
    "by the worker, each statement as it is sent; what sets scope and planner goes along in the same trip, and the "
    "listener says LISTEN again once in half a lease"
)


def _sent(seconds: float) -> Counter[str]:
    """Run a worker in this process, and count its statements by name."""
    sent: Counter[str] = Counter()

    def count(moment: str, name: str) -> None:
        if moment == "before":
            sent[name] += 1

    idle = Worker(WorkerOptions(queues=QUEUES))
    idle.prepare()
    connection.close()
    idle.start_services()
    try:
        time.sleep(WARM_UP_SECONDS)
        db.fault = count
        time.sleep(seconds)
    finally:
        db.fault = None
        idle.stop()
        assert idle.run_to_end() == 0
    return sent


def _idle(scale: Scale) -> dict[str, Any]:
    seconds = float(scale.count(quick=30, full=180))
    rates: dict[str, Counter[str]] = {}
    for role in ("leader", "standby"):
        stage.empty()
        declare_queues(QUEUES)
        # The first to come leads, and the one that is measured stands by.
        with worker.workers(1) if role == "standby" else nullcontext():
            tell(f"an idle {role} for {seconds:g} s")
            rates[role] = _sent(seconds)
    of = {role: sent.total() / seconds for role, sent in rates.items()}
    return row(
        of["leader"],
        "statements/s",
        [
            figure("a worker that leads, as one that is alone does", of["leader"], at_most=GOAL),
            figure("a worker that stands by", of["standby"], at_most=GOAL),
        ],
        statements={
            role: {name: round(count / seconds, 3) for name, count in sent.most_common()}
            for role, sent in rates.items()
        },
        counted=COUNTED,
        queues=len(QUEUES),
        seconds=seconds,
        quick=scale.quick,
        versions=versions(),
    )


ROWS = [
    Row(
        name="idle",
        what="statements that an idle worker with 10 queues sends in a second, at default settings",
        measure=_idle,
    ),
]

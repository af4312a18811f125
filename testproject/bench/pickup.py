"""How long an idle worker takes to begin a job, from the enqueue call on, beside a bare insert, notify and claim."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from django.db import connection

from testproject.bench import jobs, stage
from testproject.bench.compare import percentile, ratio, row, tell
from testproject.bench.conditions import versions
from testproject.bench.rows import Row, Scale
from testproject.bench.worker import Child, wait_until, workers

GAP_SECONDS = 0.05
WARM = 20
_TABLE = "drop table if exists bench_line; create table bench_line (id int primary key, taken_at timestamptz)"
_INSERT = "with made as (insert into bench_line (id) values (%s)) select pg_notify('bench_line', '')"


def _insert(number: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, [number])


def enqueue(number: int) -> None:
    """Enqueue the job that notes when it began."""
    jobs.stamp.enqueue(number, stage.DAY, note=stage.NOTE)


def waits(
    make: Callable[[int], None], stamps: jobs.ran.Stamps, numbers: range, running: list[Child]
) -> list[float]:
    """Make one job after another, at uneven times so that nothing is in step with them; returns the waits in ms."""
    called = {}
    for number in numbers:
        time.sleep(GAP_SECONDS * random.uniform(0.6, 1.4))
        called[number] = time.monotonic()
        make(number)
    wait_until(lambda: all(stamps.at(number) for number in numbers), running)
    return [1000 * ((stamps.at(number) or 0.0) - called[number]) for number in numbers]


def _pickup(scale: Scale) -> dict[str, Any]:
    count, rounds = scale.count(quick=100, full=200), scale.turns(quick=3, full=5)
    stage.empty()
    with connection.cursor() as cursor:
        cursor.execute(_TABLE)
    directory = stage.directory()
    total = WARM + rounds * count
    ours = jobs.ran.Stamps.make(directory / "ours", total)
    bare = jobs.ran.Stamps.make(directory / "bare", total)
    listener = Child("testproject.bench.listener", BENCH_STAMPS=str(bare.path))
    measured: dict[str, list[list[float]]] = {"raw": [], "pgbroker": []}
    try:
        wait_until(lambda: "listening" in listener.said(), [listener])
        with workers(1, "--concurrency=8", BENCH_STAMPS=str(ours.path)) as running:
            running.append(listener)
            contestants = {"raw": (_insert, bare), "pgbroker": (enqueue, ours)}
            for make, stamps in contestants.values():
                waits(make, stamps, range(WARM), running)
            for number in range(rounds):
                numbers = range(WARM + number * count, WARM + (number + 1) * count)
                for name, (make, stamps) in contestants.items():
                    tell(f"round {number + 1} of {rounds}: {name}")
                    measured[name].append(waits(make, stamps, numbers, running))
            running.remove(listener)
    finally:
        listener.kill()
    stage.prove_completed(total)
    middle, slowest = (
        {name: [percentile(each, share) for each in rounds_] for name, rounds_ in measured.items()}
        for share in (0.5, 0.99)
    )
    what = "a bare INSERT with NOTIFY, and an UPDATE of one row by who listens"
    return row(
        percentile(middle["pgbroker"], 0.5),
        "ms",
        [
            ratio(f"p50 of {what}", middle["pgbroker"], middle["raw"], at_most=2.5),
            ratio(f"p99 of {what}", slowest["pgbroker"], slowest["raw"], at_most=4.0),
        ],
        p99=percentile(slowest["pgbroker"], 0.5),
        jobs=count,
        rounds=rounds,
        quick=scale.quick,
        versions=versions(),
    )


ROWS = [
    Row(
        name="pickup",
        what="an idle worker begins a job, from the enqueue call to the handler",
        measure=_pickup,
    )
]

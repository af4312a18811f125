"""A drain while some transaction keeps its snapshot: what is finished leaves entries that nobody may remove."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connection, connections

from pgbroker import reports
from pgbroker.tenancy import scope_all
from testproject.bench import jobs, stage, worker
from testproject.bench.compare import ratio, row, tell
from testproject.bench.conditions import versions
from testproject.bench.rows import Row, Scale

PRIORITIES = (0, 10)
# Often, so that a drain of seconds sees many heartbeats and passes of the reaper.
SETTINGS = {"LEASE_SECONDS": 3, "HEARTBEAT_SECONDS": 1, "REAP_SECONDS": 1}
SAMPLE_SECONDS = 1.0


@contextmanager
def snapshot() -> Iterator[None]:
    """Hold a REPEATABLE READ snapshot in a session of its own."""
    with psycopg.connect(worker.url()) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from pgbroker.queue")
        yield


@contextmanager
def sampling() -> Iterator[None]:
    """Look at the depth of all queues every second, as a display does."""
    over = threading.Event()

    def sample() -> None:
        try:
            while not over.wait(SAMPLE_SECONDS):
                with scope_all():
                    reports.list_depths(using="default")
        finally:
            connections.close_all()

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def tenths() -> tuple[float, float]:
    """Return how many jobs a second ended in the first tenth of all, and in the last."""
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(
            """
            select
                extract(epoch from max(completed_at) filter (where part = 1) - min(started_at)),
                extract(epoch from max(completed_at) - max(completed_at) filter (where part = 9)),
                count(*) filter (where part = 1),
                count(*) filter (where part = 10)
            from (
                select started_at, completed_at, ntile(10) over (order by completed_at) as part
                from pgbroker.execution
            ) as ended
            """
        )
        first, last, many_first, many_last = cursor.fetchone()
    return many_first / float(first), many_last / float(last)


def _held_snapshot(scale: Scale) -> dict[str, Any]:
    count, rounds = scale.count(quick=60_000, full=300_000), scale.turns(quick=1, full=3)
    first: list[float] = []
    last: list[float] = []
    whole: list[float] = []
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        stage.empty()
        stage.fill(jobs.noop_async, count, priorities=PRIORITIES)
        look = stage.notes(count)
        with snapshot(), sampling():
            whole.append(count / worker.drain(1, look, "--concurrency=8", settings=SETTINGS))
        look.prove_once()
        stage.prove_completed(count)
        at_first, at_last = tenths()
        first.append(at_first)
        last.append(at_last)
    stage.empty()
    return row(
        sorted(whole)[len(whole) // 2],
        "jobs/s",
        [ratio("the first tenth of the same drain", last, first, at_least=0.8)],
        last_tenth=sorted(last)[len(last) // 2],
        jobs=count,
        rounds=rounds,
        quick=scale.quick,
        versions=versions(),
    )


ROWS = [
    Row(
        name="held-snapshot",
        what="jobs of two priorities are drained while a REPEATABLE READ transaction is held, and reaper, heartbeats "
        "and sampling go on",
        measure=_held_snapshot,
    )
]

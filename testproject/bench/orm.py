"""Jobs that read a row and write one through the ORM, beside a plain loop that does the same on as many threads."""

from __future__ import annotations

import threading
import time
from itertools import count
from typing import Any

from django.db import connection, connections

from testproject.bench import drain, jobs
from testproject.bench.compare import against, rotate, row
from testproject.bench.conditions import versions
from testproject.bench.models import Item
from testproject.bench.rows import Row, Scale

THREADS = 8


def fill(number: int) -> None:
    """Make the two rows of each job."""
    with connection.cursor() as cursor:
        cursor.execute("truncate bench_item")
        cursor.execute(
            "insert into bench_item (id, name, count) select n, 'item ' || n, 0 from generate_series(1, %s) as n",
            [2 * number],
        )
        cursor.execute("vacuum analyze bench_item")


def prove_written(number: int) -> None:
    """Prove that the second row of each job was written, and the first one was not."""
    assert Item.objects.filter(count=1, pk__in=range(2, 2 * number + 1, 2)).count() == number
    assert Item.objects.filter(count=0).count() == number


def plain(number: int) -> float:
    """Do the work of so many jobs in threads, and nothing else; jobs a second."""
    fill(number)
    numbers = count()

    def work() -> None:
        try:
            # next() is atomic.
            while (mine := next(numbers)) < number:
                jobs.touch_item(mine)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    prove_written(number)
    return number / seconds


def brokered(number: int) -> float:
    """Do it as jobs of one worker process; jobs a second."""
    fill(number)
    rate = drain.drained(jobs.touch, number)
    prove_written(number)
    return rate


def _drain_orm(scale: Scale) -> dict[str, Any]:
    number, rounds = scale.count(quick=2_000, full=10_000), scale.turns(quick=3, full=5)
    figures = rotate({"plain": lambda: plain(number), "pgbroker": lambda: brokered(number)}, rounds=rounds)
    return row(
        figures.median("pgbroker"),
        "jobs/s",
        [
            against(
                figures,
                "pgbroker",
                "plain",
                what=f"a plain loop of the same ORM calls on {THREADS} threads",
                at_least=0.7,
            )
        ],
        jobs=number,
        rounds=rounds,
        quick=scale.quick,
        versions=versions(),
    )


ROWS = [
    Row(
        name="drain-orm",
        what="one worker process runs sync jobs that read one row and write one through the ORM",
        measure=_drain_orm,
    )
]

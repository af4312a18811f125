"""How fast jobs are made: one by one, and many at once, beside bare inserts on the same connection."""

from __future__ import annotations

import json
import time
from typing import Any

from django.db import connection

from pgbroker import enqueue_many
from pgbroker.ids import new_id
from testproject.bench import jobs, stage
from testproject.bench.compare import against, rotate, row
from testproject.bench.conditions import versions
from testproject.bench.rivals import all_rivals, contestants, verdicts
from testproject.bench.rows import Row, Scale

WARM = 200
_TABLE = """
create table if not exists bench_bare (
    id uuid primary key, queue_id smallint, job_type_id int, priority smallint, args jsonb
)
"""
_ONE = "insert into bench_bare (id, queue_id, job_type_id, priority, args) values (%s, 1, 1, 0, %s)"
_MANY = """
insert into bench_bare (id, queue_id, job_type_id, priority, args)
select * from unnest(%s::uuid[], %s::smallint[], %s::int[], %s::smallint[], %s::jsonb[])
"""


def _arguments(number: int) -> dict[str, Any]:
    return {"v": 1, "args": [number, stage.DAY.isoformat()], "kwargs": {"note": stage.NOTE}}


def _bare_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute(_TABLE)


def _stored(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"select count(*) from {table}")  # noqa: S608 - a name of ours
        (count,) = cursor.fetchone()
    return int(count)


def raw_one(count: int) -> float:
    """Insert rows one by one, a commit each; rows a second."""
    _bare_table()

    def insert(numbers: range) -> None:
        for number in numbers:
            with connection.cursor() as cursor:
                cursor.execute(_ONE, [new_id(), json.dumps(_arguments(number))])

    before = _stored("bench_bare")
    insert(range(WARM))
    began = time.perf_counter()
    insert(range(count))
    seconds = time.perf_counter() - began
    assert _stored("bench_bare") == before + WARM + count
    return count / seconds


def one(count: int) -> float:
    """Enqueue jobs one by one, in autocommit; jobs a second."""
    before = _stored("pgbroker.job")

    def enqueue(numbers: range) -> None:
        for number in numbers:
            jobs.noop_sync.enqueue(number, stage.DAY, note=stage.NOTE)

    enqueue(range(WARM))
    began = time.perf_counter()
    enqueue(range(count))
    seconds = time.perf_counter() - began
    assert _stored("pgbroker.job") == _stored("pgbroker.job_payload") == before + WARM + count
    return count / seconds


def raw_many(count: int) -> float:
    """Insert all rows with one statement, whose arrays are ready; rows a second."""
    _bare_table()
    ids = [new_id() for _ in range(count)]
    bodies = [json.dumps(_arguments(number)) for number in range(count)]
    ones = [1] * count
    before = _stored("bench_bare")
    began = time.perf_counter()
    with connection.cursor() as cursor:
        cursor.execute(_MANY, [ids, ones, ones, [0] * count, bodies])
    seconds = time.perf_counter() - began
    assert _stored("bench_bare") == before + count
    return count / seconds


def many(count: int) -> float:
    """Enqueue typed calls at once, checked and encoded in the time; jobs a second."""
    before = _stored("pgbroker.job")
    began = time.perf_counter()
    outcomes = enqueue_many(
        [jobs.noop_sync.bind(number, stage.DAY, note=stage.NOTE) for number in range(count)]
    )
    seconds = time.perf_counter() - began
    assert all(outcome.outcome == "created" for outcome in outcomes)
    assert _stored("pgbroker.job") == _stored("pgbroker.job_payload") == before + count
    return count / seconds


def _enqueue_one(scale: Scale) -> dict[str, Any]:
    # Once, and not before each round: the files that a truncate makes anew slow the next commits down.
    stage.empty()
    count, rounds = scale.count(quick=500, full=3_000), scale.turns(quick=3, full=5)
    rivals = all_rivals()
    figures = rotate(
        {
            "raw": lambda: raw_one(count),
            "pgbroker": lambda: one(count),
            **contestants(rivals, "one", scale),
        },
        rounds=rounds,
    )
    return row(
        figures.median("pgbroker"),
        "jobs/s",
        [
            against(figures, "pgbroker", "raw", what="a bare INSERT of one row, committed", at_least=0.5),
            *verdicts(figures, rivals, at_least=1.0),
        ],
        jobs=count,
        rounds=rounds,
        quick=scale.quick,
        versions=versions(),
    )


def _enqueue_bulk(scale: Scale) -> dict[str, Any]:
    stage.empty()
    count, rounds = scale.count(quick=20_000, full=100_000), scale.turns(quick=3, full=5)
    rivals = all_rivals()
    figures = rotate(
        {
            "raw": lambda: raw_many(count),
            "pgbroker": lambda: many(count),
            **contestants(rivals, "many", scale),
        },
        rounds=rounds,
    )
    return row(
        figures.median("pgbroker"),
        "jobs/s",
        [
            against(
                figures,
                "pgbroker",
                "raw",
                what="one INSERT … SELECT unnest of the same rows into one table",
                at_least=0.25,
            ),
            *verdicts(figures, rivals, at_least=1.0),
        ],
        jobs=count,
        rounds=rounds,
        quick=scale.quick,
        versions=versions(),
    )


ROWS = [
    Row(
        name="enqueue-one", what="jobs are enqueued one by one, each in its own commit", measure=_enqueue_one
    ),
    Row(name="enqueue-bulk", what="typed jobs of three fields are enqueued at once", measure=_enqueue_bulk),
]

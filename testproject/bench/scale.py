"""What a claim costs on a large table, beside a small one with the same mix."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import connection, connections

from pgbroker import db, sql
from pgbroker.ids import new_id
from pgbroker.lease import Lease
from pgbroker.lifecycle.claim import claim
from pgbroker.lifecycle.settle import settle
from pgbroker.outcomes import Ended
from pgbroker.states import AttemptState
from pgbroker.testing import guards_off
from testproject.bench import jobs, stage
from testproject.bench.compare import NotRun, percentile, ratio, row, tell
from testproject.bench.conditions import versions
from testproject.bench.rows import Row, Scale

BATCH = 100
# Of rows that are ready. With the others that makes 160,000: the trees of its indexes are as high as those of
# millions, where a table of some thousands would save a page at each look-up.
SMALL = 50_000
# The plans are asked for before, between and after the timed claims.
EXPLAINED = 6

# Waiting and terminal rows first, so that they stand at the head of the table; each row has its arguments.
_MIX = (
    # status, share of the ready rows, columns that such a row must have
    (1, 0.1, "null, null, null"),
    (10, 2.0, "statement_timestamp() - interval '2 h', null, statement_timestamp() - interval '1 h'"),
    (0, 0.1, "null, statement_timestamp() + interval '1 day' + n * interval '1 ms', null"),
    (2, 1.0, "statement_timestamp() - interval '1 h' + n * interval '1 us', null, null"),
)
_FILL = """
with made as materialized (
    select pgbroker.uuid7_1() as id, n
    from generate_series(1, %(rows)s) as n
),
jobs as (
    insert into pgbroker.job (id, queue_id, job_type_id, status, ready_at, available_at, finished_at)
    select id, %(queue)s, %(type)s, %(status)s, {columns}
    from made
)
insert into pgbroker.job_payload (job_id, args)
select id, jsonb_build_object('v', 1, 'args', jsonb_build_array(n, '2026-11-01', 'x'))
from made
"""


def fill(ready: int, *, using: str) -> None:
    """Make so many ready rows, twice as many terminal ones, and a tenth as many in the future and waiting."""
    stage.empty(using)
    queue, job_type = stage.queue_id(using), stage.type_id(jobs.noop_async, using)
    for status, share, columns in _MIX:
        with guards_off(using=using), connections[using].cursor() as cursor:
            cursor.execute(
                _FILL.format(columns=columns),
                {"rows": int(ready * share), "queue": queue, "type": job_type, "status": status},
            )
    stage.settle_down(using)


class Explaining(db.Session):
    """A session that keeps the plans of what it ran instead of its rows."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias, purpose="bench")
        self.plans: list[dict[str, Any]] = []

    def run(self, statement: sql.Statement, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        explained = dataclasses.replace(
            statement, text=f"explain (analyze, buffers, format json) {statement.text}"
        )
        ((answer,),) = super().run(explained, parameters)
        self.plans.append(answer[0]["Plan"])
        return []

    def buffers(self) -> list[float]:
        """Return how many pages each statement looked at."""
        return [plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in self.plans]


class Table:
    """One of the two tables, and a worker's way of claiming from it: by batches, with its bounds."""

    def __init__(self, alias: str) -> None:
        self.session = db.Session(alias, purpose="bench")
        self.explaining = Explaining(alias)
        self.queue, self.worker = stage.queue_id(alias), new_id()
        self.bounds: dict[int, Any] = {}
        self.milliseconds: list[float] = []

    def _take(self, using: db.Session) -> list[Lease]:
        return claim(
            self.queue,
            limit=BATCH,
            idle=BATCH,
            worker_id=self.worker,
            lease=timedelta(hours=1),
            ageing=timedelta(seconds=60),
            max_crashes=3,
            suspects=1,
            bounds=self.bounds,
            using=using,
        )

    def claim(self) -> None:
        """Time one claim; then settle what it took, as a worker would."""
        began = time.perf_counter()
        leases = self._take(self.session)
        self.milliseconds.append(1000 * (time.perf_counter() - began))
        assert len(leases) == BATCH
        self.bounds[0] = (leases[-1].ready_at, leases[-1].job_id)
        settle(
            [Ended(lease, AttemptState.COMPLETED, lease.leased_at, 0.0) for lease in leases],
            using=self.session,
        )

    def explain(self) -> None:
        """Count the pages of one claim."""
        self._take(self.explaining)

    def close(self) -> None:
        """Close its connections."""
        self.session.drop()
        self.explaining.drop()


@contextmanager
def beside() -> Iterator[str]:
    """Make the second database, and remove it again."""
    settings = connections["beside"].settings_dict
    name = connection.ops.quote_name(settings["NAME"])
    with connection.cursor() as cursor:
        cursor.execute("select rolcreatedb from pg_roles where rolname = current_user")
        if cursor.fetchone() != (True,):
            raise NotRun("the role may not create the second database")
    stage.drop_database(settings["NAME"])
    with connection.cursor() as cursor:
        cursor.execute(f"create database {name}")
    try:
        stage.migrate("beside")
        yield "beside"
    finally:
        connections["beside"].close()
        stage.drop_database(settings["NAME"])


def _claim_at_scale(scale: Scale) -> dict[str, Any]:
    ready = scale.count(quick=200_000, full=1_000_000)
    small_ready = min(SMALL, ready)
    rounds = scale.turns(quick=3, full=5)
    # The small table must not run out.
    claims = max(2, min(100, int(0.7 * small_ready / BATCH / rounds)))
    with beside() as small_alias:
        tell(f"filling a table of {int(ready * 3.2):,} rows and one of {int(small_ready * 3.2):,}")
        fill(ready, using="default")
        fill(small_ready, using=small_alias)
        large, small = Table("default"), Table(small_alias)
        slowest: dict[str, list[float]] = {"large": [], "small": []}
        try:
            for number in range(rounds):
                tell(f"round {number + 1} of {rounds}")
                for each in (large, small):
                    each.milliseconds.clear()
                for count in range(claims):
                    large.claim()
                    small.claim()
                    if number < EXPLAINED and count == claims // 2:
                        large.explain()
                        small.explain()
                slowest["large"].append(percentile(large.milliseconds, 0.99))
                slowest["small"].append(percentile(small.milliseconds, 0.99))
        finally:
            large.close()
            small.close()
    stage.empty()
    what = f"a table of {int(small_ready * 3.2):,} rows"
    return row(
        percentile(slowest["large"], 0.5),
        f"ms, p99 of a claim of {BATCH}",
        [
            ratio(f"p99 on {what}", slowest["large"], slowest["small"], at_most=1.5),
            ratio(f"buffers on {what}", large.explaining.buffers(), small.explaining.buffers(), at_most=1.2),
        ],
        buffers=percentile(large.explaining.buffers(), 0.5),
        rows=int(ready * 3.2),
        claims=claims * rounds,
        jobs=ready,
        rounds=rounds,
        quick=scale.quick,
        versions=versions(),
    )


ROWS = [
    Row(
        name="claim-at-scale",
        what="a claim with 1,000,000 ready jobs, 2,000,000 terminal, 100,000 future and 100,000 waiting ones at the "
        "head of the table",
        measure=_claim_at_scale,
    )
]

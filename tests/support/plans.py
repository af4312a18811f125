"""Plans of statements as workers run them: what fills the tables, what explains, what reads a plan."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection

from pgbroker import db, sql
from pgbroker.lifecycle.claim import claim
from tests.support.jobs import AGEING, LEASE, WORKER, guards_off, queue_id, type_id
from tests.support.sessions import second_session

# Of 100 rows 95 are over: 85 completed, 5 failed, 5 dead; 2 scheduled and due, 2 ready, 1 ready or running.
LOAD = """
    insert into pgbroker.job (
        id, queue_id, job_type_id, tenant_id, status, priority, ready_at, available_at, attempt_count, lease_token,
        worker_id, leased_at, lease_expires_at, deadline_at, finished_at
    )
    select
        %(id)s, %(queue)s, %(type)s, 'tenant-' || n %% %(tenants)s, status, (n / 7 %% 3) * 10,
        case when status <> 0 then statement_timestamp() - interval '1 h' + n * interval '1 us' end,
        case when status = 0 then statement_timestamp() - interval '1 h' + n * interval '1 us' end,
        case when status >= 3 then 1 else 0 end, case when status >= 3 then 1 else 0 end,
        case when status = 3 then gen_random_uuid() end,
        statement_timestamp() - interval '1 h',
        case when status = 3 then statement_timestamp() - interval '1 min' end,
        case when status = 0 and n %% 200 < 100 then statement_timestamp() - interval '1 s' end,
        case when status >= 10 then statement_timestamp() end
    from (
        select n, (case
            when n %% 100 < 85 then 10 when n %% 100 < 90 then 11 when n %% 100 < 95 then 12
            when n %% 100 < 97 then 0 when n %% 100 < 99 then 2 when n %% 200 < 100 then 2 else 3
        end)::smallint as status
        from generate_series(1, %(rows)s) as n
    ) as row
"""


def load(rows: int, tenants: int = 5, *, ids: str = "pgbroker.uuid7_1()") -> None:
    """Fill the table with one statement, as a bulk enqueue would, and tell the planner nothing."""
    with guards_off(), connection.cursor() as cursor:
        # What earlier tests have deleted is still in the indexes, and would be counted as read.
        cursor.execute("select exists (select from pgbroker.job)")
        if not cursor.fetchone()[0]:
            cursor.execute("truncate pgbroker.job cascade")
        cursor.execute(
            LOAD.replace("%(id)s", ids),
            {"rows": rows, "tenants": tenants, "queue": queue_id(), "type": type_id()},
        )
        cursor.execute(
            "insert into pgbroker.job_payload (job_id, tenant_id, args) select id, tenant_id, '{}' from pgbroker.job"
        )
        cursor.execute(
            "insert into pgbroker.queue_priority (queue_id, priority) values (%s, 10), (%s, 20)",
            [queue_id()] * 2,
        )


def analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("analyze pgbroker.job")
        cursor.execute("analyze pgbroker.job_payload")
        cursor.execute("analyze pgbroker.job_tag")


EXPLAIN = "explain (analyze, buffers, format json)"


class Explained:
    """The plans of the statements that were run, instead of their rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans: list[dict[str, Any]] = []
        self._on = True
        self._prepared: set[tuple[int, str]] = set()
        self._executed = ""
        self._load, self._fetch = sql.load, db.fetch
        monkeypatch.setattr(sql, "load", self._load_explained)
        monkeypatch.setattr(db, "fetch", self._fetch_plan)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run statements as ever, for their rows."""
        self._on = False
        yield
        self._on = True

    def _load_explained(self, name: str) -> sql.Statement:
        statement = self._load(name)
        if not self._on:
            return statement
        text = self._executed if statement.kept else statement.text
        return dataclasses.replace(statement, text=f"{EXPLAIN} {text}")

    def _fetch_plan(
        self, name: str, parameters: Any, row: Any, *, meanwhile: Any = None, using: Any = "default"
    ) -> list[Any]:
        if not self._on:
            return self._fetch(name, parameters, row, using=using)
        if (statement := self._load(name)).kept:
            self._executed = self._execution(statement, parameters, using)
        ((answer,),) = self._fetch(name, parameters, list, using=using)
        answer = json.loads(answer) if isinstance(answer, str) else answer
        self.plans.append(answer[0]["Plan"])
        # Of a settle at least one row says how many were settled.
        return [(0, None, None, None)] if name == "settle" else []

    def _execution(self, statement: sql.Statement, parameters: Any, session: db.Session) -> str:
        """
        Write the execution of a prepared statement, prepared once a session.

        Of a statement itself EXPLAIN shows the plan for these very parameters, whatever plan is kept.
        """
        raw = session.connection
        if (id(raw), statement.name) not in self._prepared:
            places = {name: f"${place}" for place, name in enumerate(statement.parameters, 1)}
            raw.execute(f"prepare plan_of_{statement.name} as {statement.text % places}".encode())
            self._prepared.add((id(raw), statement.name))
        values = [psycopg.sql.Literal(parameters[name]).as_string(raw) for name in statement.parameters]
        return f"execute plan_of_{statement.name}({', '.join(values)})".replace("%", "%%")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Walk a plan from its top."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def executed(plan: dict[str, Any]) -> dict[str, Any]:
    """Leave out what was never run: before PostgreSQL 16 a half that is false from the start stays in the plan."""
    below = [executed(each) for each in plan.get("Plans", ()) if each["Actual Loops"]]
    return {**plan, "Plans": below}


def ways(plan: dict[str, Any], table: str = "job") -> set[str]:
    """Tell by which ways a plan comes to a table: names of indexes, or the kind of scan."""
    found = set()
    for node in nodes(plan):
        if node.get("Relation Name") == table and node["Node Type"] not in (
            "ModifyTable",
            "Bitmap Heap Scan",
        ):
            found.add(node.get("Index Name", node["Node Type"]))
        if node["Node Type"] == "Bitmap Heap Scan" and node["Relation Name"] == table:
            found |= {each["Index Name"] for each in nodes(node) if each["Node Type"] == "Bitmap Index Scan"}
    return found


def joins(plan: dict[str, Any]) -> set[str]:
    return {node["Node Type"] for node in nodes(plan)} & {"Hash Join", "Merge Join"}


def compared(plan: dict[str, Any]) -> int:
    """Tell how many pairs of rows were put together and did not fit: all with all, in a bad plan."""
    return sum(node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"] for node in nodes(plan))


def whole_scans(plan: dict[str, Any]) -> set[str]:
    """Name the indexes of jobs that are read from one end to the other."""
    return {
        node["Index Name"]
        for node in nodes(plan)
        if node.get("Relation Name") == "job" and "Index Name" in node and "Index Cond" not in node
    }


def buffers(plan: dict[str, Any]) -> int:
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


@dataclasses.dataclass
class World:
    """What the statements are asked about; its numbers are read before the statements are explained."""

    session: db.Session
    queue: int = dataclasses.field(default_factory=queue_id)
    type: int = dataclasses.field(default_factory=type_id)

    def take(self, limit: int, **bounds: Any) -> list[Any]:
        return claim(
            self.queue, limit=limit, idle=limit, quick=[self.type], worker_id=WORKER, lease=LEASE, ageing=AGEING,
            max_crashes=3, suspects=1, using=self.session, **bounds,
        )  # fmt: skip


def forget(superuser: psycopg.Connection, tables: Sequence[str]) -> None:
    """Let the planner know nothing of these tables, as when they have just been made."""
    named = ",".join(f"'pgbroker.{table}'::regclass" for table in tables)
    superuser.execute(f"delete from pg_statistic where starelid in ({named})")
    superuser.execute(f"update pg_class set relpages = 0, reltuples = -1 where oid in ({named})")
    superuser.execute(
        "update pg_class set relpages = 1, reltuples = 0 from pg_index "
        f"where pg_class.oid = indexrelid and indrelid in ({named})"
    )


class Meter:
    """Count the rows of these tables that work reads, by the index that they are found by, or of the table."""

    def __init__(self, session: db.Session, tables: Sequence[str]) -> None:
        self.session, self.tables = session, list(tables)

    def read(self, work: Callable[[], object]) -> Counter[str]:
        """Do work on the session or on Django's connection; returns what was read."""
        before = self._rows_read()
        work()
        return self._rows_read() - before

    def _rows_read(self) -> Counter[str]:
        self.session.connection.execute("select pg_stat_force_next_flush()")
        with connection.cursor() as cursor:
            cursor.execute("select pg_stat_force_next_flush()")
        with second_session() as watcher:
            found = watcher.execute(
                "select relname, seq_tup_read from pg_stat_user_tables "
                "where schemaname = 'pgbroker' and relname = any (%s) "
                "union all select indexrelname, idx_tup_read from pg_stat_user_indexes "
                "where schemaname = 'pgbroker' and relname = any (%s)",
                (self.tables, self.tables),
            )
            return Counter({name: count or 0 for name, count in found.fetchall()})


def pretend_empty(superuser: psycopg.Connection) -> None:
    """Leave the statistics of a vacuum that ran beside a large uncommitted insert: pages, and not one row."""
    superuser.execute(
        "update pg_class set relpages = greatest(1, pg_relation_size(oid) / 8192), reltuples = 0 "
        "where oid in ('pgbroker.job'::regclass, 'pgbroker.job_payload'::regclass)"
    )

"""
Plans of the hot statements, pinned: as the plain role, through the very path that workers use.

EXPLAIN (ANALYZE, BUFFERS) goes in front of the statement itself, so scope, plan settings and parameters are
those of a worker's session. 95 of 100 rows are over, of several tenants, in three priorities.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import connection

from pgbroker import db, sql
from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.claim import claim
from pgbroker.lifecycle.expire import expire
from pgbroker.lifecycle.heartbeat import heartbeat
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.reap import reap
from pgbroker.lifecycle.release import release
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.settle import settle
from pgbroker.models import Job
from pgbroker.policy.backoff import Backoff
from pgbroker.states import Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import AGEING, LEASE, WORKER, completed, guards_off, queue_id, type_id
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db(transaction=True)

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


@pytest.fixture
def session() -> Iterator[db.Session]:
    """A worker's own connection."""
    session = db.Session("default", purpose="plans")
    yield session
    session.drop()


class Explained:
    """The plans of the statements that were run, instead of their rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans: list[dict[str, Any]] = []
        self._on = True
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
        return dataclasses.replace(
            statement, text=f"explain (analyze, buffers, format json) {statement.text}"
        )

    def _fetch_plan(self, name: str, parameters: Any, row: Any, *, using: Any = "default") -> list[Any]:
        if not self._on:
            return self._fetch(name, parameters, row, using=using)
        ((answer,),) = self._fetch(name, parameters, list, using=using)
        answer = json.loads(answer) if isinstance(answer, str) else answer
        self.plans.append(answer[0]["Plan"])
        return []


@pytest.fixture
def explained(monkeypatch) -> Explained:
    """Explain what is run; `paused()` around what prepares it."""
    explained = Explained(monkeypatch)
    explained._on = False
    queue_id(), type_id()
    explained._on = True
    return explained


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Walk a plan from its top."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def ways(plan: dict[str, Any], table: str = "job") -> set[str]:
    """Tell by which ways a plan comes to a table: names of indexes, or the kind of scan."""
    found = set()
    for node in nodes(plan):
        if node.get("Relation Name") == table and node["Node Type"] not in (
            "ModifyTable",
            "Bitmap Heap Scan",
        ):
            found.add(node.get("Index Name", node["Node Type"]))
        if node["Node Type"] == "Bitmap Index Scan" and node["Index Name"].startswith(f"{table}_"):
            found.add(node["Index Name"])
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


def of(status: Status, limit: int) -> list[Any]:
    with scope_all():
        return list(Job.objects.filter(status=status).order_by("id").values_list("pk", flat=True)[:limit])


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


@pytest.mark.parametrize("tenants", [1, 2])
@pytest.mark.parametrize("limit", [1, 500])
def test_statistics_of_few_tenants_do_not_lead_a_claim_into_the_tenants_index(
    tenants, limit, session, explained
):
    """
    PostgreSQL 18 may skip through (tenant_id, id) for an id: as good with one tenant, a disaster with thousands.

    Ids that do not stand in the table's order make it look better than the primary key.
    """
    with explained.paused():
        world = World(session)
        load(1_000, tenants, ids="gen_random_uuid()")
        analyze()

    world.take(limit)

    (plan,) = explained.plans
    assert ways(plan) == {"job_claim", "job_pkey"}


def pretend_empty(superuser: psycopg.Connection) -> None:
    """Leave the statistics of a vacuum that ran beside a large uncommitted insert: pages, and not one row."""
    superuser.execute(
        "update pg_class set relpages = greatest(1, pg_relation_size(oid) / 8192), reltuples = 0 "
        "where oid in ('pgbroker.job'::regclass, 'pgbroker.job_payload'::regclass)"
    )


@pytest.mark.parametrize("rows", [0, 1_000, 100_000])
def test_every_hot_statement_keeps_its_index_at_every_size(rows, session, explained, superuser):
    """Also right after a bulk load, and where statistics say that the table is empty."""
    with explained.paused():
        world = World(session)
        load(rows)
    for statistics in ("none", "true", "empty"):
        if statistics == "true":
            analyze()
        elif statistics == "empty":
            pretend_empty(superuser)
        with explained.paused():
            one, many = world.take(1), world.take(500)
            over, ready = of(Status.FAILED, 200), of(Status.READY, 200)

        def check(index: str, work: Callable[[], object]) -> None:
            work()
            (plan,) = explained.plans
            explained.plans.clear()
            assert index in ways(plan)
            # Where there is not a row, another index that has the id may cost the same: nothing.
            assert ways(plan) <= {index, "job_pkey"} or rows == 0
            assert joins(plan) == whole_scans(plan) == set()
            assert compared(plan) <= 50_000

        for limit in (1, 500):
            check("job_claim", partial(world.take, limit))
            check("job_due", partial(promote, [world.queue], limit=limit, using=session))
            check("job_deadline", partial(expire, limit=limit, using=session))
            check("job_lease", partial(reap, limit=limit, max_crashes=3, backoff=Backoff(), using=session))
        for leases in filter(None, (one, many)):
            half = len(leases) // 2
            check("job_pkey", partial(heartbeat, leases, lease=LEASE, using=session))
            check(
                "job_pkey",
                partial(release, [(each, None) for each in leases[: half + 1]], code="x", using=session),
            )
            check("job_pkey", partial(settle, [completed(each) for each in leases], using=session))
        if rows > 1_000:
            with tenant_context("tenant-1"):
                for number in (1, 200):
                    check("job_pkey", partial(cancel_many, ready[:number]))
                    check("job_pkey", partial(retry_many, over[:number]))


def test_a_claim_with_its_bound_stays_cheap_beside_a_held_snapshot(session, explained):
    """Vacuum may not remove what the snapshot sees: without the bound each claim reads all that went before."""
    costs = []
    bounds: dict[int, Any] = {}
    with second_session() as holder, holder.transaction():
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from pgbroker.job")
        with explained.paused():
            world = World(session)
        for _ in range(4):
            with explained.paused(), guards_off(), connection.cursor() as cursor:
                cursor.execute(
                    "insert into pgbroker.job (id, queue_id, job_type_id, tenant_id, status, ready_at) "
                    "select pgbroker.uuid7_1(), %s, %s, 'tenant-' || n %% 3, 2, "
                    "statement_timestamp() + n * interval '1 us' from generate_series(1, 1020) as n",
                    [world.queue, world.type],
                )
            with explained.paused():
                for _ in range(2):
                    leases = world.take(500, bounds=bounds)
                    settle([completed(lease) for lease in leases], using=session)
                    bounds[0] = (leases[-1].ready_at, leases[-1].job_id)
            world.take(10, bounds=bounds)
            world.take(10)
            costs.append([buffers(plan) for plan in explained.plans])
            explained.plans.clear()

    with_bound, without = zip(*costs, strict=True)
    assert max(with_bound) < 1.5 * min(with_bound) + 40
    assert without[-1] > without[0] + 30
    assert without[-1] > with_bound[-1] + 30

"""
Plans of the hot statements, pinned: as the plain role, through the very path that workers use.

EXPLAIN (ANALYZE, BUFFERS) goes in front of the statement itself, so scope, plan settings and parameters are
those of a worker's session. 95 of 100 rows are over, of several tenants, in three priorities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.db import connection

from pgbroker import reports
from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.expire import expire
from pgbroker.lifecycle.heartbeat import heartbeat
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.reap import reap
from pgbroker.lifecycle.release import release
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.settle import settle
from pgbroker.models import Job
from pgbroker.overview import list_failing
from pgbroker.policy.backoff import Backoff
from pgbroker.states import Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import LEASE, completed, guards_off, queue_id, type_id
from tests.support.plans import (
    World,
    analyze,
    buffers,
    compared,
    executed,
    joins,
    load,
    pretend_empty,
    ways,
    whole_scans,
)
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def statistics_of_our_own(transactional_db: None) -> Iterator[None]:
    """Keep autovacuum from looking at the tables whenever it likes, and forget what it saw in other tests."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select format('alter table %s ', oid::regclass) from pg_class "
            "where relnamespace = 'pgbroker'::regnamespace and relkind = 'r'"
        )
        alterations = [alter for (alter,) in cursor.fetchall()]
        cursor.execute(";".join(f"{alter} set (autovacuum_enabled = false)" for alter in alterations))
        load(100)
        analyze()
        with guards_off():
            # No dead rows either.
            cursor.execute(
                "truncate pgbroker.job, pgbroker.job_payload, pgbroker.job_tag, pgbroker.execution"
            )
            cursor.execute("delete from pgbroker.queue_priority where priority in (10, 20)")
        yield
        cursor.execute(";".join(f"{alter} reset (autovacuum_enabled)" for alter in alterations))


def of(status: Status, limit: int) -> list[Any]:
    with scope_all():
        return list(Job.objects.filter(status=status).order_by("id").values_list("pk", flat=True)[:limit])


@pytest.mark.own_session
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


@pytest.mark.parametrize("rows", [0, 1_000, 100_000])
def test_every_hot_statement_keeps_its_index_at_every_size(rows, session, explained, superuser):
    """Also right after a bulk load, and where statistics say that the table is empty."""
    with explained.paused():
        world = World(session)
        load(rows)
    for statistics in ("old", "true", "empty"):
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
            assert compared(plan) <= 50_000, plan

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


def test_plans_that_a_session_keeps_from_an_empty_table_serve_a_full_one(session, explained):
    with explained.paused():
        world = World(session)
        load(100)
        (first,) = world.take(1)
        with guards_off(), connection.cursor() as cursor:
            cursor.execute("truncate pgbroker.job, pgbroker.job_payload")
        analyze()
    world.take(1)
    settle([completed(first)], using=session)
    explained.plans.clear()
    with explained.paused():
        load(50_000)
        leases = world.take(500)

    world.take(500)
    settle([completed(each) for each in leases], using=session)

    kept = session.connection.execute(
        "select name, generic_plans from pg_prepared_statements where name like 'plan_of_%'"
    ).fetchall()
    assert dict(kept) == {f"plan_of_{name}": 2 for name in ("claim", "settle")}
    claimed, settled = explained.plans
    assert ways(claimed) == {"job_claim", "job_pkey"}
    assert ways(settled) == {"job_pkey"}
    for plan in explained.plans:
        assert joins(plan) == whole_scans(plan) == set()
        assert compared(plan) <= 50_000, plan


@pytest.mark.parametrize("statistics", ["old", "true"])
def test_a_list_by_tag_goes_by_its_index_whatever_else_is_asked_for(statistics, session, explained):
    """As the plain role under the policy, for one tenant and for all; an array's index would not serve there."""
    with explained.paused():
        load(5_000)
        with guards_off(), connection.cursor() as cursor:
            cursor.execute(
                "insert into pgbroker.job_tag (tag, tenant_id, job_id) select tag, tenant_id, id from ("
                "    select job.*, row_number() over (order by id) as n from pgbroker.job"
                ") as job cross join lateral unnest(array['common', 'batch:' || n / 100]) as tag"
            )
        if statistics == "true":
            analyze()
    for tag in ("common", "batch:7", "nobody"):
        for status in (None, Status.READY, Status.SCHEDULED):
            with tenant_context("tenant-1"):
                reports.list_jobs(tag=tag, status=status, limit=51, using="default")
            with scope_all():
                reports.list_jobs(tag=tag, status=status, limit=51, using="default")

    assert len(explained.plans) == 18
    for plan in explained.plans:
        assert ways(plan, "job_tag") == {"job_tag_pkey"}
        assert "Seq Scan" not in ways(plan)
    # Of a tag that every job has, all may be looked at for a rare status: six plans. So may they with old statistics.
    for plan in explained.plans[6:]:
        assert buffers(plan) < 3_000 or statistics == "old"


@pytest.mark.parametrize("statistics", ["old", "empty", "true"])
def test_the_list_of_a_tenant_reads_its_jobs_alone(statistics, session, explained, superuser):
    with explained.paused():
        load(20_000, tenants=101)
        if statistics == "true":
            analyze()
        elif statistics == "empty":
            pretend_empty(superuser)
        with tenant_context("tenant-7"):
            page = reports.list_jobs(limit=51, using="default")
        assert len(page) == 51
        assert [each.id for each in page] == sorted((each.id for each in page), reverse=True)
    with tenant_context("tenant-7"):
        for status in (None, Status.COMPLETED, Status.READY):
            reports.list_jobs(status=status, limit=51, using="default")
        reports.list_jobs(after=page[-1].id, limit=51, using="default")
        with explained.paused():
            failed = reports.list_jobs(status=Status.FAILED, limit=51, using="default")
        assert {(each.tenant_id, each.status) for each in failed} == {("tenant-7", Status.FAILED)}

    for plan in map(executed, explained.plans):
        assert ways(plan, "job_payload") == {"job_payload_tenant"}
        assert ways(plan) <= {"job_pkey", "job_payload_tenant"}
        assert whole_scans(plan) == set()
        assert buffers(plan) < 2_000


@pytest.mark.own_session
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


def test_what_fails_is_found_without_reading_what_went_well(session, explained):
    with explained.paused(), guards_off(), connection.cursor() as cursor:
        cursor.execute(
            "insert into pgbroker.execution (job_id, tenant_id, attempt_no, state) "
            "select gen_random_uuid(), 'default', 1, case when n %% 2000 = 0 then 2 else 1 end "
            "from generate_series(1, %s) as n",
            [50_000],
        )
        cursor.execute(
            "select sum(pg_relation_size(inhrelid)) / 8192 from pg_inherits "
            "where inhparent = 'pgbroker.execution'::regclass"
        )
        (pages,) = cursor.fetchone()

    with scope_all():
        list_failing(using=session)

    (plan,) = explained.plans
    assert buffers(plan) < pages / 3


def test_depths_are_counted_up_to_their_bound_and_by_an_index(session, explained):
    """A deep queue among others: counted in no order, each of the others would cost a look at the whole table."""
    with explained.paused(), guards_off(), connection.cursor() as cursor:
        cursor.execute(
            "insert into pgbroker.job (id, queue_id, job_type_id, tenant_id, status, ready_at, available_at) "
            "select pgbroker.uuid7_1(), %s, %s, 'tenant-' || n %% 3, n %% 2 * 2, "
            "case when n %% 2 = 1 then statement_timestamp() end, "
            "case when n %% 2 = 0 then statement_timestamp() + interval '1 day' end "
            "from generate_series(1, 50000) as n",
            [queue_id(), type_id()],
        )
        queue_id("plans-shallow")
        analyze()

    for scope in (scope_all(), tenant_context("tenant-1")):
        with scope:
            reports.list_depths(using="default")
            reports.list_depths(using=session)

    assert len(explained.plans) == 4
    for plan in explained.plans:
        assert "Seq Scan" not in ways(plan)

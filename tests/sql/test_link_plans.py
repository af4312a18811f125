"""
What resolving, repairing and adding edges read, whatever the size of the tables and whatever the planner knows.

Most of it runs in functions and triggers, whose plans nobody sees: counted are the rows that were read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection

from pgbroker import db
from pgbroker.lease import Lease
from pgbroker.lifecycle.add_edge import add_edge
from pgbroker.lifecycle.cancel_group import cancel_group
from pgbroker.lifecycle.reconcile import START, reconcile, resolve_deferred
from pgbroker.lifecycle.resolve import resolve
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.settle import settle
from pgbroker.lifecycle.unblock import unblock_many
from pgbroker.tenancy import scope_all
from tests.support.jobs import claim_many, completed, failed, guards_off, queue_id, type_id
from tests.support.links import TYPE, count_all
from tests.support.plans import Meter, forget

pytestmark = pytest.mark.django_db(transaction=True)

ROWS = 100_000
TABLES = (
    "job",
    "job_payload",
    "job_state",
    "job_dependency",
    "deferred_reference",
    "unresolved",
    "run_group",
)
# A hundred groups of a thousand members, each waiting for the member before it and for one of a thousand jobs outside.
FILL = """
    insert into pgbroker.run_group (id, tenant_id, name, state, sealed_at)
    select pgbroker.uuid7_1(), 'default', 'g' || n, case when n % 2 = 0 then 1 else 0 end,
        case when n % 2 = 0 then statement_timestamp() end
    from generate_series(1, {rows} / 1000) as n;
    insert into pgbroker.job (
        id, queue_id, job_type_id, tenant_id, status, ready_at, run_group_id, name, finished_at
    )
    select pgbroker.uuid7_1(), {queue}, {type}, 'default', case when n % 3 = 0 then 10 else 1 end,
        case when n % 3 = 0 then statement_timestamp() end,
        groups.ids[1 + n / 1000], 'm' || n % 1000, case when n % 3 = 0 then statement_timestamp() end
    from generate_series(0, {rows} - 1) as n
    cross join (select array_agg(id order by name) as ids from pgbroker.run_group) as groups;
    insert into pgbroker.job (id, queue_id, job_type_id, tenant_id, status, ready_at)
    select pgbroker.uuid7_1(), {queue}, {type}, 'default', 2,
        statement_timestamp() + n * interval '1 us'
    from generate_series(1, 1000) as n;
    insert into pgbroker.job (id, queue_id, job_type_id, tenant_id, status, ready_at)
    select pgbroker.uuid7_1(), {plain}, {type}, 'default', 2, statement_timestamp() + n * interval '1 us'
    from generate_series(1, 1000) as n;
    insert into pgbroker.job_payload (job_id, tenant_id, args) select id, tenant_id, '{{}}' from pgbroker.job;
    insert into pgbroker.job_dependency (dependent_id, prerequisite_id, kind, tenant_id)
    select member.id, outside.ids[1 + (row_number() over ()) % 1000], 0, 'default'
    from pgbroker.job as member
    cross join (select array_agg(id) as ids from pgbroker.job where status = 2 and queue_id = {queue}) as outside
    where member.status = 1;
    insert into pgbroker.deferred_reference (dependent_id, group_name, deadline_at, expired_at)
    select id, 'never' || name, statement_timestamp(), statement_timestamp() from pgbroker.job where status = 10;
    insert into pgbroker.deferred_reference (dependent_id, group_name, deadline_at)
    select id, 'never' || name, statement_timestamp() + interval '1 day' from pgbroker.job where status = 1;
    delete from pgbroker.edge_check;
"""


@pytest.fixture
def full(transactional_db: None, superuser: psycopg.Connection) -> Iterator[None]:
    """
    Fill the tables, while a vacuum comes by that sees pages and not one row: that is what the planner knows then.

    Autovacuum may not look at them when it likes.
    """
    names = [f"pgbroker.{table}" for table in TABLES]
    with guards_off(), connection.cursor() as cursor:
        cursor.execute(";".join(f"alter table {name} set (autovacuum_enabled = false)" for name in names))
        cursor.execute("alter table pgbroker.job_dependency disable trigger edges_made")
    with guards_off(), connection.cursor() as cursor:
        cursor.execute(FILL.format(rows=ROWS, queue=queue_id(), plain=queue_id("plain"), type=type_id()))
        superuser.execute(f"vacuum (truncate off) {', '.join(names)}")
    yield
    with connection.cursor() as cursor:
        cursor.execute("alter table pgbroker.job_dependency enable trigger edges_made")
        cursor.execute(";".join(f"alter table {name} reset (autovacuum_enabled)" for name in names))


def some(sql: str, *parameters: Any) -> list[UUID]:
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return [job_id for (job_id,) in cursor.fetchall()]


def test_what_is_read_follows_from_what_is_asked_for_and_not_from_the_tables(full, session, superuser):
    assert count_all()["job_dependency"] > ROWS / 2
    everything = Meter(session, TABLES).read(
        lambda: session.connection.execute("select count(name) from pgbroker.job")
    )
    assert everything.total() > ROWS, "the meter would tell of a look at everything"
    for place, statistics in enumerate(("of a vacuum beside the insert", "none", "true")):
        groups = some(
            "select id from pgbroker.run_group where state = 1 order by name limit 2 offset %s", 2 * place
        )
        members = some("select id from pgbroker.job where run_group_id = %s and status = 1", groups[1])
        plain = [claim_many(50, queue="plain", using=session) for _ in range(2)]
        (parent,) = claim_many(1, using=session)
        (broken,) = claim_many(1, using=session)
        if statistics == "none":
            forget(superuser, TABLES)
        elif statistics == "true":
            superuser.execute(f"analyze {', '.join(f'pgbroker.{table}' for table in TABLES)}")
        too_dear = too_dear_of(Meter(session, TABLES), plain, parent, broken, groups[0], members)
        assert too_dear == {}, f"{statistics}: {too_dear}"


def too_dear_of(
    meter: Meter, plain: list[list[Lease]], parent: Lease, broken: Lease, group: UUID, members: list[UUID]
) -> dict[str, list[tuple[str, int]]]:
    """Do one thing after the other; returns by which way those that read too much did so."""
    session = meter.session
    too_dear: dict[str, list[tuple[str, int]]] = {}

    def enqueue(depends_on: list[Any], **options: Any) -> None:
        rows = json.dumps([{"job_type": TYPE, "depends_on": depends_on, **options}])
        db.fetch("enqueue_many", {"jobs": rows}, tuple, using=session)

    def measure(what: str, most: int, work: Callable[[], object]) -> None:
        if (rows := meter.read(work)).total() > most:
            too_dear[what] = rows.most_common(3)

    # Sixty-six thousand edges are no concern of jobs that nobody waits for: each is read some four times.
    measure(
        "settle plain jobs", 10 * 50, lambda: settle([completed(lease) for lease in plain[0]], using=session)
    )
    measure("settle plain jobs that failed", 10 * 50, lambda: settle(
        [failed(lease, permanent=True) for lease in plain[1]], using=session
    ))  # fmt: skip
    # Sixty-seven dependents of a job, and as many edges, each read a few times.
    measure("settle a prerequisite", 15 * 67, lambda: settle([completed(parent)], using=session))
    measure(
        "settle one that failed", 30 * 67, lambda: settle([failed(broken, permanent=True)], using=session)
    )
    # It takes back what it brought down: each dependent and its reason is read once.
    measure("retry it", 5 * 67, lambda: retry_many([broken.job_id], using=session))
    measure("a pass", 100 * 67, lambda: resolve(limit=500, using=session))
    measure("a page of the reconciler", 50 * 100, lambda: reconcile(after=START, limit=100, using=session))
    # Thirty-three thousand that have expired come before them.
    measure("a page of references", 5 * 100, lambda: resolve_deferred(limit=100, using=session))
    measure("wait for jobs", 20 * 100, lambda: enqueue([str(job_id) for job_id in members[:100]]))
    names = [{"group": "g51", "job": f"m{number}"} for number in range(1, 150) if number % 3]
    measure("wait for jobs by name", 20 * 100, lambda: enqueue(names))
    measure("join a group", 1_300, lambda: enqueue([], group="g51", name=f"new {len(members)} {group}"))
    # What waits for it is deeper with it: a job with a hundred edges, each of which says so.
    measure("add an edge", 1_500, lambda: add_edge(members[0], [str(members[1])], using=session))
    measure("unblock", 10, lambda: unblock_many(members[:1], using=session))
    measure("cancel of a group, a bite of it", 100 * 50, lambda: cancel_group(group, limit=50, using=session))

    return too_dear

"""
What a scheduler, the upkeep and the admin read of schedules, whatever their number and whatever the planner knows.

Half of it runs in functions, whose plans nobody sees: counted are the rows that were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from pgbroker.lifecycle.dispatch import dispatch
from pgbroker.lifecycle.take_due import hold_schedule, next_schedule, take_due
from pgbroker.lifecycle.trim_schedule_runs import trim_schedule_runs
from pgbroker.overview import TROUBLED_MAX, list_troubled_schedules
from pgbroker.policy.cron import zones
from pgbroker.reports import read_schedule_depth
from pgbroker.schedules import operate
from pgbroker.schedules.decide import decide
from pgbroker.schedules.remove import delete
from pgbroker.schedules.sync import drift
from pgbroker.schedules.tick import replan
from pgbroker.tenancy import scope_all
from tests.support.jobs import TYPE, guards_off, queue_id, type_id
from tests.support.plans import Meter, forget

pytestmark = pytest.mark.django_db(transaction=True)

SCHEDULES, RUNS_EACH = 10_000, 5
TABLES = ("schedule", "schedule_run", "job", "run_group")
PAGE = 50
# A twentieth of them is due, and each policy of overlap is as frequent. Every other occurrence of the last tick lives.
FILL = """
    insert into pgbroker.schedule (
        id, tenant_id, name, expression, time_zone, zone_rules, template, overlap, watermark, next_run_at,
        enabled, paused_at
    )
    select
        pgbroker.uuid7_1(), 'default', 's' || n, '0 0 29 2 *', 'UTC', '{rules}',
        '{{"jobs": [{{"job_type": "{type}", "queue": "default", "args": {{"v": 1, "args": [], "kwargs": {{}}}}}}]}}',
        (array['allow', 'skip', 'buffer_one', 'cancel_other'])[1 + n % 4],
        statement_timestamp() - interval '1 hour',
        case
            when n % 100 = 1 then null
            when n % 20 = 0 then statement_timestamp() - n * interval '1 ms'
            else statement_timestamp() + n * interval '1 minute'
        end,
        n % 200 <> 1,
        case when n % 200 = 101 then statement_timestamp() end
    from generate_series(1, {schedules}) as n;
    insert into pgbroker.job (id, queue_id, job_type_id, tenant_id, status, ready_at, finished_at)
    select pgbroker.uuid7_1(), {queue}, {type_id}, 'default', case when n % 2 = 0 then 2 else 10 end,
        statement_timestamp() + n * interval '1 us', case when n % 2 = 1 then statement_timestamp() end
    from generate_series(1, {schedules}) as n;
    insert into pgbroker.schedule_run (schedule_id, scheduled_for, tenant_id, state, job_id, created_at)
    select of.id, statement_timestamp() - back * interval '30 days', 'default', 'created',
        case when back = 1 then jobs.ids[place] else gen_random_uuid() end,
        statement_timestamp() - back * interval '30 days'
    from (select id, row_number() over (order by id) as place from pgbroker.schedule) as of
    cross join (select array_agg(id order by id) as ids from pgbroker.job) as jobs
    cross join generate_series({runs_each}, 1, -1) as back;
"""


TROUBLED = {f"s{thousand * 1000 + kind}" for thousand in (0, 2, 4, 6, 8) for kind in (2, 3, 4)}
# Of each five: overdue, failing, and disabled by a pass. Many are stopped by hand, some of which had failed.
TROUBLE = """
    update pgbroker.schedule set next_run_at = statement_timestamp() - interval '30 minutes'
    where name in ('s2', 's2002', 's4002', 's6002', 's8002');
    update pgbroker.schedule set failure_count = 3, failed_at = statement_timestamp()
    where name in ('s3', 's2003', 's4003', 's6003', 's8003');
    update pgbroker.schedule set enabled = false, next_run_at = null, disabled_reason = '[invalid_cron] not one'
    where name in ('s4', 's2004', 's4004', 's6004', 's8004');
"""


@pytest.fixture
def full(transactional_db: None) -> Iterator[None]:
    """Fill the tables, and let no autovacuum come by."""
    names = [f"pgbroker.{table}" for table in TABLES]
    with guards_off(), connection.cursor() as cursor:
        cursor.execute(";".join(f"alter table {name} set (autovacuum_enabled = false)" for name in names))
    with guards_off(), connection.cursor() as cursor:
        # What earlier tests have deleted is still in the indexes, and would be counted as read.
        cursor.execute(f"truncate {', '.join(names)} cascade")
        cursor.execute(
            FILL.format(
                rules=zones.load("UTC").fingerprint,
                type=TYPE,
                schedules=SCHEDULES,
                runs_each=RUNS_EACH,
                queue=queue_id(),
                type_id=type_id(),
            )
        )
        cursor.execute(TROUBLE)
    yield
    with connection.cursor() as cursor:
        cursor.execute(";".join(f"alter table {name} reset (autovacuum_enabled)" for name in names))


@pytest.fixture
def root(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def test_what_is_read_follows_from_what_is_asked_for_and_not_from_the_tables(full, session, superuser, root):
    meter = Meter(session, TABLES)
    # Some of those that were due may be overdue by now.
    assert {each.name for each in list_troubled_schedules(using=session)} >= TROUBLED
    everything = meter.read(
        lambda: session.connection.execute("select count(template) from pgbroker.schedule")
    )
    assert everything.total() >= SCHEDULES, "the meter would tell of a look at everything"
    frequent = fill_frequent()
    for place, statistics in enumerate(("none", "true")):
        if statistics == "none":
            forget(superuser, TABLES)
        else:
            superuser.execute(f"analyze {', '.join(f'pgbroker.{table}' for table in TABLES)}")
        too_dear = too_dear_of(meter, root, place)
        assert too_dear == {}, f"{statistics}: {too_dear}"
        # What lives of it is read, and nothing that was seen to be over.
        read = meter.read(lambda: hold(frequent))
        assert read.total() <= 5 + 4 * LIVE, (statistics, read.most_common(4))
        ran = meter.read(lambda: operate.run_now(frequent))
        assert ran.total() <= 60 + 10 * LIVE, (statistics, ran.most_common(4))
    # No part of a tick: a page of the admin sorts names, and rules are compared every five minutes.
    assert meter.read(lambda: root.get(reverse("admin:pgbroker_schedule_changelist"))).total() < 3 * SCHEDULES
    assert meter.read(lambda: replan(using=session)).total() <= SCHEDULES


LIVE, OVER = 3, 5_000
# One schedule that has run by the minute for days, and whose occurrences must not overlap.
FREQUENT = """
    update pgbroker.schedule set overlap = 'skip' where id = '{schedule}';
    insert into pgbroker.schedule_run (schedule_id, scheduled_for, tenant_id, state, job_id, seen_over)
    select '{schedule}', statement_timestamp() - n * interval '1 minute', 'default', 'created',
        case when n > {over} then live.ids[n - {over}] else gen_random_uuid() end, n <= {over}
    from generate_series(1, {over} + {live}) as n
    cross join (
        select array_agg(id) as ids from (select id from pgbroker.job where status = 2 limit {live}) as each
    ) as live
"""


def fill_frequent() -> UUID:
    line = operate.get_schedule("s5")
    with guards_off(), connection.cursor() as cursor:
        cursor.execute("delete from pgbroker.schedule_run where schedule_id = %s", [line.id])
        cursor.execute(FREQUENT.format(schedule=line.id, live=LIVE, over=OVER))
    return line.id


def hold(schedule_id: UUID) -> None:
    with transaction.atomic():
        due = hold_schedule(schedule_id, using="default")
    assert due is not None
    assert due.live >= LIVE


def too_dear_of(meter: Meter, root: Client, place: int) -> dict[str, list[tuple[str, int]]]:
    """Do one thing after the other; returns by which way those that read too much did so."""
    session = meter.session
    too_dear: dict[str, list[tuple[str, int]]] = {}
    found = SimpleNamespace(due=[], trimmed=None)

    def measure(what: str, most: int, work: Callable[[], object]) -> None:
        read = meter.read(work)
        if read.total() > most:
            too_dear[what] = read.most_common(4)

    def look() -> None:
        found.due = take_due(limit=PAGE, using=session)

    def trim() -> None:
        found.trimmed = trim_schedule_runs(age=timedelta(days=45), limit=PAGE, using=session)

    def all_tenants() -> None:
        with scope_all():
            operate.list_schedules(after=(name, line.id), limit=PAGE)

    # Some of those that were due may be overdue by now. The one tenant has all schedules that there are.
    for scope in (nullcontext, scope_all):
        with scope():
            measure("troubles", 2 * TROUBLED_MAX, lambda: list_troubled_schedules(using=session))
            read = meter.read(lambda: list_troubled_schedules(using=session))
        assert set(read) <= {"schedule_due", "schedule_failing", "schedule_unreadable"}
    # Former versions of the page before this one may still stand in the index: nobody has come by to clear up.
    measure("next_schedule", 10 + PAGE, lambda: next_schedule(using=session))
    # Itself, by two indexes; the occurrences of each, which are five, and their jobs.
    measure("take_due", PAGE * 20, look)
    assert len(found.due) == PAGE
    decisions = [decide(each, limit=PAGE) for each in found.due]
    measure("dispatch", PAGE * 60, lambda: dispatch(decisions, using=session))
    measure("trim", PAGE * 10, trim)
    assert found.trimmed == (PAGE, PAGE)
    measure("depth", 2 * SCHEDULES // 100 + 2 * PAGE, lambda: read_schedule_depth(using=session))

    name = f"s{100 + place}"
    line = operate.get_schedule(name)
    page = reverse("admin:pgbroker_schedule_change", args=[line.id])
    # With former versions, too.
    measure("by name", 15, lambda: operate.get_schedule(name))
    measure("by id", 15, lambda: operate.get_schedule(line.id))
    measure("history", 20, lambda: operate.history(line.id))
    measure("a page of all tenants", PAGE * 3, all_tenants)
    measure("sync", 30, lambda: drift(using="default"))
    measure("a page of one", PAGE * 3, lambda: operate.list_schedules(after=(name, line.id), limit=PAGE))
    measure("page of the admin", 50, lambda: root.get(page))
    # Nobody has noted yet which of its five are over.
    measure("run now", 60, lambda: operate.run_now(line.id))
    measure("pause", 30, lambda: operate.pause(line.id))
    measure("save", 60, lambda: operate.save(operate.Definition.of(line)))
    measure("delete", 20, lambda: delete(line.id))
    return too_dear

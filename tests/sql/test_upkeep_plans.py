"""Plans of what the upkeep runs: the right index at any size, and no dearer beside a held snapshot."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial

import pytest
from django.db import connection

from pgbroker import db
from pgbroker.lifecycle import expire as expiry
from pgbroker.lifecycle.fold import STEPS, fold
from pgbroker.lifecycle.over_long import find_over_long
from pgbroker.lifecycle.reap import EVERYTHING, reap
from pgbroker.lifecycle.sample import NO_HINTS, Hints, sample, trim_samples
from pgbroker.lifecycle.settle import settle
from pgbroker.lifecycle.tidy import tidy_workers
from pgbroker.policy.backoff import Backoff
from pgbroker.tenancy import scope_all
from tests.support.jobs import LEASE, age, completed, guards_off
from tests.support.leaders import ADA, DUTY, ask
from tests.support.plans import World, analyze, buffers, joins, load, pretend_empty, ways, whole_scans
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db(transaction=True)

NEAR = timedelta(seconds=45)


def sampled(session: db.Session, hints: Hints = NO_HINTS, *, within: timedelta = EVERYTHING) -> Hints | None:
    return sample(DUTY, holder=ADA, epoch=1, lease=LEASE, hints=hints, within=within, using=session)


def over_long(session: db.Session, limit: int = 500) -> object:
    with scope_all():
        return find_over_long(timeout=1.0, grace=timedelta(0), limit=limit, using=session)


def counters_and_samples_and_workers(count: int) -> None:
    """Fill the other tables, old and young rows in turn."""
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into pgbroker.job_counter (job_type_id, queue_id, worker_id, bucket) "
            "select 1, 1, gen_random_uuid(), statement_timestamp() - n * interval '1 s' "
            "from generate_series(1, %s) as n",
            [count],
        )
        cursor.execute(
            "insert into pgbroker.queue_sample (queue_id, sampled_at, ready, scheduled, running, coarse) "
            "select 1, statement_timestamp() - n * interval '10 s', 0, 0, 0, n %% 20 = 0 "
            "from generate_series(1, %s) as n",
            [count],
        )
        cursor.execute(
            "insert into pgbroker.worker (id, name, host, pid, version, queues, slots, started_at, heartbeat_at, "
            "expires_at) select gen_random_uuid(), 'w', 'h', 1, '0', '{}', 1, at, at, at from (select "
            "statement_timestamp() - n * interval '10 min' as at from generate_series(1, %s) as n) as old",
            [count],
        )


@pytest.mark.parametrize("rows", [0, 20_000])
def test_a_duty_comes_to_the_jobs_by_its_index(rows, session, explained, superuser):
    with explained.paused():
        world = World(session)
        ask(ADA)
        load(rows)
        hints = sampled(session)
    for statistics in ("none", "true", "empty"):
        if statistics == "true":
            analyze()
        elif statistics == "empty":
            pretend_empty(superuser)
        with explained.paused():
            world.take(100)

        def check(indexes: set[str], work: Callable[[], object]) -> None:
            work()
            (plan,) = explained.plans
            explained.plans.clear()
            assert ways(plan) <= indexes | {"job_pkey"}
            assert ways(plan) & indexes
            assert joins(plan) == whole_scans(plan) == set()

        db.fetch("adopt", {}, tuple, using=session)
        (plan,) = explained.plans
        explained.plans.clear()
        # From the first entry of an index to the next queue or priority, whatever lies between.
        assert ways(plan) == {"job_claim", "job_due"}
        assert joins(plan) == set()
        assert buffers(plan) < 300
        check({"job_lease"}, partial(over_long, session))
        check({"job_claim", "job_due", "job_lease"}, partial(sampled, session))
        check(
            {"job_claim", "job_due", "job_lease"},
            partial(sampled, session, hints, within=NEAR),
        )
        check({"job_deadline"}, partial(expiry.expire, limit=500, within=NEAR, skip=3, using=session))
        check(
            {"job_lease"},
            partial(reap, limit=500, max_crashes=3, backoff=Backoff(), within=NEAR, skip=3, using=session),
        )


def test_a_page_of_what_is_deleted_or_folded_reads_little_more_than_itself(session, explained):
    with explained.paused():
        counters_and_samples_and_workers(20_000)
        with connection.cursor() as cursor:
            for table in ("job_counter", "queue_sample", "worker"):
                cursor.execute(f"analyze pgbroker.{table}")

    for index, work in (
        ("job_counter_fold", partial(fold, STEPS[0], limit=50, using=session)),
        (
            "queue_sample_time",
            partial(trim_samples, coarse=False, age=timedelta(hours=6), limit=50, using=session),
        ),
        (
            "queue_sample_time",
            partial(trim_samples, coarse=True, age=timedelta(hours=6), limit=50, using=session),
        ),
        ("worker_heartbeat", partial(tidy_workers, silent=timedelta(days=30), limit=50, using=session)),
    ):
        # Explained, it has no row to return.
        with suppress(IndexError):
            work()
        (plan,) = explained.plans
        explained.plans.clear()
        assert index in ways(plan, index.rsplit("_", 1)[0])
        # Fifty rows, each found by an index twice, deleted, and perhaps added elsewhere.
        assert buffers(plan) < 1000, index


@pytest.mark.parametrize("duty", ["reap", "expire", "sample"])
def test_a_look_near_by_stays_cheap_beside_a_held_snapshot(duty, session, explained):
    """Vacuum may not remove what the snapshot sees: a look from the start reads all that has ended since."""
    costs = []
    with second_session() as holder, holder.transaction():
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from pgbroker.job")
        with explained.paused():
            world = World(session)
            ask(ADA)
            hints = sampled(session)
        for number in range(5):
            with explained.paused():
                ended(world, 1000, duty, hours_ago=5 - number)
            for near in (True, False):
                within = NEAR if near else EVERYTHING
                match duty:
                    case "reap":
                        reap(limit=10, max_crashes=3, backoff=Backoff(), within=within, using=session)
                    case "expire":
                        expiry.expire(limit=10, within=within, using=session)
                    case "sample":
                        sampled(session, hints if near else NO_HINTS, within=within)
            costs.append([buffers(plan) for plan in explained.plans])
            explained.plans.clear()
            if duty == "sample":
                with explained.paused():
                    hints = sampled(session, hints, within=NEAR)

    # The first look reads what the server has to know of the tables, too.
    near_by, everything = zip(*costs[1:], strict=True)
    assert max(near_by) < 1.1 * min(near_by) + 5, costs
    assert everything[-1] > min(everything) + 30, costs
    assert everything[-1] > near_by[-1] + 30, costs


def ended(world: World, count: int, duty: str, *, hours_ago: int) -> None:
    """Leave what *count* jobs leave in the indexes when they have run, or ran out of lease or time, long ago."""
    with guards_off(), connection.cursor() as cursor:
        cursor.execute(
            "insert into pgbroker.job (id, queue_id, job_type_id, tenant_id, status, ready_at, deadline_at) "
            "select pgbroker.uuid7_1(), %s, %s, 'tenant-' || n %% 3, 2, "
            "statement_timestamp() - %s * interval '1 h' + n * interval '1 us', "
            "case when %s then statement_timestamp() - interval '1 h' end from generate_series(1, %s) as n",
            [world.queue, world.type, hours_ago, duty == "expire", count],
        )
    if duty == "expire":
        expiry.expire(limit=count, using=world.session)
        return
    for _ in range(count // 500):
        leases = world.take(500)
        if duty == "reap":
            age(*(lease.job_id for lease in leases), only=["lease_expires_at"], hours=1)
        settle([completed(lease) for lease in leases], using=world.session)

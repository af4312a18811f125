"""fold: counters become fewer, and what they count stays the same, however late or at once somebody writes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgbroker.lifecycle.fold import STEPS, fold
from pgbroker.lifecycle.settle import settle
from pgbroker.models import JobCounter
from pgbroker.reports import list_minutes
from tests.support.jobs import claim_many, claim_one, completed, enqueue_one, queue_id, type_id
from tests.support.sessions import InThread, second_session, wait_until_blocked

MINUTES, HOURS, DAYS = STEPS
NOBODY = UUID(int=0)
COUNTS = ("done", "retried", "snoozed", "failed", "dead", "cancelled", "run_seconds", "wait_seconds")


@pytest.fixture(autouse=True)
def away_from_the_end_of_a_minute():
    """What a test writes at one moment belongs to one minute: begin no test in the last seconds of one."""
    left = 60 - datetime.now(UTC).second
    if left <= 4:
        time.sleep(left)


def count(
    ago: timedelta, *, worker: UUID | None = None, fold: int = 0, kind: int = 1, queue: int = 1, done: int = 1
):
    """Write a counter of a minute so long ago."""
    bucket = (datetime.now(UTC) - ago).replace(second=0, microsecond=0)
    JobCounter.objects.create(
        job_type_id=kind, queue_id=queue, worker_id=worker or uuid4(), bucket=bucket, fold=fold, done=done,
        failed=2 * done, run_seconds=0.5 * done,
    )  # fmt: skip


def fold_all(limit: int = 100) -> None:
    for step in STEPS:
        for _ in range(200):
            if fold(step, limit=limit) < limit:
                break


def sums() -> dict[tuple[int, int], list[float]]:
    """Add everything up, per type and queue."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"select job_type_id, queue_id, {', '.join(f'sum({name})' for name in COUNTS)} "
            "from pgbroker.job_counter group by 1, 2"
        )
        return {row[:2]: [round(float(each), 6) for each in row[2:]] for row in cursor.fetchall()}


@pytest.mark.django_db
def test_minutes_of_workers_become_minutes_of_all_then_hours_then_days():
    for _ in range(3):
        count(timedelta(minutes=10))
        count(timedelta(days=2))
        count(timedelta(days=40))
    count(timedelta(minutes=1))

    fold_all()

    found = list(JobCounter.objects.order_by("fold").values_list("fold", "done", "failed", "run_seconds"))
    assert found == [(0, 1, 2, 0.5), (1, 3, 6, 1.5), (2, 3, 6, 1.5), (3, 3, 6, 1.5)]
    hour, day = (JobCounter.objects.get(fold=fold).bucket for fold in (2, 3))
    assert (hour.minute, hour.second) == (0, 0)
    assert (day.hour, day.minute) == (0, 0)
    assert set(JobCounter.objects.filter(fold__gt=0).values_list("worker_id", flat=True)) == {NOBODY}


@pytest.mark.django_db
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "Pacific/Kiritimati"])
def test_hours_and_days_begin_in_utc_whatever_the_session_thinks(zone):
    with connection.cursor() as cursor:
        cursor.execute("set local timezone = %s", [zone])
    count(timedelta(days=40))

    fold_all()

    with connection.cursor() as cursor:
        cursor.execute(
            "select fold, extract(epoch from bucket)::bigint %% 86400 from pgbroker.job_counter", []
        )
        assert cursor.fetchall() == [(3, 0)]


def told_by_minute() -> dict[datetime, tuple]:
    """Tell what was done in each minute of a day."""
    return {each.bucket: each[1:6] for each in list_minutes(minutes=1440, using="default")}


ages = st.sampled_from([0, 1, 4, 6, 59, 61, 1439, 1499, 1501, 1561, 46_000, 46_079, 46_081, 47_600])


@pytest.mark.django_db
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(ages, st.integers(1, 2), st.integers(1, 2), st.integers(1, 5)), max_size=12),
    limit=st.integers(1, 4),
)
def test_whatever_is_folded_the_sums_stay_the_same(rows, limit):
    JobCounter.objects.all().delete()
    for minutes, kind, queue, done in rows:
        count(timedelta(minutes=minutes), kind=kind, queue=queue, done=done)
    before, minutes_before = sums(), told_by_minute()

    fold_all(limit)

    assert sums() == before
    minutes_after = told_by_minute()
    # A minute may have begun meanwhile.
    both = minutes_before.keys() & minutes_after.keys()
    assert len(both) >= 1430
    assert [minutes_before[each] for each in both] == [minutes_after[each] for each in both]
    assert JobCounter.objects.count() <= len(rows)
    fold_all(limit)
    assert sums() == before


@pytest.mark.django_db(transaction=True)
def test_a_settle_that_waits_for_a_counter_that_is_being_folded_is_counted_all_the_same():
    """It is on its way since minutes: its row is gone when the fold commits, and it makes a new one."""
    enqueue_one()
    enqueue_one()
    first, second = claim_many(2)
    settle([completed(first)])
    with second_session() as folder:
        folder.execute("begin")
        folder.execute("delete from pgbroker.job_counter where fold = 0")
        settling = InThread(lambda: settle([completed(second)])).start()
        wait_until_blocked(settling, folder)
        folder.execute(
            "insert into pgbroker.job_counter (job_type_id, queue_id, worker_id, bucket, fold, done) "
            "values (%s, %s, %s, date_trunc('minute', statement_timestamp()), 1, 1)",
            [type_id(), queue_id(), NOBODY],
        )
        folder.execute("commit")
        assert len(settling.result()) == 1

    assert sum(JobCounter.objects.values_list("done", flat=True)) == 2


@pytest.mark.django_db(transaction=True)
def test_a_counter_that_a_settle_holds_is_passed_over_and_folded_the_next_time():
    count(timedelta(minutes=10))
    with second_session() as other, other.transaction():
        other.execute("update pgbroker.job_counter set done = done + 1")
        count(timedelta(minutes=10))
        assert InThread(lambda: fold(MINUTES, limit=100)).start().result() == 1
    assert fold(MINUTES, limit=100) == 1

    assert [(each.fold, each.done) for each in JobCounter.objects.all()] == [(1, 3)]


@pytest.mark.django_db(transaction=True)
def test_two_that_fold_at_once_count_nothing_twice():
    """A leader that was stopped goes on while another one leads."""
    for _ in range(20):
        count(timedelta(minutes=10))
    with second_session() as other:
        other.execute("begin")
        other.execute("select from pgbroker.job_counter limit 7 for update")
        first = InThread(lambda: fold(MINUTES, limit=100)).start().result()
        other.execute("commit")
    second = fold(MINUTES, limit=100)

    assert (first, second) == (13, 7)
    assert [(each.fold, each.done) for each in JobCounter.objects.all()] == [(1, 20)]


@pytest.mark.django_db
def test_what_a_worker_counts_now_is_told_with_what_was_folded():
    enqueue_one()
    settle([completed(claim_one())])
    count(timedelta(0), fold=1, kind=type_id(), queue=queue_id(), worker=NOBODY, done=4)

    assert list_minutes(minutes=1, queue_id=queue_id(), using="default")[-1].done == 5

"""sample and tidy: what stands in the queues, kept once, under a fence, and not for ever."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.db import connection

from pgbroker.lifecycle.beat import WorkerState, beat
from pgbroker.lifecycle.sample import BOUND, NO_HINTS, sample, trim_samples
from pgbroker.lifecycle.tidy import tidy_workers
from pgbroker.models import QueueSample, Worker
from pgbroker.reports import list_samples
from pgbroker.tenancy import tenant_context
from tests.support.jobs import (
    LEASE,
    age,
    age_worker,
    claim_many,
    claim_one,
    completed,
    enqueue_one,
    queue_id,
    settle_one,
)
from tests.support.leaders import ADA, BEN, DUTY, age_lease, ask

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def led(db):
    ask(ADA)


def take(*, hints=NO_HINTS, epoch=1, holder=ADA, duty=DUTY, **options):
    return sample(duty, holder=holder, epoch=epoch, lease=LEASE, hints=hints, **options)


def last(queue: str = "default") -> QueueSample:
    return QueueSample.objects.filter(queue_id=queue_id(queue)).order_by("-sampled_at")[0]


def counts(queue: str = "default") -> tuple[int, int, int]:
    row = last(queue)
    return row.ready, row.scheduled, row.running


def test_a_sample_counts_each_queue_of_all_tenants():
    empty = queue_id("empty")
    for tenant in ("acme", "bolt"):
        with tenant_context(tenant):
            enqueue_one(priority=10)
            enqueue_one()
            enqueue_one(delay_seconds=100)
    claim_many(1)

    take()

    assert counts() == (3, 2, 1)
    assert counts("empty") == (0, 0, 0)
    assert QueueSample.objects.filter(queue_id=empty).count() == 1
    assert 0 <= last().oldest_ready_seconds < 30
    assert last("empty").oldest_ready_seconds is None


def test_a_sample_knows_the_oldest_of_all_priorities():
    old, _ = enqueue_one(priority=-5), enqueue_one(priority=50)
    age(old, only=["ready_at"], minutes=3)

    take()

    assert 180 <= last().oldest_ready_seconds < 200


def test_what_has_lost_its_lease_does_not_run():
    enqueue_one()
    age(claim_one().job_id, only=["lease_expires_at"], hours=1)

    take()

    assert counts() == (0, 0, 0)


@pytest.mark.parametrize(
    "given",
    [{"epoch": 2}, {"epoch": 0}, {"holder": BEN}, {"duty": "another"}],
    ids=["a later reign", "an earlier reign", "another holder", "another duty"],
)
def test_nothing_is_kept_outside_of_the_reign(given):
    assert take(**given) is None
    assert QueueSample.objects.count() == 0


def test_nothing_is_kept_once_the_lease_has_run_out():
    age_lease(11)

    assert take() is None
    assert QueueSample.objects.count() == 0


def test_a_look_with_hints_counts_what_a_full_look_counts():
    """What came since stands behind the hints: jobs that are ready, due later, claimed, or claimed again."""
    for _ in range(3):
        enqueue_one()
    age(*(lease.job_id for lease in claim_many(1)), only=["lease_expires_at"], seconds=30)
    hints = take()
    enqueue_one()
    enqueue_one(delay_seconds=60)
    claim_many(1)

    take(hints=hints, within=timedelta(minutes=10))

    assert counts() == (2, 1, 2)


def test_hints_of_an_empty_queue_see_what_comes_then():
    hints = take()
    enqueue_one()
    enqueue_one()
    claim_many(1)

    take(hints=hints)

    assert counts() == (1, 0, 1)


def test_hints_move_on_with_the_jobs():
    old = enqueue_one()
    age(old, only=["ready_at"], hours=1)
    before = take().ready_since[queue_id()]
    settle_one(completed(claim_one()))

    assert take().ready_since[queue_id()] - before > timedelta(minutes=59)


def test_a_count_stops_at_its_bound(monkeypatch):
    monkeypatch.setattr("pgbroker.lifecycle.sample.BOUND", 2)
    for _ in range(4):
        enqueue_one()

    take()

    assert BOUND > 4
    assert counts()[0] == 2


def test_the_first_sample_of_a_queue_in_five_minutes_is_coarse():
    def take_and_move(**by: float) -> None:
        take()
        with connection.cursor() as cursor:
            cursor.execute("update pgbroker.queue_sample set sampled_at = sampled_at - %s", [timedelta(**by)])

    def coarse() -> list[bool]:
        rows = QueueSample.objects.filter(queue_id=queue_id()).order_by("sampled_at")
        return list(rows.values_list("coarse", flat=True))

    take_and_move(minutes=6)
    take_and_move(microseconds=1)
    take_and_move(microseconds=1)

    assert coarse() == [True, True, False]


def test_samples_are_listed_oldest_first_for_as_long_back_as_asked():
    for hours in (3, 1, 2):
        QueueSample.objects.create(
            queue_id=queue_id(),
            sampled_at=datetime.now(UTC) - timedelta(hours=hours),
            ready=hours,
            scheduled=0,
            running=0,
        )

    assert [each.ready for each in list_samples(queue_id(), since=timedelta(hours=2.5), using="default")] == [
        2,
        1,
    ]


def test_trimming_deletes_the_oldest_of_a_kind_page_by_page():
    now = datetime.now(UTC)
    for hours in range(1, 9):
        for coarse in (False, True):
            QueueSample.objects.create(
                queue_id=1 + coarse, sampled_at=now - timedelta(hours=hours), ready=hours, scheduled=0, running=0,
                coarse=coarse,
            )  # fmt: skip

    assert trim_samples(coarse=False, age=timedelta(hours=2.5), limit=4) == 4
    assert trim_samples(coarse=False, age=timedelta(hours=2.5), limit=4) == 2
    assert trim_samples(coarse=False, age=timedelta(hours=2.5), limit=4) == 0

    left = QueueSample.objects.order_by("ready")
    assert [each.ready for each in left if not each.coarse] == [1, 2]
    assert [each.ready for each in left if each.coarse] == list(range(1, 9))


# ------------------------------------------------------------------ tidy


def worker_of(days: float, *, started_days: float | None = None):
    """Make a worker that was heard of so long ago."""
    state = WorkerState(worker_id=uuid4(), name=f"{days}", host="h", pid=1, version="0", queues=[], slots=1)
    beat(state, lease=LEASE)
    age_worker(state.worker_id, days=days)
    with connection.cursor() as cursor:
        cursor.execute(
            "update pgbroker.worker set started_at = started_at - %s where id = %s",
            [timedelta(days=days if started_days is None else started_days), state.worker_id],
        )
    return state.worker_id


def test_rows_of_workers_that_are_long_gone_are_deleted_and_no_others():
    gone = {worker_of(31), worker_of(40)}
    kept = {worker_of(29), worker_of(0), worker_of(0, started_days=100)}

    assert tidy_workers(silent=timedelta(days=30), limit=100) == 2

    assert set(Worker.objects.values_list("id", flat=True)) == kept
    assert not gone & kept


def test_a_worker_that_has_run_for_long_does_not_hide_those_behind_it():
    for _ in range(3):
        worker_of(0, started_days=300)
    worker_of(31)

    assert tidy_workers(silent=timedelta(days=30), limit=2) == 1

"""Leaders that are killed, stopped, cut off or asked to go: another one leads in time, and nothing is lost."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime, timedelta

import pytest

from pgbroker.models import Leader, QueueSample
from pgbroker.states import AttemptState, Status
from tests.runtime import handlers
from tests.runtime.fleet import (
    LEADER,
    Fleet,
    WorkerProcess,
    end_sessions,
    put,
    put_for_both,
    states_of,
    wait_for_effect,
    wait_for_status,
    wait_until,
)
from tests.support.jobs import age
from tests.support.network import network

pytestmark = pytest.mark.django_db(transaction=True)

DONE, FAILED = Status.COMPLETED, Status.FAILED
# After the end of a lease, that is LEADER_SECONDS after its last renewal.
IN_TIME = timedelta(seconds=2)


def reign(epoch: int | None = None) -> Leader | None:
    """Read who leads, once in that epoch."""
    return Leader.objects.filter(**({} if epoch is None else {"epoch": epoch})).first()


def start(fleet: Fleet, number: int = 2) -> list[WorkerProcess]:
    """Start workers one after another: the first one leads."""
    first = fleet.start(slots=2, SAMPLE_SECONDS=1)
    wait_until(lambda: reign(1), "the first leads", of=first)
    return [first, *(fleet.start(slots=2, SAMPLE_SECONDS=1) for _ in range(number - 1))]


def next_reign(before: Leader, of: WorkerProcess) -> Leader:
    """Wait for the next leader; it must have come in time, by the database's clock, and be another one."""
    after = wait_until(lambda: reign(before.epoch + 1), "another one leads", of=of)
    assert after.holder != before.holder
    return after


def check_upkeep_goes_on(worker: WorkerProcess) -> None:
    """What only the leader does is done: a job ends whose deadline passes before it may run."""
    seen = QueueSample.objects.count()
    late = put(
        handlers.nothing, 1, run_after=datetime.now(UTC) + timedelta(hours=1), deadline=timedelta(hours=2)
    )
    age(late, only=["deadline_at"], hours=2)
    wait_for_status(late, FAILED, of=worker)
    wait_until(lambda: QueueSample.objects.count() > seen, "queues are sampled", of=worker)


def test_a_leader_that_is_killed_is_replaced_in_time_and_its_jobs_run_again(fleet: Fleet):
    first, second = start(fleet)
    ids = put_for_both(handlers.work, 1.5) + put_for_both(handlers.work, 1.5)
    wait_for_effect("enter", count=4, of=second)
    first.kill()
    before = reign()

    after = next_reign(before, second)

    assert after.since - before.expires_at <= IN_TIME
    wait_for_status(ids, DONE, of=second)
    for each in ids:
        assert states_of(each) in ([AttemptState.COMPLETED], [AttemptState.CRASHED, AttemptState.COMPLETED])
    check_upkeep_goes_on(second)


def test_a_leader_that_is_stopped_and_goes_on_finds_another_in_its_place_and_stands_by(fleet: Fleet):
    first, second = start(fleet)
    first.signal(signal.SIGSTOP)
    before = reign()

    after = next_reign(before, second)
    first.signal(signal.SIGCONT)

    assert after.since - before.expires_at <= IN_TIME
    wait_until(lambda: "leads no longer" in first.log, "the first says so", of=first)
    samples = QueueSample.objects.count()
    time.sleep(LEADER * 1.5)
    now = reign()
    assert (now.holder, now.epoch) == (after.holder, after.epoch)
    assert now.expires_at > after.expires_at
    assert QueueSample.objects.count() > samples
    wait_for_status(put_for_both(handlers.note, "both work"), DONE, of=first)


def test_a_leader_that_is_asked_to_stop_gives_the_lead_back_before_its_jobs_have_ended(fleet: Fleet):
    first, second = start(fleet)
    slow = [*put_for_both(handlers.work, 3), *put_for_both(handlers.work, 3)]
    wait_for_effect("enter", count=4, of=first)
    before = reign()
    first.signal(signal.SIGTERM)

    after = next_reign(before, second)

    assert "gave the lead back" in first.log
    # It does not wait for the lease to run out, but for the other's next question.
    assert after.since <= before.expires_at + IN_TIME
    wait_for_status(slow, DONE, of=first)
    assert first.wait() == 0


def test_a_leader_whose_connection_is_ended_goes_on_in_the_same_reign(fleet: Fleet, superuser):
    (first,) = start(fleet, 1)
    for _ in range(4):
        before = reign()
        assert end_sessions(superuser, "pgbroker upkeep") == 1
        wait_until(lambda: reign().expires_at > before.expires_at, "it renews", of=first)  # noqa: B023

    assert (reign().epoch, reign().holder) == (1, before.holder)
    assert "leads no longer" not in first.log
    check_upkeep_goes_on(first)


def test_a_leader_behind_a_network_that_swallows_is_replaced_in_time_and_loses_no_job(fleet: Fleet):
    """It hears no end of its connections, and its statements are never answered."""
    with network() as between:
        first = fleet.start(slots=2, SAMPLE_SECONDS=1, database={"HOST": "127.0.0.1", "PORT": between.port})
        wait_until(lambda: reign(1), "the first leads", of=first)
        ids = put_for_both(handlers.work, 1.0)
        wait_for_effect("enter", count=2, of=first)
        second = fleet.start(slots=2, SAMPLE_SECONDS=1)
        between.swallowing = True
        before = reign()

        after = next_reign(before, second)

        assert after.since - before.expires_at <= IN_TIME
        wait_for_status(ids, DONE, of=second)
        check_upkeep_goes_on(second)
        first.kill()
    assert reign().epoch == 2


def test_of_many_that_start_at_once_one_leads(fleet: Fleet):
    workers = [fleet.start(slots=1, wait=False) for _ in range(4)]
    for worker in workers:
        worker.wait_until_started()
    wait_until(lambda: reign(), "somebody leads")
    time.sleep(LEADER)

    assert reign().epoch == 1
    assert sum("leads from now on" in worker.log for worker in workers) == 1

"""Schedulers that are killed, stopped, cut off or asked to go: every tick is created, and none twice."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection

from pgbroker.models import Job, Leader, Schedule, ScheduleRun
from pgbroker.policy.cron import zones
from pgbroker.runtime.scheduling import LONGEST_WAIT
from pgbroker.states import Status
from tests.runtime import handlers
from tests.runtime.fleet import LEADER, Fleet, WorkerProcess, effects, end_sessions, wait_until
from tests.support.jobs import guards_off
from tests.support.network import network
from tests.support.schedules import entry, jobs, make, now, row, runs, set_row
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db(transaction=True)

# After the end of a lease, that is LEADER_SECONDS after its last renewal.
IN_TIME = timedelta(seconds=2)
APART = timedelta(seconds=0.2)
# Of the tick of a schedule that never comes again in the life of a test.
ONCE_A_YEAR = {"expression": "0 0 29 2 *", "time_zone": "UTC", "due": False}


def one_after_the_other(number: int, **changes) -> list[Schedule]:
    """Make schedules whose ticks come one after the other from now on; then none of them for years."""
    rules = zones.load("UTC").fingerprint
    made = [make(f"s{place:03}", **ONCE_A_YEAR, zone_rules=rules, **changes) for place in range(number)]
    # Later than the next look of a scheduler that had nothing to do.
    first = now() + timedelta(seconds=LONGEST_WAIT + 0.5)
    for place, each in enumerate(made):
        set_row(each, watermark=first - timedelta(seconds=1), next_run_at=first + place * APART)
    return made


def reign(epoch: int | None = None) -> Leader | None:
    """Read who leads, once in that epoch."""
    wanted = {} if epoch is None else {"epoch": epoch}
    return Leader.objects.filter(duty="scheduler", **wanted).first()


def start(fleet: Fleet, number: int = 2, **how) -> list[WorkerProcess]:
    """Start schedulers one after another: the first one leads."""
    first = fleet.start(command="broker_scheduler", **how)
    wait_until(lambda: reign(1), "the first leads", of=first)
    return [first, *(fleet.start(command="broker_scheduler") for _ in range(number - 1))]


def check_each_once(made: list[Schedule], of: WorkerProcess, *, latest: timedelta) -> None:
    """Each schedule has one run with one job, not later than that, by the database's clock."""
    wait_until(lambda: ScheduleRun.objects.count() >= len(made), "every tick is created", of=of)
    time.sleep(LEADER)  # whoever would create one a second time has had the time for it
    found = list(ScheduleRun.objects.all())
    assert len(found) == len(made)
    assert {each.state for each in found} == {"created"}
    assert len(jobs()) == len({each.job_id for each in found}) == len(made)
    assert max(each.lateness_seconds for each in found) <= latest.total_seconds()
    assert min(each.lateness_seconds for each in found) >= 0


def kill(first: WorkerProcess) -> Callable[[], None]:
    first.kill()
    return lambda: None


def stop_and_go_on(first: WorkerProcess) -> Callable[[], None]:
    first.signal(signal.SIGSTOP)
    return lambda: first.signal(signal.SIGCONT)


@pytest.mark.parametrize("how", [kill, stop_and_go_on])
def test_b082_a_leader_that_dies_or_stands_still_is_replaced_and_no_tick_is_lost_or_doubled(fleet, how):
    first, second, third = start(fleet, 3)
    made = one_after_the_other(30)
    wait_until(lambda: ScheduleRun.objects.count() >= 3, "some are created", of=first)

    go_on = how(first)
    before = reign()
    after = wait_until(lambda: reign(before.epoch + 1), "another one leads", of=second)
    go_on()

    assert after.holder != before.holder
    assert after.since - before.expires_at <= IN_TIME
    check_each_once(made, second, latest=timedelta(seconds=LEADER) + IN_TIME)
    assert reign().epoch == 2
    assert "schedule.failed" not in first.log + second.log + third.log


def test_a_leader_behind_a_network_that_swallows_is_replaced_and_no_tick_is_lost_or_doubled(fleet):
    with network() as between:
        first = fleet.start(command="broker_scheduler", database={"HOST": "127.0.0.1", "PORT": between.port})
        wait_until(lambda: reign(1), "the first leads", of=first)
        second = fleet.start(command="broker_scheduler")
        made = one_after_the_other(30)
        wait_until(lambda: ScheduleRun.objects.count() >= 3, "some are created", of=first)

        between.swallowing = True
        before = reign()
        after = wait_until(lambda: reign(before.epoch + 1), "another one leads", of=second)

        assert after.since - before.expires_at <= IN_TIME
        check_each_once(made, second, latest=timedelta(seconds=LEADER) + IN_TIME)
        first.kill()


def test_a_leader_that_is_asked_to_end_hands_the_lead_over(fleet):
    first, second = start(fleet)
    made = one_after_the_other(10)

    assert first.stop() == 0

    assert "gave the lead back" in first.log
    assert "scheduler stopped" in first.log
    check_each_once(made, second, latest=timedelta(seconds=LEADER) + IN_TIME)


def test_a_leader_whose_connections_are_ended_goes_on(fleet, superuser):
    (first,) = start(fleet, 1)
    made = one_after_the_other(15)
    for _ in range(8):
        wait_until(lambda: end_sessions(superuser, "pgbroker schedule"), "it is connected", of=first)
        time.sleep(0.5)

    check_each_once(made, first, latest=timedelta(seconds=LEADER) + IN_TIME)


def test_b072_of_three_schedulers_that_start_at_once_one_is_effective(fleet):
    made = one_after_the_other(20)
    three = [fleet.start(command="broker_scheduler", wait=False) for _ in range(3)]
    for each in three:
        each.wait_until_started()

    # What came due before anybody had started is as late as the start.
    check_each_once(made, three[0], latest=timedelta(seconds=20))
    assert sum("duty=scheduler" in each.log and "leads from now on" in each.log for each in three) >= 1
    assert reign().epoch == 1
    assert "IntegrityError" not in "".join(each.log for each in three)


def test_a_schedule_that_somebody_holds_keeps_no_other_from_its_tick(fleet):
    (first,) = start(fleet, 1)
    held, other = one_after_the_other(2)
    with second_session() as session, session.transaction():
        session.execute("set local pgbroker.scope = 'all'")
        session.execute("select from pgbroker.schedule where id = %s for update", [held.id])
        wait_until(lambda: runs(other), "the other is created", of=first)
        assert runs(held) == []

    wait_until(lambda: runs(held), "the one that was held is created", of=first)


def test_processes_start_while_somebody_holds_the_rows_of_all_job_types(fleet):
    fleet.start(command="broker_scheduler").stop()
    with guards_off(), connection.cursor() as cursor:
        cursor.execute("update pgbroker.job_type set last_seen_at = last_seen_at - interval '2 hours'")
    with second_session() as session, session.transaction():
        session.execute("select from pgbroker.job_type for update")
        scheduler = fleet.start(command="broker_scheduler")
        worker = fleet.start("--with-scheduler")

    for each in (scheduler, worker):
        assert "holds a row that the code declares otherwise" in each.log
        assert each.stop() == 0


def test_a_tick_of_a_worker_with_a_scheduler_is_run_and_knows_its_instant(fleet):
    worker = fleet.start("--with-scheduler", slots=2)
    (schedule,) = one_after_the_other(1, jobs=[entry(job_type=handlers.tick_of.key)])
    due = row(schedule).next_run_at

    wait_until(lambda: effects("tick"), "it ran", of=worker)

    (run,) = runs(schedule)
    (effect,) = effects("tick")
    assert effect["detail"] == due.isoformat()
    assert effect["job_id"] == run.job_id
    assert worker.stop() == 0
    assert reign().expires_at <= now()


def test_once_creates_what_is_due_and_ends(fleet):
    schedule = make()
    late = make("late", expression="* * * * *", misfire="catch_up")
    set_row(late, watermark=now() - timedelta(hours=1), next_run_at=now() - timedelta(minutes=59))

    once = fleet.start("--once", command="broker_scheduler", wait=False)

    assert once.wait() == 0
    assert [run.state for run in runs(schedule)] == ["created"]
    assert len(runs(late)) in (60, 61)
    assert f"{1 + len(runs(late))} created" in once.log
    assert reign() is None
    assert Job.objects.filter(status=Status.READY).count() == 1 + len(runs(late))


def test_a_signal_ends_an_idle_scheduler_at_once(fleet):
    _, second = start(fleet)
    began = time.monotonic()

    assert second.stop() == 0

    assert time.monotonic() - began < 3

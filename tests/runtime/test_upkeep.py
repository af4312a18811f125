"""The loop of the upkeep: what only the leader does, what everybody does, and what a failure stops."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from pgbroker import cancel, telemetry
from pgbroker.conf import settings
from pgbroker.db import Session
from pgbroker.models import Leader, QueueSample
from pgbroker.runtime.upkeep import MOST_SKIPPED, PAGE, Upkeep, limits
from pgbroker.states import Status
from tests.support.crash import fault, statements_run
from tests.support.jobs import LEASE, age, claim_many, enqueue_one, guards_off, status
from tests.support.leaders import ADA, BEN, age_lease, ask, leader
from tests.support.links import job, links
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db(transaction=True)

EVERYBODYS = {"lead", "reap", "ensure_partitions", "resolve"}
LEADERS = {
    "adopt",
    "reconcile",
    "resolve_deferred",
    "expire",
    "find_over_long",
    "sample_queues",
    "fold_counters",
    "trim_samples",
    "tidy_workers",
    "trim_schedule_runs",
}


@pytest.fixture
def upkeep() -> Iterator[Upkeep]:
    made = upkeep_of(ADA)
    yield made
    made.session.drop()


def upkeep_of(holder: UUID, *, session: Session | None = None, **changes: Any) -> Upkeep:
    chosen = dataclasses.replace(settings(), **changes)
    session = session or Session("default", purpose="upkeep")
    session.limits = tuple(limits(chosen).items())
    return Upkeep(holder=holder, name="ada", settings=chosen, session=session)


@pytest.fixture
def told() -> Iterator[list[dict]]:
    """What was told of duties that failed."""
    heard: list[dict] = []
    unsubscribe = telemetry.subscribe(
        lambda event, keys: heard.append(keys), wants=lambda event: event == "duty.failed"
    )
    yield heard
    unsubscribe()


def work_off(upkeep: Upkeep) -> set[str]:
    """Step until nothing is due; returns the names of the statements that ran."""
    ran = set()
    with fault(lambda moment, name: ran.add(name)):
        for _ in range(200):
            if upkeep.step() > 0:
                return ran
    raise AssertionError(f"it does not come to an end: {ran}")


def again(upkeep: Upkeep, *names: str) -> None:
    """Let time pass for duties: what they wait for is over."""
    for turn in upkeep.turns:
        if not names or turn.duty.name in names:
            turn.next_at = 0.0


def turn(upkeep: Upkeep, name: str) -> Any:
    return next(each for each in upkeep.turns if each.duty.name == name)


@contextmanager
def sql(forth: str, back: str) -> Iterator[None]:
    """Change the schema for a while."""
    with connection.cursor() as cursor:
        cursor.execute(forth)
        try:
            yield
        finally:
            cursor.execute(back)


def expired_jobs(count: int, *, ago: float = 10.0) -> list[UUID]:
    """Make running jobs whose leases have expired so long ago, the first one longest."""
    ids = [enqueue_one() for _ in range(count)]
    claim_many(count)
    for place, each in enumerate(ids):
        age(each, seconds=LEASE.total_seconds() + ago + (count - place) / 100)
    return ids


# ------------------------------------------------------------------ who does what


def test_a_process_that_is_alone_leads_and_does_every_duty(upkeep):
    assert work_off(upkeep) == EVERYBODYS | LEADERS

    assert leader().holder == ADA
    assert 0 < upkeep.step() <= settings().LEADER_SECONDS / 4


def test_a_standby_recovers_jobs_and_leaves_the_rest_to_the_leader(upkeep):
    ask(BEN)
    (lost,) = expired_jobs(1)
    overdue = enqueue_one(deadline_seconds=1)
    age(overdue, hours=1)

    assert work_off(upkeep) == EVERYBODYS

    assert (status(lost), status(overdue)) == (Status.SCHEDULED, Status.READY)
    assert QueueSample.objects.count() == 0


def test_a_standby_that_takes_over_does_the_leaders_duties_at_once(upkeep):
    ask(BEN)
    work_off(upkeep)
    age_lease(11)
    upkeep.leader.ask_at = 0.0

    # A look for faults lets a pass go first.
    assert work_off(upkeep) == {"lead", "ensure_partitions", "resolve"} | LEADERS
    assert leader().epoch == 2


def test_a_leader_that_may_be_none_any_more_still_recovers_jobs(upkeep):
    """Its renewal does not get through: by its own clock there is no time left to do anything alone."""
    work_off(upkeep)
    upkeep.leader._asked_at -= settings().LEADER_SECONDS * 0.75
    upkeep.leader.ask_at = 0.0
    (lost,) = expired_jobs(1)
    again(upkeep)
    with second_session() as other, other.transaction():
        other.execute("select from pgbroker.leader for update")
        ran = work_off(upkeep)
    assert ran == EVERYBODYS
    assert status(lost) == Status.SCHEDULED

    upkeep.leader.ask_at = 0.0
    assert work_off(upkeep) >= LEADERS


def test_a_standby_looks_near_by_once_it_has_looked_at_everything_and_the_leader_at_all_of_it(upkeep):
    """What somebody held while it expired is old when it is let go."""
    ask(BEN)
    with second_session() as other, other.transaction():
        (lost,) = expired_jobs(1, ago=3600)
        other.execute("select from pgbroker.job where id = %s for update", [lost])
        work_off(upkeep)
    again(upkeep, "reap")
    work_off(upkeep)
    assert status(lost) == Status.RUNNING

    age_lease(11)
    upkeep.leader.ask_at = 0.0
    work_off(upkeep)
    # So long ago that a look at everything is affordable again.
    turn(upkeep, "reap").duty._range.looks._looked_at -= 60
    again(upkeep, "reap")
    work_off(upkeep)

    assert status(lost) == Status.SCHEDULED


def test_an_attempt_that_runs_for_too_long_is_told_once_and_left_alone(upkeep):
    heard: list[dict] = []
    unsubscribe = telemetry.subscribe(
        lambda event, keys: heard.append(keys), wants=lambda event: event == "job.over_long"
    )
    slow, fine = enqueue_one(options={"timeout": 5}), enqueue_one(options={"timeout": 500})
    claim_many(2)
    age(slow, fine, only=["leased_at"], minutes=3)
    for _ in range(3):
        again(upkeep, "over_long")
        work_off(upkeep)
    unsubscribe()

    assert [keys["job_id"] for keys in heard] == [slow]
    assert heard[0]["duration_seconds"] > 180
    assert (status(slow), status(fine)) == (Status.RUNNING, Status.RUNNING)


def test_partitions_ahead_are_made_one_more_in_each_page(upkeep):
    with statements_run() as asked:
        for _ in range(40):
            if upkeep.step() > 0:
                break

    # Once by whoever starts, and then by the leader for now and the seven widths to come.
    assert asked.count("ensure_partitions") == 1 + 8


# ------------------------------------------------------------------ stopped in the middle


def test_a_leader_that_is_stopped_before_its_statement_adds_no_sample_when_it_goes_on(upkeep):
    def stopped(moment, name):
        if (moment, name) == ("before", "sample_queues"):
            age_lease(11)
            ask(BEN)

    with fault(stopped):
        for _ in range(20):
            upkeep.step()

    assert QueueSample.objects.count() == 0
    assert leader().holder == BEN


def test_the_lease_is_renewed_between_the_pages_of_a_long_pass(upkeep):
    work_off(upkeep)
    expired_jobs(8)
    again(upkeep, "reap")
    renewed = []

    def at(moment, name):
        if (moment, name) == ("after", "reap"):
            # A page that took its time.
            upkeep.leader.ask_at = 0.0
            turn(upkeep, "reap").limit = 1
        elif (moment, name) == ("after", "lead"):
            renewed.append(leader().expires_at)

    turn(upkeep, "reap").limit = 1
    with fault(at):
        while upkeep.step() == 0:
            pass

    assert len(renewed) >= 4
    assert renewed == sorted(renewed)
    assert leader().epoch == 1


# ------------------------------------------------------------------ failures


@pytest.mark.parametrize("place", [0, 7, 29])
def test_a_row_that_no_statement_can_take_does_not_hide_the_rest(upkeep, told, place):
    ids = expired_jobs(30)
    with sql(
        "create function public.refuse() returns trigger language plpgsql as "
        f"$$ begin if old.id = '{ids[place]}' then raise exception 'not this one'; end if; return new; end $$; "
        "create trigger refuse before update on pgbroker.job for each row execute function public.refuse()",
        "drop trigger refuse on pgbroker.job; drop function public.refuse()",
    ):
        work_off(upkeep)

        assert [status(each) for each in ids].count(Status.SCHEDULED) == 29
        assert status(ids[place]) == Status.RUNNING
        assert [(keys["duty"], keys["skipped"]) for keys in told] == [("reap", 1)]
        assert "not this one" in told[0]["error"]
    again(upkeep, "reap")
    work_off(upkeep)

    assert status(ids[place]) == Status.SCHEDULED


def test_rows_that_break_a_page_are_passed_over_up_to_a_bound(upkeep, told):
    ids = expired_jobs(MOST_SKIPPED + 5)
    with sql(
        "create function public.refuse() returns trigger language plpgsql as "
        "$$ begin raise exception 'not one'; end $$; "
        "create trigger refuse before update on pgbroker.job for each row execute function public.refuse()",
        "drop trigger refuse on pgbroker.job; drop function public.refuse()",
    ):
        work_off(upkeep)

    assert {status(each) for each in ids} == {Status.RUNNING}
    assert [keys.get("skipped") for keys in told] == [*range(1, MOST_SKIPPED + 1), None]
    assert turn(upkeep, "reap").failures == 1


def test_a_duty_that_fails_stops_no_other_and_comes_back_later_each_time(upkeep, told):
    with sql(
        "alter table pgbroker.queue_sample rename to gone", "alter table pgbroker.gone rename to queue_sample"
    ):
        assert work_off(upkeep) == EVERYBODYS | LEADERS
        failing = turn(upkeep, "sample")
        assert {keys["duty"] for keys in told} == {"sample", "trim_samples"}
        assert {keys["error_code"] for keys in told} == {"UndefinedTable"}
        waits = []
        for _ in range(4):
            again(upkeep, "sample")
            work_off(upkeep)
            waits.append(failing.next_at)
        assert failing.failures == 5
    again(upkeep, "sample")
    work_off(upkeep)

    assert QueueSample.objects.exists()
    assert failing.failures == 0


def test_a_lead_that_cannot_be_asked_for_leaves_recovery_alone(upkeep, told):
    """A worker of this release on a schema without the table, or without the right to write it."""
    (lost,) = expired_jobs(1)
    with sql("alter table pgbroker.leader rename to gone", "alter table pgbroker.gone rename to leader"):
        work_off(upkeep)

        assert status(lost) == Status.SCHEDULED
        assert [(keys["duty"], keys["error_code"]) for keys in told] == [("lead", "UndefinedTable")]


def test_a_duty_that_would_wait_for_a_lock_gives_up_in_time_for_the_renewal(upkeep, told):
    upkeep = upkeep_of(ADA, LEADER_SECONDS=2.0, session=upkeep.session)
    with second_session() as other, other.transaction():
        other.execute("lock table pgbroker.job_counter in access exclusive mode")
        ran = work_off(upkeep)
        assert "tidy_workers" in ran
        assert [(keys["duty"], keys["error_code"]) for keys in told] == [
            ("fold_counters", "LockNotAvailable")
        ]
        assert upkeep.leader.leads
        assert (leader().holder, leader().epoch) == (ADA, 1)


def test_a_full_page_is_followed_by_the_next_until_all_is_done(upkeep):
    ids = expired_jobs(7)
    turn(upkeep, "reap").limit = 2

    assert PAGE > 7
    work_off(upkeep)

    assert {status(each) for each in ids} == {Status.SCHEDULED}


@pytest.mark.parametrize("broken", [False, True])
def test_a_look_for_what_is_broken_leaves_the_time_to_others_until_it_finds_some(upkeep, broken):
    work_off(upkeep)
    parent = job()
    waiting = [each.job_id for each in links(*({"depends_on": [str(parent)]} for _ in range(6)))]
    if broken:
        with guards_off(), connection.cursor() as cursor:
            cursor.execute("delete from pgbroker.job_dependency")
    look = turn(upkeep, "reconcile")
    again(upkeep, "reconcile")
    look.limit = 2

    began = time.monotonic()
    upkeep.step()

    assert not look.first, "it is to be in the middle of a pass"
    assert (look.next_at > began) == (not broken)
    while not look.first:
        again(upkeep, "reconcile")
        upkeep.step()
    assert {status(each) for each in waiting} == {Status.READY if broken else Status.WAITING}


def test_what_was_left_to_a_pass_is_no_fault(upkeep):
    """A process that starts may look for faults before anything else."""
    parent, heard = job(), []
    (waiting,) = links({"depends_on": [str(parent)]})
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("set transaction isolation level repeatable read")
        cancel(parent)
    unsubscribe = telemetry.subscribe(
        lambda event, keys: heard.append(keys), wants=lambda event: event == "dependencies.repaired"
    )
    for each in upkeep.turns:
        each.next_at = 0.0 if each.duty.name == "reconcile" else math.inf
    ask(ADA)
    upkeep.leader.ask_at = 0.0

    work_off(upkeep)

    unsubscribe()
    assert status(waiting.job_id) == Status.CANCELLED
    assert heard == []
    assert turn(upkeep, "reconcile").next_at < time.monotonic() + 1, "it gave way, and comes again soon"


def test_the_row_of_the_leader_is_one_row(upkeep):
    for _ in range(3):
        upkeep.leader.ask_at = 0.0
        work_off(upkeep)

    assert Leader.objects.count() == 1

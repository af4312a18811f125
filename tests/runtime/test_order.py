"""Who runs next: priorities that age, queues served fairly, quick jobs held, slow and fragile ones never behind."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.utils import timezone

from pgbroker.models import Execution
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import scope_all
from tests.runtime import handlers
from tests.runtime.fleet import (
    TENANTS,
    Fleet,
    effects,
    executions_of,
    job,
    make_queues,
    put,
    put_for_both,
    put_together,
    raw_session,
    states_of,
    status_of,
    wait_for_effect,
    wait_for_status,
    wait_until,
)

pytestmark = pytest.mark.django_db(transaction=True)

DONE, DEAD = Status.COMPLETED, Status.DEAD_LETTER


def started(job_id):
    return executions_of(job_id)[-1].started_at


def most_inside() -> int:
    """The largest number of handlers inside at once, from what they wrote."""
    inside = most = 0
    for each in effects():
        inside += {"enter": 1, "leave": -1}.get(each["what"], 0)
        most = max(most, inside)
    return most


def test_never_more_handlers_run_at_once_than_slots_in_a_mix_of_both_executors(fleet: Fleet):
    ids = [
        put(task, 0.05, tenant=tenant)
        for _ in range(20)
        for task in (handlers.work, handlers.work_async)
        for tenant in ("acme", "globex")
    ]
    worker = fleet.start(slots=3)

    wait_for_status(ids, DONE, of=worker)

    assert most_inside() == 3


def test_jobs_of_an_unknown_or_slow_type_are_not_held(fleet: Fleet):
    ids = [put(handlers.work, 0.2, tenant=("acme", "globex")[n % 2]) for n in range(16)]
    worker = fleet.start(slots=2)
    wait_for_effect("enter", of=worker)

    with raw_session() as session:
        while any(status_of(each) != DONE for each in ids):
            (running,) = session.execute("select count(*) from pgbroker.job where status = 3").fetchone()
            # Two that run, and two that have ended and are not settled yet.
            assert running <= 4


def test_a_slow_job_at_the_head_of_a_queue_of_quick_ones_runs_promptly(fleet: Fleet):
    wait_for_status([put(handlers.nothing, n) for n in range(300)], DONE, of=(worker := fleet.start(slots=2)))
    quick = enqueue_many(3000)
    slow = put(handlers.note, "slow one", priority=100, tenant="globex")
    fragile = put(handlers.nothing, 1, priority=100, max_attempts=1)
    more = enqueue_many(3000)

    wait_for_status([slow, fragile], DONE, of=worker)

    # By what stands in the database, not by when this process looks: how many began between their enqueue and start.
    with scope_all():
        for each in (slow, fragile):
            between = Execution.objects.filter(
                started_at__gt=job(each).created_at, started_at__lt=started(each), job__in=[*quick, *more]
            ).count()
            assert between < 1500, "half of the quick ones came first"
    wait_for_status([quick[-1], more[-1]], DONE, of=worker)


def enqueue_many(count: int) -> list:
    from pgbroker import enqueue_many

    outcomes = enqueue_many([handlers.nothing.options(tenant="acme").bind(number) for number in range(count)])
    return [each.job_id for each in outcomes]


def test_fragile_jobs_are_not_held(fleet: Fleet):
    worker = fleet.start(slots=1)
    wait_for_status([put(handlers.sometimes_slow, 0) for _ in range(30)], DONE, of=worker)
    with transaction.atomic():
        slow = put(handlers.sometimes_slow, 3)
        fragile = [put(handlers.sometimes_slow, 0, max_attempts=1, tenant="globex") for _ in range(3)]
        sound = [put(handlers.sometimes_slow, 0) for _ in range(3)]
    wait_until(
        lambda: any(status_of(each) == Status.RUNNING for each in sound), "a sound one is held", of=worker
    )

    assert {status_of(each) for each in fragile} == {Status.READY}
    wait_for_status([slow, *fragile, *sound], DONE, of=worker)


def test_b033_a_job_of_low_priority_has_its_turn_when_it_has_aged(fleet: Fleet):
    worker = fleet.start(slots=1, AGEING_SECONDS=0.5)
    high = [put(handlers.stubborn, 0.1, priority=10) for _ in range(5)]
    low = put(handlers.note, "low", tenant="globex", priority=0)
    enqueued = timezone.now()

    while status_of(low) != DONE:
        # Five wait at any time; each is as good as one that became ready five seconds earlier.
        high = [each for each in high if status_of(each) == Status.READY]
        high += [put(handlers.stubborn, 0.1, priority=10) for _ in range(5 - len(high))]
        assert (timezone.now() - enqueued).total_seconds() < 30, worker.log

    waited = (started(low) - enqueued).total_seconds()
    assert 4.5 < waited < 9


def test_a_higher_priority_runs_first_where_all_became_ready_together(fleet: Fleet):
    ids = {
        priority: put(handlers.note, f"p{priority}", priority=priority, tenant=tenant)
        for priority, tenant in ((0, "acme"), (50, "globex"), (-50, "acme"), (100, "globex"))
    }
    worker = fleet.start(slots=1)

    wait_for_status(list(ids.values()), DONE, of=worker)

    assert [each["what"] for each in effects()] == ["p100", "p50", "p0", "p-50"]


@pytest.mark.parametrize("seconds", [0.05, 0.0], ids=["slow", "quick"])
def test_several_queues_are_served_in_turn(fleet: Fleet, seconds: float):
    queues = ("one", "two", "three")
    make_queues(*queues)
    ids = [
        put(handlers.enter_queue, name, seconds, queue_name=name, tenant=("acme", "globex")[n % 2])
        for n in range(20)
        for name in queues
    ]
    worker = fleet.start(slots=1, PREFETCH_MAX=4)

    wait_for_status(ids, DONE, of=worker)

    order = [each["what"] for each in effects()]
    # When a queue is half done, none of the others is further behind than what one claim takes.
    halfway = order[: len(order) // 2]
    assert min(halfway.count(name) for name in queues) >= 5, " ".join(order)


def test_queues_that_are_new_are_served_in_turn_though_all_their_jobs_can_be_held(fleet: Fleet):
    """The one that has the idle slot must not have all that comes free, while the others wait for an idle one."""
    queues = ("one", "two", "three")
    known = put_together(*[(handlers.enter_queue, TENANTS[0], "known", 0.002)] * 50)
    worker = fleet.start(slots=1, PREFETCH_MAX=4)
    wait_for_status(known, DONE, of=worker)

    with transaction.atomic():
        make_queues(*queues)
        ids = [
            job_id
            for name in queues
            for job_id in put_together(
                *[(handlers.enter_queue, TENANTS[0], name, 0.002)] * 40, queue_name=name
            )
        ]
    wait_for_status(ids, DONE, of=worker)

    order = [each["what"] for each in effects() if each["what"] != "known"]
    # A claim fills the slot and holds four more.
    assert max(order.index(name) for name in queues) < 20, " ".join(order)


def test_a_queue_whose_jobs_cannot_be_held_has_its_turn_beside_queues_whose_can(fleet: Fleet):
    """Quick jobs held for two queues leave no slot idle: what is of no known pace must not wait until they are out."""
    make_queues("one", "two", "three")
    for name in ("one", "two"):
        put_together(*[(handlers.enter_queue, TENANTS[0], name, 0.002)] * 500, queue_name=name)
    worker = fleet.start(slots=1, PREFETCH_MAX=4)
    wait_until(lambda: len(effects()) > 50, "they are known to be quick", of=worker)

    overtaken = []
    for n in range(5):
        late = put(handlers.note, f"late {n}", queue_name="three")
        before = len(effects())
        wait_for_effect(f"late {n}", late, of=worker)
        overtaken.append([each["what"] for each in effects()].index(f"late {n}") - before)

    # Those that are held run first, and a claim or two of either queue.
    assert max(overtaken) < 30
    assert len(effects()) < 1000


@pytest.mark.slow
def test_one_busy_queue_does_not_keep_a_slot_from_the_others(fleet: Fleet):
    """Each end of a slow job wakes the claimer twice; the queue must not depend on the number of turns."""
    make_queues("one", "two")
    for n in range(40):
        put(handlers.enter_queue, "busy", 0.1, queue_name="one", tenant=("acme", "globex")[n % 2])
    ids = put_for_both(handlers.enter_queue, "other", 0.1, queue_name="two")
    worker = fleet.start(slots=1)

    wait_for_status(ids, DONE, of=worker)

    assert len(effects("busy")) < 20


# ------------------------------------------------------------------ types this worker does not know


def test_b019_a_job_of_an_unknown_type_is_put_back_and_dies_after_the_grace(fleet: Fleet):
    ids = put_for_both(handlers.note, "unknown here")
    old = fleet.start(slots=2, handlers=False, UNKNOWN_TYPE_GRACE_SECONDS=3)
    pid = old.pid
    behind = put_for_both(NOTHING, 1)

    wait_for_status(behind, DONE, of=old)
    wait_for_status(ids, DEAD, of=old)

    assert old.pid == pid
    assert old.exit_code is None
    for each in ids:
        released = [one for one in executions_of(each) if one.state == AttemptState.RELEASED]
        assert {one.error_code for one in released} == {"unknown_job_type"}
        assert 2 <= len(released) <= 5
        last = executions_of(each)[-1]
        assert last.error_code == "unknown_job_type"
        assert "deploy the code" in last.error


def test_a_job_put_back_as_unknown_is_run_by_a_worker_that_knows_it(fleet: Fleet):
    ids = put_for_both(handlers.note, "known there")
    old = fleet.start(slots=2, handlers=False)
    wait_until(lambda: all(executions_of(each) for each in ids), "it was put back", of=old)
    new = fleet.start(slots=2)
    # As a deploy ends: until then the two draw lots for it at each turn.
    old.stop()

    wait_for_status(ids, DONE, of=new)

    assert [states_of(each) for each in ids] == [[AttemptState.COMPLETED]] * 2
    assert len(effects("known there")) == 2


def test_a_job_of_a_newer_version_of_its_type_is_left_to_newer_workers(fleet: Fleet):
    from pgbroker.models import JobPayload
    from tests.support.jobs import guards_off

    ids = put_for_both(handlers.note, "newer")
    with guards_off():
        JobPayload.objects.filter(job__in=ids).update(type_version=2)
    worker = fleet.start(UNKNOWN_TYPE_GRACE_SECONDS=2)

    wait_for_status(ids, DEAD, of=worker)

    assert {executions_of(each)[-1].error_code for each in ids} == {"unknown_job_type"}
    assert effects("newer") == []


def _nothing():
    from testproject.airports import jobs

    return jobs.nothing_sync


NOTHING = _nothing()

"""cancel_group: nothing is added any more, live members are cancelled, running ones are asked, dependents follow."""

from __future__ import annotations

from uuid import uuid4

import pytest

from pgbroker.lifecycle.cancel_group import cancel_group
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.settle import settle
from pgbroker.models import JobState
from pgbroker.states import GroupState
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import OTHER_TYPE, completed, row, status, type_id
from tests.support.links import (
    BLOCKED,
    CANCELLED,
    COMPLETED,
    FAILED,
    READY,
    WAITING,
    add,
    claim,
    end,
    group,
    job,
    links,
    open_group,
    passes,
    refusal,
    repaired,
    run,
    sealed_group,
    state,
    statuses,
    why,
)

pytestmark = pytest.mark.django_db


def test_members_wherever_they_are_are_cancelled_with_the_reason():
    outside, broken = job(), job()
    group_id, (ready, waiting, blocked, done) = sealed_group(
        "g", {}, {"depends_on": [str(outside)]}, {"depends_on": [str(broken)], "on_failure": "block"}, {}
    )
    end(broken, status=FAILED)
    end(done)

    answer = cancel_group(group_id, reason="wrong month", by="ada")

    assert answer == (GroupState.CANCELLED, 3, 0, False)
    assert statuses(ready, waiting, blocked, done) == [CANCELLED] * 3 + [COMPLETED]
    told = JobState.objects.filter(job__in=[ready, waiting, blocked])
    assert set(told.values_list("reason_code", "reason", "by", "cause_id")) == {
        ("cancelled", "wrong month", "ada", None)
    }


def test_a_running_member_is_asked_and_the_group_ends_with_it():
    group_id, (running, ready) = sealed_group("g", {}, {})
    (lease,) = claim(running)

    answer = cancel_group(group_id)
    assert answer == (GroupState.SEALED, 1, 1, False)
    assert row(running).cancel_requested_at is not None
    settle([completed(lease)])

    assert statuses(running, ready) == [CANCELLED, CANCELLED]
    assert state(group_id) == GroupState.CANCELLED


def test_b058_nothing_is_added_after_a_cancel():
    group_id = open_group("g")
    (member,) = links({"group": "g"})

    cancel_group(group_id)

    assert refusal(group="g")[0] == "group_sealed"
    assert (state(group_id), status(member.job_id)) == (GroupState.CANCELLED, CANCELLED)


@pytest.mark.parametrize("how", ["empty", "all of it completed", "empty and waits"])
def test_an_open_group_that_is_cancelled_has_not_completed(how):
    """Whoever cancels it does not want what comes after it."""
    group_id = open_group(
        "g", *([job()] if how == "empty and waits" else []), on_completed={"job_type": "tests.ok"}
    )
    if how == "all of it completed":
        (member,) = links({"group": "g"})
        end(member.job_id)
    dependent = job("g")

    assert cancel_group(group_id).state == GroupState.CANCELLED

    assert status(dependent) == CANCELLED
    assert group(group_id).completed_job_id is None


def test_dependents_of_the_group_follow_their_edges_and_calls_are_not_made():
    type_id(OTHER_TYPE)
    group_id, (member,) = sealed_group(
        "g", {}, on_failed={"job_type": OTHER_TYPE}, on_completed={"job_type": OTHER_TYPE}
    )
    cancelled, blocked, ignoring = job("g"), job("g", on_failure="block"), job("g", on_failure="ignore")
    below = job(cancelled)

    cancel_group(group_id)
    passes()

    assert statuses(cancelled, blocked, ignoring, below) == [CANCELLED, BLOCKED, READY, CANCELLED]
    assert why(cancelled) == why(below) == ("prerequisite_failed", member)
    assert (group(group_id).failed_job_id, group(group_id).completed_job_id) == (None, None)


def test_dependents_of_members_follow_their_edges():
    group_id, (member,) = sealed_group("g", {})
    outside = job(member)

    cancel_group(group_id)

    assert status(outside) == CANCELLED


def test_a_large_group_is_cancelled_in_bites():
    group_id, members = sealed_group("g", *[{}] * 25)

    answers = [cancel_group(group_id, limit=10) for _ in range(3)]

    assert [(each.cancelled, each.is_left) for each in answers] == [(10, True), (10, True), (5, False)]
    assert [each.state for each in answers] == [GroupState.SEALED, GroupState.SEALED, GroupState.CANCELLED]
    assert set(statuses(*members)) == {CANCELLED}


def test_a_cancel_that_did_not_come_to_its_end_is_finished_by_the_reconciler():
    group_id, members = sealed_group("g", *[{}] * 5)
    cancel_group(group_id, limit=2)
    assert repaired() == [], "somebody may be at it"
    with scope_all():
        type(group(group_id)).objects.filter(pk=group_id).update(cancel_requested_at="2026-01-01 00:00:00Z")

    assert len(repaired()) == 3

    assert set(statuses(*members)) == {CANCELLED}
    assert state(group_id) == GroupState.CANCELLED


def test_a_group_that_is_over_and_one_that_is_not_there_stay_so():
    group_id, (member,) = sealed_group("g", {})
    run(member)
    with tenant_context("bolt"):
        theirs, (their_member,) = sealed_group("g", {})

    assert cancel_group(group_id) == (GroupState.COMPLETED, 0, 0, False)
    assert cancel_group(theirs) is None
    assert cancel_group(uuid4()) is None

    assert group(group_id).cancel_requested_at is None
    assert (status(their_member), state(theirs)) == (READY, GroupState.SEALED)


def test_a_cancel_made_twice_is_made_once():
    group_id, (member,) = sealed_group("g", {})
    cancel_group(group_id, reason="first")
    before = group(group_id)

    answer = cancel_group(group_id, reason="second")

    assert answer == (GroupState.CANCELLED, 0, 0, False)
    assert group(group_id).cancel_requested_at == before.cancel_requested_at
    assert JobState.objects.get(job=member).reason == "first"


def test_a_cancelled_group_comes_back_with_a_member_that_is_retried():
    group_id, (member, other) = sealed_group("g", {}, {})
    dependent = job("g")
    cancel_group(group_id)
    passes()

    retry_many([member, other])
    passes()
    assert (state(group_id), status(dependent)) == (GroupState.SEALED, WAITING)
    run(member, other)

    assert (state(group_id), status(dependent)) == (GroupState.COMPLETED, READY)


def test_members_that_wait_for_each_other_are_cancelled_for_the_group_and_not_for_each_other():
    group_id = open_group("g")
    members = [each.job_id for each in links(
        {"group": "g", "name": "a"},
        {"group": "g", "name": "b", "depends_on": ["a"]},
        {"group": "g", "depends_on": ["b"]},
    )]  # fmt: skip

    cancel_group(group_id)
    passes()

    assert [why(each) for each in members] == [("cancelled", None)] * 3


def test_a_member_that_a_late_edge_holds_back_is_cancelled_too():
    group_id, (member,) = sealed_group("g", {})
    add(member, job())

    cancel_group(group_id)

    assert (status(member), state(group_id)) == (CANCELLED, GroupState.CANCELLED)

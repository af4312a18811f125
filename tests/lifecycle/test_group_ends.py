"""How run groups end, what that calls for, and what brings them back."""

from __future__ import annotations

import json

import pytest
from django.db import connection

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.retry import retry_many
from pgbroker.models import Job, JobState, RunGroup
from pgbroker.states import GroupState
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import OTHER_TYPE, TYPE, status, type_id
from tests.support.links import (
    BLOCKED,
    CANCELLED,
    COMPLETED,
    DEAD,
    FAILED,
    READY,
    WAITING,
    edges,
    end,
    group,
    job,
    open_group,
    passes,
    run,
    seal,
    sealed_group,
    state,
    statuses,
    why,
)

pytestmark = pytest.mark.django_db

CALL = {"job_type": OTHER_TYPE}


@pytest.fixture(autouse=True)
def declared() -> None:
    type_id(OTHER_TYPE), type_id(TYPE)


def callbacks() -> list[Job]:
    """List the jobs that groups have called for, in the order they were made."""
    with scope_all():
        return list(Job.objects.filter(job_type_id=type_id(OTHER_TYPE)).order_by("created_at", "id"))


# ------------------------------------------------------------------ how it ends


@pytest.mark.parametrize(
    ("tolerance", "members", "bad", "expected"),
    [
        ({}, 3, 0, GroupState.COMPLETED),
        ({}, 3, 1, GroupState.FAILED),
        ({"tolerate_count": 0}, 1, 1, GroupState.FAILED),
        ({"tolerate_count": 2}, 4, 2, GroupState.COMPLETED),
        ({"tolerate_count": 2}, 4, 3, GroupState.FAILED),
        ({"tolerate_count": 9}, 2, 2, GroupState.COMPLETED),
        ({"tolerate_percent": 0}, 2, 1, GroupState.FAILED),
        ({"tolerate_percent": 50}, 4, 2, GroupState.COMPLETED),
        ({"tolerate_percent": 50}, 3, 2, GroupState.FAILED),
        ({"tolerate_percent": 49.9}, 4, 2, GroupState.FAILED),
        ({"tolerate_percent": 100}, 2, 2, GroupState.COMPLETED),
        ({"tolerate_percent": 7}, 100, 7, GroupState.COMPLETED),
        ({"tolerate_percent": 29}, 100, 29, GroupState.COMPLETED),
        ({"tolerate_percent": 33.3}, 1000, 333, GroupState.COMPLETED),
        ({"tolerate_percent": 18.4}, 375, 69, GroupState.COMPLETED),
        ({"tolerate_percent": 18.4}, 375, 70, GroupState.FAILED),
    ],
    ids=str,
)
def test_a_group_tolerates_so_many_bad_ends_or_such_a_share(tolerance, members, bad, expected):
    group_id, ids = sealed_group("g", *[{}] * members, **tolerance)
    dependent = job("g")

    if bad:
        end(*ids[:bad], status=FAILED)
    if ids[bad:]:
        end(*ids[bad:])

    assert state(group_id) == expected
    assert status(dependent) == (READY if expected == GroupState.COMPLETED else CANCELLED)


@pytest.mark.parametrize("bad_end", [FAILED, DEAD, CANCELLED], ids=lambda each: each.label)
def test_every_bad_end_of_a_member_is_one(bad_end):
    group_id, (member, other) = sealed_group("g", {}, {})
    end(member, status=bad_end)

    assert state(group_id) == GroupState.SEALED
    end(other)

    assert state(group_id) == GroupState.FAILED


def test_a_group_that_failed_names_the_member_that_failed_first():
    _, (first, second, third, fourth) = sealed_group("g", {}, {}, {}, {})
    dependent, blocked, below = job("g"), job("g", on_failure="block"), job("g", on_failure="ignore")

    for member, how in ((first, CANCELLED), (second, DEAD), (third, FAILED), (fourth, COMPLETED)):
        end(member, status=how)

    assert statuses(dependent, blocked, below) == [CANCELLED, BLOCKED, READY]
    assert why(dependent) == why(blocked) == ("prerequisite_failed", second)
    said = JobState.objects.get(job=dependent).reason
    assert said == f"its prerequisite, run group g, failed because of job {second}"


def test_the_reason_is_found_behind_groups_and_members_that_only_fell():
    root = job()
    _, (member,) = sealed_group("g", {"depends_on": [str(root)]})
    outer, (outer_member,) = sealed_group("outer", {}, depends_on=["g"])
    last = job("outer")

    run(root, how=FAILED)
    passes()

    assert statuses(member, outer_member, last) == [CANCELLED] * 3
    assert state(outer) == GroupState.FAILED
    assert {why(each) for each in (member, outer_member, last)} == {("prerequisite_failed", root)}


def test_groups_wait_for_groups_and_run_one_after_the_other():
    first, (one, two) = sealed_group("first", {}, {})
    second, (three,) = sealed_group("second", {}, depends_on=["first"])
    third, _ = sealed_group("third", depends_on=["second"])
    assert status(three) == WAITING
    assert state(third) == GroupState.SEALED, "it is empty, and waits"

    run(one, two)
    assert status(three) == READY
    run(three)
    passes()

    assert [state(each) for each in (first, second, third)] == [GroupState.COMPLETED] * 3


@pytest.mark.parametrize("policy", ["cancel", "block", "ignore"])
def test_an_empty_group_that_waits_for_what_failed_ends_as_its_edge_says_and_comes_back(policy):
    parent = job()
    group_id, _ = sealed_group("g", depends_on=[str(parent)], on_failure=policy, on_failed=CALL)
    dependent = job("g")

    run(parent, how=FAILED)
    passes()
    after_failure = {"cancel": GroupState.FAILED, "block": GroupState.SEALED, "ignore": GroupState.COMPLETED}[
        policy
    ]
    assert state(group_id) == after_failure
    assert status(dependent) == {"cancel": CANCELLED, "block": WAITING, "ignore": READY}[policy]

    retry_many([parent])
    passes()
    if policy != "ignore":
        assert (state(group_id), status(dependent)) == (GroupState.SEALED, WAITING)
    run(parent)
    passes()

    assert (state(group_id), status(dependent)) == (GroupState.COMPLETED, READY)
    assert len(callbacks()) == (policy == "cancel")


@pytest.mark.parametrize("other", ["failed", "open"])
def test_an_empty_group_that_one_edge_cancels_ends_whatever_the_others_say(other):
    """As a job does, and as a group with a member."""
    blocking, cancelling = job(), job()
    group_id, _ = sealed_group(
        "g",
        depends_on=[
            {"job": str(blocking), "on_failure": "block"},
            {"job": str(cancelling), "on_failure": "cancel"},
        ],
    )
    dependent = job("g")

    run(cancelling, *([blocking] if other == "failed" else []), how=FAILED)
    passes()

    assert (state(group_id), status(dependent)) == (GroupState.FAILED, CANCELLED)
    retry_many([cancelling])
    passes()
    assert (state(group_id), status(dependent)) == (GroupState.SEALED, WAITING)


def test_a_group_whose_prerequisite_failed_fails_whatever_it_tolerates():
    parent = job()
    group_id, members = sealed_group("g", {}, {}, depends_on=[str(parent)], tolerate_percent=100)

    run(parent, how=FAILED)
    passes()

    assert statuses(*members) == [CANCELLED] * 2
    assert state(group_id) == GroupState.FAILED


def test_a_group_whose_blocked_members_were_unblocked_ends_as_they_do():
    parent = job()
    group_id, (member,) = sealed_group("g", {}, depends_on=[str(parent)], on_failure="block")
    run(parent, how=FAILED)
    assert (status(member), state(group_id)) == (BLOCKED, GroupState.SEALED)

    with connection.cursor() as cursor:
        cursor.execute("select outcome from pgbroker.unblock_1(%s)", [[member]])
    run(member)
    passes()

    assert state(group_id) == GroupState.COMPLETED


def test_a_member_with_a_policy_of_its_own_keeps_it():
    parent = job()
    _, (plain, ignoring) = sealed_group(
        "g", {}, {"depends_on": [str(parent)], "on_failure": "ignore"}, depends_on=[str(parent)]
    )

    run(parent, how=FAILED)

    assert statuses(plain, ignoring) == [CANCELLED, READY]


# ------------------------------------------------------------------ what it calls, and comes back to


def test_the_call_for_the_end_is_enqueued_once_with_all_that_it_says():
    call = {"job_type": OTHER_TYPE, "args": {"v": 1, "args": ["g"], "kwargs": {}}, "priority": 7}
    group_id, (member,) = sealed_group("g", {}, on_completed=call, on_failed=CALL)

    run(member)
    passes()
    seal(group_id)

    (made,) = callbacks()
    assert (made.pk, made.priority, made.status) == (group(group_id).completed_job_id, 7, READY)
    assert group(group_id).failed_job_id is None


def test_b056_a_group_that_is_repaired_calls_for_both_ends_once():
    group_id, (one, two, bad) = sealed_group("g", {}, {}, {}, on_completed=CALL, on_failed=CALL)
    dependent = job("g")
    run(one, two)
    run(bad, how=DEAD)
    assert (state(group_id), status(dependent)) == (GroupState.FAILED, CANCELLED)
    assert [made.pk for made in callbacks()] == [group(group_id).failed_job_id]

    retry_many([bad])
    assert state(group_id) == GroupState.SEALED
    run(bad, how=DEAD)
    passes()
    assert (state(group_id), len(callbacks())) == (GroupState.FAILED, 1)
    retry_many([bad])
    passes()
    assert status(dependent) == WAITING
    run(bad)

    assert (state(group_id), status(dependent)) == (GroupState.COMPLETED, READY)
    assert [made.pk for made in callbacks()] == [
        group(group_id).failed_job_id,
        group(group_id).completed_job_id,
    ]


def test_a_retry_of_some_of_the_failed_keeps_the_group_failed_in_the_end():
    group_id, (one, two) = sealed_group("g", {}, {})
    end(one, two, status=FAILED)

    retry_many([one])
    assert state(group_id) == GroupState.SEALED
    run(one)

    assert state(group_id) == GroupState.FAILED


def test_a_retry_does_not_take_back_a_group_that_completed():
    group_id, (good, bad) = sealed_group("g", {}, {}, tolerate_count=1)
    dependent = job("g")
    end(bad, status=FAILED)
    end(good)
    assert (state(group_id), status(dependent)) == (GroupState.COMPLETED, READY)

    retry_many([bad])
    passes()
    run(bad)

    assert (state(group_id), status(dependent)) == (GroupState.COMPLETED, READY)


def test_the_failed_part_of_a_group_comes_back_with_its_prerequisite_outside():
    parent = job()
    group_id, (waits, free) = sealed_group("g", {"depends_on": [str(parent)]}, {})
    dependent = job("g")
    run(free)
    run(parent, how=FAILED)
    passes()
    assert (status(waits), state(group_id), status(dependent)) == (CANCELLED, GroupState.FAILED, CANCELLED)

    retry_many([parent])
    passes()

    assert (status(waits), state(group_id), status(dependent)) == (WAITING, GroupState.SEALED, WAITING)


def test_a_call_that_cannot_be_enqueued_any_more_keeps_nobody_from_being_settled():
    group_id, (member,) = sealed_group("g", {}, on_completed=CALL)
    broken = {"job_type": "none.such"}
    with scope_all():
        RunGroup.objects.filter(pk=group_id).update(on_completed=broken)

    run(member)

    after = group(group_id)
    assert (after.state, after.completed_job_id) == (GroupState.COMPLETED, None)
    assert after.callback_error.startswith("on_completed: unknown_job_type")
    assert status(member) == COMPLETED


def test_a_callback_belongs_to_the_tenant_of_its_group():
    with tenant_context("acme"):
        _, (member,) = sealed_group("g", {}, on_completed=CALL)

    run(member)

    (made,) = callbacks()
    assert made.tenant_id == "acme"


def test_a_group_may_wait_for_the_callback_of_another():
    """By its id: that is known once the first has ended."""
    group_id, _ = sealed_group("first", on_completed=CALL)
    called = group(group_id).completed_job_id

    second, (member,) = sealed_group("second", {}, depends_on=[str(called)])

    assert edges(second) == edges(member) == {called: (0, False)}
    run(called)
    assert status(member) == READY


def test_a_cancelled_member_does_not_come_back_when_its_group_is_retried():
    _, (bad, gone) = sealed_group("g", {}, {})
    cancel_many([gone])
    end(bad, status=FAILED)

    retry_many([bad])
    passes()

    assert status(gone) == CANCELLED


def test_what_is_stored_of_options_is_what_was_given():
    call = {"job_type": OTHER_TYPE, "args": {"v": 1, "args": [1], "kwargs": {"x": None}}}
    group_id = open_group("g", on_failed=call, tolerate_percent=12.5)

    stored = group(group_id)
    assert (stored.on_failed, stored.on_completed, stored.tolerate_percent) == (call, None, 12.5)
    assert json.dumps(stored.on_failed, sort_keys=True) == json.dumps(call, sort_keys=True)


def test_a_group_whose_members_all_fell_by_edges_of_their_own_does_not_complete_before_what_it_waits_for():
    """It tolerates them, and nobody knows yet what becomes of its prerequisite."""
    root, parent = job(), job()
    group_id, members = sealed_group(
        "g",
        {"depends_on": [str(root)]},
        {"depends_on": [str(root)]},
        depends_on=[str(parent)],
        tolerate_count=2,
    )
    run(root, how=FAILED)
    passes()
    assert statuses(*members) == [CANCELLED] * 2
    assert state(group_id) == GroupState.SEALED

    run(parent, how=FAILED)
    passes()
    assert state(group_id) == GroupState.FAILED


def test_a_group_whose_members_all_fell_completes_with_what_it_waits_for():
    root, parent = job(), job()
    group_id, members = sealed_group(
        "g", {"depends_on": [str(root)]}, depends_on=[str(parent)], tolerate_count=1
    )
    run(root, how=FAILED)
    passes()
    assert (statuses(*members), state(group_id)) == ([CANCELLED], GroupState.SEALED)

    run(parent)
    passes()
    assert state(group_id) == GroupState.COMPLETED

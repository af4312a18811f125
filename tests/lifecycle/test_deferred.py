"""References to what is still to come: they become edges, or end in time as a prerequisite that failed."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from django.db import connection

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.retry import Retried, retry_many
from pgbroker.lifecycle.unblock import unblock_many
from pgbroker.models import DeferredReference, JobDependency, JobState
from pgbroker.tenancy import tenant_context
from tests.support.jobs import status
from tests.support.links import (
    BLOCKED,
    CANCELLED,
    FAILED,
    READY,
    WAITING,
    add,
    deadlines_pass,
    deferred,
    edges,
    end,
    job,
    levels,
    links,
    open_group,
    passes,
    references,
    repaired,
    run,
    seal,
    sealed_group,
    statuses,
    why,
)

pytestmark = pytest.mark.django_db


def waits_for(*names: str | None, within: float = 3600, on_failure: str = "cancel") -> UUID:
    return job(
        *({"group": "later", "within_seconds": within, **({"job": name} if name else {})} for name in names),
        on_failure=on_failure,
    )


def test_a_reference_becomes_an_edge_once_the_group_is_there():
    dependent = waits_for(None)
    assert deferred() == 0

    group_id = open_group("later")
    assert deferred() == 1

    assert references(dependent) == []
    assert edges(dependent) == {group_id: (0, False)}
    seal(group_id)
    assert status(dependent) == READY


def test_a_reference_to_a_member_waits_for_that_member():
    dependent = waits_for("one")
    open_group("later")
    links({"group": "later", "name": "two"})
    assert deferred() == 0, "its group is there, and it is not"

    (member,) = links({"group": "later", "name": "one"})
    assert deferred() == 1

    assert edges(dependent) == {member.job_id: (0, False)}
    end(member.job_id)
    assert status(dependent) == READY


def test_a_reference_that_comes_true_is_as_deep_as_what_it_names():
    dependent, to_group = job(job(), {"group": "later", "job": "last", "within_seconds": 60}), waits_for(None)
    below = job(dependent)
    group_id = open_group("later")
    links(
        {"group": "later", "name": "first"},
        {"group": "later", "name": "second", "depends_on": ["first"]},
        {"group": "later", "name": "last", "depends_on": ["second"]},
    )

    deferred()
    seal(group_id)

    assert levels(dependent, below, to_group) == [3, 4, 3]
    assert set(JobDependency.objects.filter(dependent_id=dependent).values_list("level", flat=True)) == {3}


@pytest.mark.parametrize(("level", "below"), [(10_000, 0), (9_999, 1), (9_998, 2)])
def test_a_reference_to_what_is_too_deep_ends_as_if_it_had_expired(level, below):
    dependent = waits_for("last")
    chain = [dependent]
    for _ in range(below):
        chain.append(job(chain[-1]))
    open_group("later")
    (last,) = links({"group": "later", "name": "last", "depends_on": [str(job())]})
    # As if a chain of that length were above it.
    JobDependency.objects.filter(dependent_id=last.job_id).update(level=level)

    assert deferred() == 1
    passes()

    assert (set(statuses(*chain)), references(dependent)) == ({CANCELLED}, [])
    assert not edges(dependent)
    assert why(dependent) == ("reference_expired", None)
    assert JobState.objects.get(job=dependent).reason == (
        "it waited for job last of run group later: the chain would be longer than 10000 jobs"
    )


def test_what_came_and_ended_meanwhile_decides_at_once():
    free, cancelled = waits_for("good"), waits_for("bad")
    open_group("later")
    good, bad = links({"group": "later", "name": "good"}, {"group": "later", "name": "bad"})
    end(good.job_id)
    end(bad.job_id, status=FAILED)

    assert deferred() == 2

    assert statuses(free, cancelled) == [READY, CANCELLED]
    assert why(cancelled) == ("prerequisite_failed", bad.job_id)


def test_a_job_waits_for_the_last_of_its_references():
    parent = job()
    dependent = job(
        parent, {"group": "later", "within_seconds": 60}, {"group": "other", "within_seconds": 60}
    )
    sealed_group("later")
    deferred()
    run(parent)
    assert status(dependent) == WAITING

    sealed_group("other")
    deferred()

    assert status(dependent) == READY


@pytest.mark.parametrize(
    ("policy", "expected"), [("cancel", CANCELLED), ("block", BLOCKED), ("ignore", READY)]
)
def test_a_reference_whose_time_is_over_does_what_a_failed_prerequisite_does(policy, expected):
    dependent = waits_for("one", on_failure=policy)
    below = job(dependent)
    deadlines_pass(dependent)

    assert deferred() == 1
    passes()

    assert (status(dependent), references(dependent)) == (expected, [])
    assert status(below) == (CANCELLED if policy == "cancel" else WAITING)
    if policy != "ignore":
        assert why(dependent) == ("reference_expired", None)
        assert JobState.objects.get(job=dependent).reason == (
            "it waited for job one of run group later: it was not there in time"
        )


def test_of_two_references_one_that_came_does_not_save_the_job():
    dependent = waits_for(None, "one", on_failure="block")
    sealed_group("later")
    deadlines_pass(dependent)

    deferred()

    assert (status(dependent), why(dependent)) == (BLOCKED, ("reference_expired", None))
    assert repaired() == []


def test_a_job_that_a_reference_has_stopped_does_not_run_when_another_prerequisite_ends():
    """A missing name is never a satisfied dependency."""
    parent = job()
    dependent = job(parent, {"group": "later", "within_seconds": 5}, on_failure="block")
    deadlines_pass(dependent)
    deferred()

    run(parent)
    passes()

    assert (status(dependent), why(dependent)) == (BLOCKED, ("reference_expired", None))


@pytest.mark.parametrize("policy", ["cancel", "block"])
def test_a_reference_that_expires_behind_a_failed_prerequisite_is_not_forgotten(policy):
    parent = job()
    dependent = job(parent, {"group": "later", "within_seconds": 5, "on_failure": "block"}, on_failure=policy)
    run(parent, how=FAILED)
    deadlines_pass(dependent)
    deferred()

    retry_many([parent])
    passes()
    run(parent)
    passes()

    assert status(dependent) in (BLOCKED, CANCELLED)
    assert why(dependent) == ("reference_expired", None)


@pytest.mark.parametrize(
    ("policy", "expected"), [("cancel", CANCELLED), ("block", BLOCKED), ("ignore", READY)]
)
@pytest.mark.parametrize(
    "cycle", ["a member waits for the job", "the member is the job", "it is in the group"]
)
def test_a_reference_that_would_close_a_cycle_when_it_comes_true_ends_as_if_it_had_expired(
    cycle, policy, expected
):
    if cycle == "a member waits for the job":
        dependent = waits_for(None, on_failure=policy)
        open_group("later")
        links({"group": "later", "depends_on": [str(dependent)], "on_failure": "ignore"})
    else:
        open_group("own")
        name = {"job": "me"} if cycle == "the member is the job" else {}
        with connection.cursor() as cursor:
            (dependent,) = (
                answer.job_id
                for answer in links(
                    {
                        "group": "own",
                        "name": "me",
                        "depends_on": [{"group": "later", **name, "within_seconds": 5}],
                        "on_failure": policy,
                    }
                )
            )
            cursor.execute(
                "update pgbroker.deferred_reference set group_name = 'own' where dependent_id = %s",
                [dependent],
            )

    assert deferred() == 1

    assert status(dependent) == expected
    if policy != "ignore":
        assert why(dependent) == ("reference_expired", None)
        assert "the job would wait for itself" in JobState.objects.get(job=dependent).reason
    assert JobDependency.objects.filter(dependent_id=dependent).count() == 0


def test_a_group_of_another_tenant_is_not_what_a_reference_waits_for():
    with tenant_context("acme"):
        dependent = waits_for(None)
    with tenant_context("bolt"):
        sealed_group("later")

    assert deferred() == 0
    assert status(dependent) == WAITING
    with tenant_context("acme"):
        sealed_group("later")
    assert deferred() == 1
    assert status(dependent) == READY


def test_a_job_that_is_over_takes_its_references_along():
    dependent = waits_for(None)
    end(dependent, status=CANCELLED)
    sealed_group("later")

    deferred()

    assert status(dependent) == CANCELLED
    assert references(dependent) == []


def test_pages_of_references_go_by_their_number():
    dependents = [waits_for(None) for _ in range(5)]
    sealed_group("later")

    assert deferred(limit=2) == 5
    assert set(statuses(*dependents)) == {READY}


def test_a_late_reference_is_one_as_well():
    dependent = job()
    add(dependent, {"group": "later", "within_seconds": 5})
    deadlines_pass(dependent)

    deferred()

    assert (status(dependent), why(dependent)) == (CANCELLED, ("reference_expired", None))
    assert uuid4() not in edges(dependent)


# ------------------------------------------------------------------ what has expired, and is retried


def expired(name: str | None = None, *more: object, on_failure: str = "cancel") -> UUID:
    dependent = job(
        {"group": "later", "within_seconds": 5, **({"job": name} if name else {})},
        *more,
        on_failure=on_failure,
    )
    deadlines_pass(dependent)
    assert deferred() > 0
    return dependent


def retried(dependent: UUID, *others: UUID) -> Retried:
    return next(answer for answer in retry_many([dependent, *others]) if answer.job_id == dependent)


@pytest.mark.parametrize("name", [None, "one"])
def test_a_retry_is_refused_while_what_did_not_come_in_time_is_not_there(name):
    dependent = expired(name)
    if name:
        open_group("later")

    answer = retried(dependent)

    assert (answer.outcome, answer.holder_id) == ("prerequisite_failed", None)
    assert answer.missing == ("job one of run group later" if name else "run group later")
    assert (status(dependent), why(dependent)) == (CANCELLED, ("reference_expired", None))
    assert deferred() == 0


def test_a_retry_waits_for_what_came_too_late():
    dependent = expired()
    below = job(dependent)
    passes()
    group_id = open_group("later")

    assert retried(dependent).outcome == "retried"

    passes()
    assert (statuses(dependent, below), why(dependent)) == ([WAITING, WAITING], None)
    assert repaired() == []
    assert deferred() == 1
    assert (status(dependent), edges(dependent)) == (WAITING, {group_id: (0, False)})
    assert repaired() == []
    seal(group_id)
    passes()
    assert statuses(dependent, below) == [READY, WAITING]


def test_a_retry_waits_for_a_member_that_came_too_late_and_has_completed():
    dependent = expired("one")
    open_group("later")
    (member,) = links({"group": "later", "name": "one"})
    end(member.job_id)

    assert retried(dependent).outcome == "retried"
    deferred()

    assert (status(dependent), edges(dependent)) == (READY, {member.job_id: (10, True)})


def test_a_retry_is_refused_when_what_came_too_late_ended_badly():
    dependent = expired("one")
    open_group("later")
    (member,) = links({"group": "later", "name": "one"})
    end(member.job_id, status=FAILED)

    answer = retried(dependent)

    assert (answer.outcome, answer.holder_id, answer.missing) == ("prerequisite_failed", member.job_id, None)
    assert status(dependent) == CANCELLED
    assert retried(dependent, member.job_id).outcome == "retried", "not so if that is retried with it"
    deferred()
    assert statuses(dependent, member.job_id) == [WAITING, READY]


def test_of_two_names_that_expired_each_is_looked_up_again():
    dependent = expired(None, {"group": "other", "within_seconds": 3600})
    sealed_group("other")

    assert retried(dependent).missing == "run group later"
    sealed_group("later")
    assert retried(dependent).outcome == "retried"
    assert deferred() == 2
    assert status(dependent) == READY


def test_a_name_that_expires_when_its_job_is_cancelled_is_not_forgotten():
    dependent = waits_for(None, within=5)
    cancel_many([dependent])
    deadlines_pass(dependent)
    deferred()

    assert retried(dependent).missing == "run group later"


def test_what_came_and_went_again_before_a_pass_expires_again():
    dependent = expired()
    open_group("later")
    assert retried(dependent).outcome == "retried"
    with connection.cursor() as cursor:
        cursor.execute("update pgbroker.deferred_reference set group_name = 'gone'")

    assert deferred() == 1

    assert (status(dependent), why(dependent)) == (CANCELLED, ("reference_expired", None))


def test_a_job_that_is_blocked_for_a_name_runs_without_it_when_unblocked():
    dependent = expired(on_failure="block")
    sealed_group("later")

    assert [answer.status for answer in unblock_many([dependent])] == [READY]

    assert deferred() == 0
    assert not DeferredReference.objects.exists()


def test_a_job_that_is_blocked_for_a_name_waits_for_it_again_when_cancelled_and_retried():
    dependent = expired(on_failure="block")
    cancel_many([dependent])
    assert retried(dependent).missing == "run group later"
    group_id = open_group("later")

    assert retried(dependent).outcome == "retried"
    deferred()

    assert (status(dependent), edges(dependent)) == (WAITING, {group_id: (0, False)})


def test_a_job_that_a_name_has_blocked_does_not_come_back_with_another_prerequisite():
    parent = job()
    dependent = expired(None, {"job": str(parent), "on_failure": "cancel"}, on_failure="block")
    run(parent, how=FAILED)
    passes()
    assert (status(dependent), why(dependent)) == (CANCELLED, ("reference_expired", None))

    retry_many([parent])
    passes()
    run(parent)
    passes()

    assert status(dependent) == CANCELLED
    assert repaired() == []
    assert retried(dependent).missing == "run group later"


def test_names_that_have_expired_are_no_burden_to_a_pass():
    dependents = [expired() for _ in range(3)]
    late = waits_for(None)
    sealed_group("later")

    assert deferred(limit=1) == 1

    assert statuses(*dependents, late) == [CANCELLED, CANCELLED, CANCELLED, READY]

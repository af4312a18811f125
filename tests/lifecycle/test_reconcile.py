"""reconcile: what a restore or a fault broke is put right, and reported."""

from __future__ import annotations

import pytest
from django.db import connection

from pgbroker.lifecycle.reconcile import START, reconcile
from pgbroker.models import JobDependency, JobState
from pgbroker.states import GroupState
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import status
from tests.support.links import (
    BLOCKED,
    CANCELLED,
    COMPLETED,
    FAILED,
    READY,
    SCHEDULED,
    WAITING,
    edges,
    guards_off,
    job,
    left,
    links,
    open_group,
    passes,
    repaired,
    run,
    sealed_group,
    state,
    statuses,
    why,
)

pytestmark = pytest.mark.django_db


def unseen(sql: str, *parameters: object) -> None:
    """Write past triggers and guards, as a restore or a fault does."""
    with guards_off(), connection.cursor() as cursor:
        cursor.execute("alter table pgbroker.job disable trigger user")
        cursor.execute(sql, parameters)
        cursor.execute("alter table pgbroker.job enable trigger user")


END_UNSEEN = (
    "update pgbroker.job set status = %s, finished_at = statement_timestamp(), ready_at = coalesce(ready_at, "
    "statement_timestamp()) where id = %s"
)


def test_where_all_is_well_nothing_is_repaired():
    parent, broken = job(), job()
    job(parent), job(broken), job(broken, on_failure="block"), job({"group": "later", "within_seconds": 5})
    open_group("open", parent)
    sealed_group("g", {"depends_on": [str(parent)]}, {})
    run(broken, how=FAILED)
    passes()

    assert repaired() == []


@pytest.mark.parametrize(
    ("policy", "how", "expected"),
    [
        ("cancel", COMPLETED, READY), ("cancel", FAILED, CANCELLED), ("block", FAILED, BLOCKED),
        ("ignore", FAILED, READY),
    ],
)  # fmt: skip
def test_an_edge_that_missed_an_end_is_told(policy, how, expected):
    parent = job()
    dependent = job(parent, on_failure=policy)
    unseen(END_UNSEEN, int(how), parent)
    assert status(dependent) == WAITING

    assert repaired() == [dependent]

    assert status(dependent) == expected
    assert repaired() == []


def test_an_edge_that_missed_a_revival_is_told():
    parent = job()
    dependent = job(parent)
    run(parent, how=FAILED)
    unseen("update pgbroker.job set status = 2, finished_at = null where id = %s", parent)

    assert repaired() == [dependent]

    assert status(dependent) == WAITING
    run(parent)
    assert status(dependent) == READY


def test_a_job_that_waits_for_nothing_is_freed():
    parent = job()
    dependent, later = job(parent), job(parent, delay_seconds=3600)
    with guards_off():
        JobDependency.objects.filter(prerequisite_id=parent).delete()

    assert sorted(repaired()) == sorted([dependent, later])

    assert statuses(dependent, later) == [READY, SCHEDULED]


@pytest.mark.parametrize(
    ("policy", "expected"), [("cancel", CANCELLED), ("block", BLOCKED), ("ignore", READY)]
)
def test_a_prerequisite_that_is_gone_counts_as_cancelled(policy, expected):
    parent, other = job(), job()
    dependent, waits = job(parent, on_failure=policy), job(parent, other, on_failure="ignore")
    unseen("delete from pgbroker.job where id = %s", parent)

    assert sorted(repaired()) == sorted([dependent, waits])

    assert statuses(dependent, waits) == [expected, WAITING]
    assert edges(dependent)[parent][0] == CANCELLED
    if policy != "ignore":
        assert why(dependent) == ("prerequisite_failed", parent)
        assert "is gone" in JobState.objects.get(job=dependent).reason
    assert repaired() == []


def test_a_job_that_waits_although_its_prerequisite_failed_is_decided():
    parent = job()
    dependent, blocked = job(parent), job(parent, on_failure="block")
    run(parent, how=FAILED)
    unseen("update pgbroker.job set status = 1, finished_at = null where id = any (%s)", [dependent, blocked])

    assert sorted(repaired()) == sorted([dependent, blocked])

    assert statuses(dependent, blocked) == [CANCELLED, BLOCKED]


def test_a_blocked_job_whose_prerequisites_live_waits():
    parent = job()
    dependent = job(parent, on_failure="block")
    unseen("update pgbroker.job set status = 5 where id = %s", dependent)

    assert repaired() == [dependent]

    assert status(dependent) == WAITING


def test_a_job_that_should_have_come_back_does():
    parent = job()
    dependent = job(parent)
    run(parent, how=FAILED)
    unseen("update pgbroker.job set status = 2, finished_at = null where id = %s", parent)
    with guards_off():
        JobDependency.objects.update(outcome=0)

    assert repaired() == [dependent]

    assert status(dependent) == WAITING


@pytest.mark.parametrize("how", [COMPLETED, FAILED])
def test_a_group_whose_members_have_ended_ends_and_its_dependents_follow(how):
    group_id, (member,) = sealed_group("g", {})
    dependent = job("g")
    unseen(END_UNSEEN, int(how), member)
    assert state(group_id) == GroupState.SEALED

    assert group_id in repaired()
    passes()

    assert state(group_id) == (GroupState.COMPLETED if how == COMPLETED else GroupState.FAILED)
    assert status(dependent) == (READY if how == COMPLETED else CANCELLED)


def test_an_empty_group_that_missed_the_end_of_what_it_waits_for_ends():
    parent = job()
    group_id, _ = sealed_group("g", depends_on=[str(parent)])
    unseen(END_UNSEEN, int(COMPLETED), parent)

    assert group_id in repaired()
    passes()

    assert state(group_id) == GroupState.COMPLETED


def test_what_a_pass_is_about_to_do_is_no_repair():
    parent = job()
    links(*({"depends_on": [str(parent)]} for _ in range(600)))
    group_id, (member,) = sealed_group("g", {})
    run(parent)
    assert left() > 0
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(
            "insert into pgbroker.unresolved (prerequisite_id, tenant_id) values (%s, 'default')", [group_id]
        )
    unseen(END_UNSEEN, int(COMPLETED), member)

    assert repaired() == []


def test_pages_go_by_the_id_and_one_that_breaks_may_be_left_out():
    parent = job()
    dependents = sorted(
        answer.job_id for answer in links(*({"depends_on": [str(parent)]} for _ in range(10)))
    )
    unseen(END_UNSEEN, int(COMPLETED), parent)

    first = reconcile(after=START, limit=4, skip=1)
    assert first == (dependents[4], dependents[1:5])
    second = reconcile(after=first.last, limit=4)
    assert second == (dependents[8], dependents[5:9])
    third = reconcile(after=second.last, limit=4)
    assert third == (None, dependents[9:])
    assert statuses(*dependents) == [WAITING] + [READY] * 9


def test_rows_of_all_tenants_are_looked_at():
    dependents = []
    for tenant in ("acme", "bolt"):
        with tenant_context(tenant):
            parent = job()
            dependents.append(job(parent))
            unseen(END_UNSEEN, int(COMPLETED), parent)

    assert sorted(repaired()) == sorted(dependents)

"""Run groups are opened, filled and sealed; what is wrong with one is refused."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.db import connection

from pgbroker.models import Job
from pgbroker.states import GroupState
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import OTHER_TYPE, TYPE, status, type_id
from tests.support.links import (
    OPEN,
    READY,
    WAITING,
    end,
    group,
    group_options,
    job,
    links,
    open_group,
    passes,
    refused,
    run,
    seal,
    sealed_group,
    state,
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


# ------------------------------------------------------------------ open and seal


def test_a_group_is_open_until_it_is_sealed():
    group_id = open_group("g")
    (member,) = links({"group": "g"})
    end(member.job_id)
    assert (state(group_id), group(group_id).sealed_at) == (GroupState.OPEN, None)

    assert seal(group_id) == GroupState.COMPLETED

    after = group(group_id)
    assert after.sealed_at is not None
    assert after.finished_at is not None


def test_b058_an_empty_group_completes_when_it_is_sealed_and_not_before():
    group_id = open_group("g", on_completed=CALL)
    dependent = job("g")
    passes()
    assert (state(group_id), status(dependent), callbacks()) == (GroupState.OPEN, WAITING, [])

    assert seal(group_id) == GroupState.COMPLETED

    assert status(dependent) == READY
    assert len(callbacks()) == 1


def test_a_group_with_live_members_is_sealed_and_ends_with_the_last_of_them():
    group_id = open_group("g")
    first, second = (each.job_id for each in links({"group": "g"}, {"group": "g"}))
    dependent = job("g")
    assert seal(group_id) == GroupState.SEALED

    run(first)
    assert (state(group_id), status(dependent)) == (GroupState.SEALED, WAITING)
    run(second)

    assert (state(group_id), status(dependent)) == (GroupState.COMPLETED, READY)


def test_sealing_twice_changes_nothing_and_a_group_of_another_tenant_is_not_there():
    group_id, _ = sealed_group("g", {})
    before = group(group_id)

    assert seal(group_id) == GroupState.SEALED
    with tenant_context("acme"), connection.cursor() as cursor:
        cursor.execute("select pgbroker.seal_group_1(%s), pgbroker.seal_group_1(%s)", [group_id, uuid4()])
        assert cursor.fetchone() == (None, None)

    assert (group(group_id).sealed_at, group(group_id).state) == (before.sealed_at, before.state)


def test_a_group_is_as_deep_as_its_longest_chain_and_what_follows_it_deeper():
    group_id = open_group("g")
    links(
        {"group": "g", "name": "a"},
        {"group": "g", "name": "b", "depends_on": ["a"]},
        {"group": "g", "depends_on": ["b"]},
    )
    seal(group_id)
    assert group(group_id).level == 2

    next_id = open_group("next", "g")
    links({"group": "next", "name": "a"}, {"group": "next", "depends_on": ["a"]})
    seal(next_id)

    assert group(next_id).level == 4


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("[]", "invalid_option"), ("5", "invalid_option"), ("null", "invalid_option"), ('"x"', "invalid_option"),
        ('{"x": 1}', "invalid_option"), ('{"tolerate_count": -1}', "invalid_option"),
        ('{"tolerate_count": 1.5}', "invalid_option"), ('{"tolerate_count": "5"}', "invalid_option"),
        ('{"tolerate_count": 1e10}', "invalid_option"), ('{"tolerate_percent": 101}', "invalid_option"),
        ('{"tolerate_percent": -1}', "invalid_option"), ('{"tolerate_percent": "5%"}', "invalid_option"),
        ('{"tolerate_count": 1, "tolerate_percent": 1}', "invalid_option"), ('{"depends_on": {}}', "invalid_option"),
        ('{"depends_on": [5]}', "invalid_option"), ('{"on_failure": "x"}', "invalid_option"),
        ('{"on_failure": 5}', "invalid_option"), ('{"on_failure": []}', "invalid_option"),
        ('{"on_completed": 5}', "invalid_entry"), ('{"on_completed": []}', "invalid_entry"),
        ('{"on_failed": "x"}', "invalid_entry"), ('{"on_completed": {}}', "unknown_job_type"),
        ('{"on_completed": {"job_type": "none.such"}}', "unknown_job_type"),
        ('{"on_completed": {"job_type": "tests.ok", "queue": "none"}}', "unknown_queue"),
        ('{"on_failed": {"job_type": "tests.ok", "prioritty": 5}}', "invalid_option"),
        ('{"on_failed": {"job_type": "tests.ok", "priority": "x"}}', "invalid_option"),
        ('{"on_failed": {"job_type": "tests.ok", "idempotency_key": "k"}}', "invalid_option"),
        ('{"on_completed": {"job_type": "tests.ok", "group": "g"}}', "invalid_option"),
        ('{"on_completed": {"job_type": "tests.ok", "depends_on": ["g"]}}', "invalid_option"),
        ('{"on_completed": {"job_type": "tests.ok", "id": "00000000-0000-0000-0000-000000000001"}}', "invalid_option"),
        ('{"depends_on": ["none"]}', "dependency_not_found"), ('{"depends_on": ["g"]}', "self_dependency"),
        ('{"depends_on": [{"group": "later", "within_seconds": 5}]}', "invalid_option"),
    ],
    ids=str,
)  # fmt: skip
def test_options_that_are_wrong_open_no_group(options, code):
    assert refused(OPEN, "g", options)[0] == code


@pytest.mark.parametrize("name", ["", "x" * 256, None])
def test_a_name_that_is_none_opens_no_group(name):
    assert refused(OPEN, name, "{}")[0] == "invalid_option"


def test_a_name_that_is_taken_is_refused_within_its_tenant_alone():
    open_group("g")

    assert refused(OPEN, "g", "{}") == ("group_exists", "run group 'g' exists")
    with tenant_context("acme"):
        open_group("g")


def test_what_a_group_waits_for_is_refused_as_for_a_job():
    with tenant_context("bolt"):
        theirs = job()
    first = job()

    assert refused(OPEN, "g", group_options(theirs)) == ("dependency_not_found", f"there is no job {theirs}")
    assert refused(OPEN, "g", group_options(first, first))[0] == "duplicate_dependency"
    assert refused(OPEN, "g", group_options(*[str(uuid4())] * 10_001))[0] in (
        "too_many_dependencies", "dependency_not_found",
    )  # fmt: skip


def test_options_that_are_null_are_none():
    group_id = open_group(
        "g",
        tolerate_count=None,
        tolerate_percent=50,
        on_completed=None,
        on_failed=None,
        depends_on=None,
        on_failure=None,
    )

    assert (group(group_id).tolerate_count, group(group_id).tolerate_percent) == (None, 50)

"""What an entry may wait for: names become ids, and what is over already decides at once."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from pgbroker.models import JobDependency
from pgbroker.states import GroupState, OnFailure
from pgbroker.tenancy import tenant_context
from tests.support.jobs import status
from tests.support.links import (
    BLOCKED,
    CANCELLED,
    COMPLETED,
    FAILED,
    READY,
    SCHEDULED,
    WAITING,
    count_all,
    edges,
    end,
    job,
    levels,
    links,
    open_group,
    references,
    seal,
    state,
    statuses,
    why,
)

pytestmark = pytest.mark.django_db


# ------------------------------------------------------------------ what is taken


def test_a_job_that_depends_on_another_waits_and_is_ready_when_that_has_completed():
    first = job()
    second = job(first)
    assert statuses(first, second) == [READY, WAITING]

    end(first)

    assert status(second) == READY
    assert edges(second) == {first: (COMPLETED, True)}


def test_jobs_of_one_call_may_name_each_other_by_id_in_any_order():
    first, second, third = (str(uuid4()) for _ in range(3))

    answers = links(
        {"id": third, "depends_on": [second, {"job": first}]},
        {"id": second, "depends_on": [first]},
        {"id": first},
    )

    assert [answer.outcome for answer in answers] == ["created"] * 3
    assert statuses(UUID(first), UUID(second), UUID(third)) == [READY, WAITING, WAITING]
    assert edges(UUID(third)) == {UUID(first): (0, False), UUID(second): (0, False)}
    assert levels(UUID(first), UUID(second), UUID(third)) == [0, 1, 2]


def test_a_name_alone_is_a_job_of_the_own_group_or_a_run_group():
    open_group("g")
    open_group("nightly")
    (first,) = links({"group": "g", "name": "extract"})

    same_call, loaded, nightly = links(
        {"group": "g", "name": "load", "depends_on": ["extract"]},
        {"group": "g", "depends_on": ["load"]},
        {"depends_on": ["nightly"]},
    )

    assert list(edges(same_call.job_id)) == [first.job_id]
    assert list(edges(loaded.job_id)) == [same_call.job_id]
    with_groups = JobDependency.objects.get(dependent_id=nightly.job_id)
    assert with_groups.kind == JobDependency.Kind.JOB_ON_GROUP


def test_group_and_name_are_not_run_together():
    """ "a/b" with "c" is another job than "a" with "b/c"."""
    for name in ("a/b", "a", 'q"\\%'):
        open_group(name)

    made = links(
        {"group": "a/b", "name": "c"},
        {"group": "a", "name": "b/c"},
        {"group": 'q"\\%', "name": "Grüße % ' \\ \N{SNOWMAN}"},
        {"depends_on": [{"group": "a/b", "job": "c"}]},
        {"depends_on": [{"group": "a", "job": "b/c"}]},
        {"group": "a", "depends_on": ["b/c"]},
        {"depends_on": [{"group": 'q"\\%', "job": "Grüße % ' \\ \N{SNOWMAN}"}]},
    )

    assert [answer.outcome for answer in made] == ["created"] * 7
    waits_for = [list(edges(answer.job_id)) for answer in made[3:]]
    assert waits_for == [[made[0].job_id], [made[1].job_id], [made[1].job_id], [made[2].job_id]]


def test_what_is_over_already_is_satisfied_or_decides_at_once():
    done, broken = job(), job()
    end(done)
    end(broken, status=FAILED)

    free, cancelled, blocked, ignoring = (
        job(done),
        job(broken),
        job(broken, on_failure="block"),
        job({"job": str(broken), "on_failure": "ignore"}),
    )

    assert statuses(free, cancelled, blocked, ignoring) == [READY, CANCELLED, BLOCKED, READY]
    assert why(cancelled) == why(blocked) == ("prerequisite_failed", broken)


def test_a_job_that_is_to_run_later_waits_and_is_scheduled_when_it_is_set_free():
    first = job()
    later = job(first, delay_seconds=3600)
    assert status(later) == WAITING

    end(first)

    assert status(later) == SCHEDULED


def test_a_reference_may_have_a_policy_of_its_own_and_null_is_none():
    first, second, third = job(), job(), job()

    dependent = job(
        {"job": str(first), "on_failure": "ignore"},
        {"job": str(second), "on_failure": None},
        third,
        on_failure="block",
    )

    policies = JobDependency.objects.filter(dependent_id=dependent).values_list(
        "prerequisite_id", "on_failure"
    )
    assert dict(policies) == {first: OnFailure.IGNORE, second: OnFailure.BLOCK, third: OnFailure.BLOCK}


def test_levels_count_the_longest_chain_whichever_edge_is_asked():
    chain = [job()]
    for _ in range(3):
        chain.append(job(chain[-1]))

    wide = job(chain[0], chain[3], chain[1])
    below = job(wide)

    assert levels(wide, below) == [4, 5]
    assert set(JobDependency.objects.filter(dependent_id=wide).values_list("level", flat=True)) == {4}


def test_a_call_made_twice_with_its_ids_is_answered_with_what_is_there():
    top, bottom = str(uuid4()), str(uuid4())
    call = [{"id": top}, {"id": bottom, "depends_on": [top]}]
    links(*call)
    before = count_all()

    again = links(*call)

    assert [each.outcome for each in again] == ["existing"] * 2
    assert count_all() == before


def test_an_id_of_another_tenant_becomes_a_new_one_and_who_waits_for_it_follows():
    with tenant_context("bolt"):
        theirs, theirs_too = job(), job()
    bottom = str(uuid4())

    with tenant_context("acme"):
        top, middle, last = links(
            {"id": str(theirs)},
            {"id": str(theirs_too), "depends_on": [str(theirs)]},
            {"id": bottom, "depends_on": [str(theirs_too)]},
        )

    assert [each.outcome for each in (top, middle, last)] == ["created"] * 3
    assert {top.job_id, middle.job_id} & {theirs, theirs_too} == set()
    assert edges(middle.job_id) == {top.job_id: (0, False)}
    assert edges(last.job_id) == {middle.job_id: (0, False)}
    assert statuses(top.job_id, middle.job_id, last.job_id) == [READY, WAITING, WAITING]


def test_an_entry_that_waits_for_the_holder_of_a_key_waits_for_that_job():
    (holder,) = links({"idempotency_key": "k"})
    second, third = str(uuid4()), str(uuid4())

    again, dependent = links({"id": second, "idempotency_key": "k"}, {"id": third, "depends_on": [second]})

    assert (again.outcome, again.job_id) == ("existing", holder.job_id)
    assert edges(dependent.job_id) == {holder.job_id: (0, False)}


def test_what_waits_for_an_entry_that_replaces_another_of_the_call_waits_for_that():
    """An entry that replaces another of the same call comes after it, and before what waits for it."""
    old, new, waiting, other = (str(uuid4()) for _ in range(4))

    answers = links(
        {"id": waiting, "depends_on": [new]},
        {"id": old, "idempotency_key": "k"},
        {"id": new, "idempotency_key": "k", "on_conflict": "replace", "priority": 1},
        {"id": other, "depends_on": [old]},
    )

    assert [each.outcome for each in answers] == ["created", "created", "replaced", "created"]
    assert statuses(UUID(waiting), UUID(old), UUID(new), UUID(other)) == [
        WAITING,
        CANCELLED,
        READY,
        CANCELLED,
    ]


# ------------------------------------------------------------------ groups, and references to what is to come


def test_a_member_waits_for_what_its_group_waits_for():
    first, second = job(), job()
    group_id = open_group("g", first, second, on_failure="block")
    end(first)

    one, two = links({"group": "g"}, {"group": "g", "depends_on": [str(second)], "on_failure": "ignore"})

    assert statuses(one.job_id, two.job_id) == [WAITING] * 2
    assert edges(one.job_id) == edges(two.job_id) == {second: (0, False)}
    policies = JobDependency.objects.values_list("dependent_id", "on_failure")
    assert {(one.job_id, OnFailure.BLOCK), (two.job_id, OnFailure.IGNORE)} <= set(policies)
    assert edges(group_id) == {first: (COMPLETED, True), second: (0, False)}
    end(second)
    assert statuses(one.job_id, two.job_id) == [READY] * 2


def test_a_job_waits_for_a_group_until_it_is_sealed_and_over():
    group_id = open_group("g")
    (member,) = links({"group": "g"})
    dependent = job("g")
    end(member.job_id)
    assert status(dependent) == WAITING

    seal(group_id)

    assert (state(group_id), status(dependent)) == (GroupState.COMPLETED, READY)


def test_a_deferred_reference_that_is_there_already_is_an_edge():
    open_group("g")
    (member,) = links({"group": "g", "name": "one"})

    dependent = job({"group": "g", "job": "one", "within_seconds": 60})

    assert edges(dependent) == {member.job_id: (0, False)}
    assert references(dependent) == []


def test_a_deferred_reference_holds_its_job_back():
    dependent = job({"group": "g", "job": "one", "within_seconds": 60}, {"group": "g", "within_seconds": 0.5})

    assert status(dependent) == WAITING
    assert references(dependent) == [("g", "one"), ("g", None)]

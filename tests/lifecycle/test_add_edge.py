"""add_edge: a job that has not started waits for more; what would close a cycle is refused."""

from __future__ import annotations

import itertools
import json
import time
from uuid import UUID, uuid4

import pytest

from pgbroker.lifecycle.add_edge import add_edge
from pgbroker.lifecycle.retry import retry_many
from pgbroker.states import Status
from pgbroker.tenancy import tenant_context
from tests.factories import JobFactory
from tests.support.jobs import row, status
from tests.support.links import (
    ADD,
    BLOCKED,
    CANCELLED,
    COMPLETED,
    FAILED,
    READY,
    SCHEDULED,
    WAITING,
    add,
    claim,
    edges,
    end,
    group,
    job,
    levels,
    links,
    open_group,
    passes,
    references,
    refusal,
    refused,
    run,
    seal,
    sealed_group,
    state,
    statuses,
    why,
)

pytestmark = pytest.mark.django_db


def refused_edge(job_id: UUID, *depends_on: object) -> tuple[str, str]:
    given = [str(each) if isinstance(each, UUID) else each for each in depends_on]
    return refused(ADD, job_id, json.dumps(given), "cancel")


def test_a_ready_job_waits_and_is_ready_again():
    first, second = job(), job()

    assert add_edge(second, [str(first)]) == 1

    assert (status(second), row(second).ready_at) == (WAITING, None)
    run(first)
    assert status(second) == READY
    assert edges(second) == {first: (COMPLETED, True)}


def test_a_scheduled_job_waits_and_is_scheduled_again():
    first, later = job(), job(delay_seconds=3600)

    add(later, first)
    assert status(later) == WAITING
    run(first)

    assert status(later) == SCHEDULED


def test_a_waiting_and_a_blocked_job_wait_for_more():
    parent, broken, other = job(), job(), job()
    waiting, blocked = job(parent), job(broken, on_failure="block")
    end(broken, status=FAILED)

    assert add(waiting, other) == add(blocked, other) == 1

    assert statuses(waiting, blocked) == [WAITING, BLOCKED]
    run(parent)
    assert status(waiting) == WAITING
    run(other)
    assert statuses(waiting, blocked) == [READY, BLOCKED]


@pytest.mark.parametrize(
    "state", sorted(set(Status) - {READY, SCHEDULED, WAITING, BLOCKED}), ids=lambda each: each.label
)
def test_a_job_that_runs_or_is_over_waits_for_nothing_more(state):
    first, late = job(), JobFactory(**{state.label: True}).pk

    code, words = refused_edge(late, first)

    assert code == "dependency_too_late"
    assert words == f"job {late} runs or is over: it waits for nothing any more"


def test_a_job_that_has_been_claimed_a_moment_ago_runs():
    first, second = job(), job()
    claim(second)

    assert refused_edge(second, first)[0] == "dependency_too_late"


def test_what_is_over_already_decides_at_once():
    done, broken = job(), job()
    free, cancelled, blocked = job(), job(), job()
    end(done)
    end(broken, status=FAILED)

    add(free, done)
    add(cancelled, broken)
    add(blocked, broken, on_failure="block")

    assert statuses(free, cancelled, blocked) == [READY, CANCELLED, BLOCKED]
    assert why(cancelled) == ("prerequisite_failed", broken)


def test_what_an_edge_does_to_those_behind_its_job():
    broken, middle = job(), job()
    below = job(middle)
    end(broken, status=FAILED)

    add(middle, broken)
    passes()

    assert statuses(middle, below) == [CANCELLED] * 2


def test_a_job_of_another_tenant_is_not_there():
    with tenant_context("bolt"):
        theirs = job()
    ours, missing = job(), uuid4()

    assert refused_edge(theirs, ours) == ("job_not_found", f"there is no job {theirs}")
    assert refused_edge(missing, ours) == ("job_not_found", f"there is no job {missing}")
    assert refused_edge(ours, theirs) == ("dependency_not_found", f"there is no job {theirs}")


def test_each_refusal_of_an_entry_is_one_here():
    first, second = job(), job()
    add(second, first)
    open_group("g")
    (member,) = links({"group": "g", "name": "one"})

    assert refused_edge(second, second)[0] == "self_dependency"
    assert refused_edge(second, first)[0] == "duplicate_dependency"
    assert refused_edge(first, "none")[0] == "dependency_not_found"
    assert refused_edge(member.job_id, "g")[0] == "cyclic_dependency"
    assert refused_edge(member.job_id, "one")[0] == "self_dependency"
    assert refused_edge(first, 5)[0] == "invalid_option"
    assert refused(ADD, first, "{}", "cancel")[0] == "invalid_option"
    assert refused(ADD, first, "[]", "explode")[0] == "invalid_option"
    assert add(first) == 0
    assert status(first) == READY


def test_a_reference_to_what_is_still_to_come_holds_the_job_back_and_is_counted():
    first, second = job(), job()

    assert add(second, {"group": "later", "within_seconds": 5}, first) == 2

    assert (status(second), references(second)) == (WAITING, [("later", None)])
    run(first)
    assert status(second) == WAITING
    assert refused_edge(second, {"group": "later", "within_seconds": 5})[0] == "duplicate_dependency"


def test_a_name_alone_is_a_job_of_the_own_group():
    open_group("g")
    first, second = links({"group": "g", "name": "one"}, {"group": "g"})

    add(second.job_id, "one")

    assert list(edges(second.job_id)) == [first.job_id]


def test_ten_thousand_edges_are_the_most_a_job_has():
    first = job()
    open_group("g")
    links(*({"group": "g", "name": str(number)} for number in range(10_001)))
    dependent = job(*({"group": "g", "job": str(number)} for number in range(9_999)))

    assert refused_edge(dependent, first, {"group": "g", "job": "10000"})[0] == "too_many_dependencies"
    assert add(dependent, first) == 1
    assert refused_edge(dependent, {"group": "g", "job": "10000"})[0] == "too_many_dependencies"


def test_levels_follow_a_late_edge():
    first = job()
    deep = job(job(first))
    late, below = job(first), job()
    add(late, deep)

    assert levels(late) == [3]
    add(below, late)
    assert levels(below) == [4]


def chain_of(length: int) -> list[UUID]:
    """Enqueue a chain in one call; the first waits for nobody, the last is at level length - 1."""
    ids = [str(uuid4()) for _ in range(length)]
    links(
        *(
            {"id": id, "depends_on": [before] if before else []}
            for before, id in zip([None, *ids], ids, strict=False)
        )
    )
    return [UUID(each) for each in ids]


def test_levels_of_those_below_follow_a_late_edge_through_groups_too():
    top, above = job(), job(job())
    middle = job(top)
    group_id, (member, other) = sealed_group("g", {"depends_on": [str(middle)]}, {})
    behind = job(group_id_reference := {"group": "g"})
    next_id = open_group("next", group_id_reference)
    links({"group": "next", "name": "a"}, {"group": "next", "depends_on": ["a"]})
    last = job({"group": "next"})
    assert levels(top, middle, member, behind, last) == [0, 1, 2, 3, 4]

    add(top, above)

    assert levels(top, middle, member, other, behind) == [2, 3, 4, 0, 5]
    assert (group(group_id).level, group(next_id).level, levels(last)) == (4, 5, [6])


def test_a_group_that_is_sealed_is_as_deep_as_its_members_for_those_that_wait_already():
    group_id = open_group("g")
    behind = job({"group": "g"})
    below = job(behind)
    links({"group": "g", "depends_on": [str(job(job()))]})

    seal(group_id)

    assert (group(group_id).level, levels(behind, below)) == (2, [3, 4])


def test_a_late_edge_that_makes_too_deep_what_waits_already_is_refused():
    upper, lower = chain_of(6000), chain_of(4001)
    one_less = job(upper[-1])

    assert refused_edge(lower[0], one_less)[0] == "dependency_too_deep"
    assert levels(lower[0], lower[-1]) == [0, 4000]
    add(lower[0], upper[-1])

    assert levels(lower[0], lower[-1]) == [6000, 10000]
    assert refused_edge(job(), lower[-1])[0] == "dependency_too_deep"


def test_a_late_edge_above_ways_of_every_length_is_made_in_a_moment():
    """Each of a ladder waits for the two above it: there are as many lengths of ways to a job as jobs above it."""
    ladder = [str(uuid4()) for _ in range(2000)]
    links(*({"id": id, "depends_on": ladder[max(place - 2, 0) : place]} for place, id in enumerate(ladder)))
    deep = chain_of(2000)

    began = time.monotonic()
    add(UUID(ladder[0]), deep[-1])

    assert time.monotonic() - began < 20, "it was 2.7 million ways"
    assert levels(UUID(ladder[0]), UUID(ladder[20])) == [2000, 2020]


# ------------------------------------------------------------------ cycles


def test_b062_a_diamond_is_none_and_what_closes_one_is():
    """D waits for B and C, which wait for A."""
    a = job()
    b, c = job(a), job(a)
    d = job(b, c)
    before = edges(a), edges(d)

    assert refused_edge(a, d)[0] == "cyclic_dependency"

    assert (edges(a), edges(d)) == before
    for each in ((a,), (b, c), (d,)):
        run(*each)
    assert statuses(a, b, c, d) == [COMPLETED] * 4


def test_b060_a_dense_graph_is_taken_and_walked_in_a_moment():
    """Twenty layers of ten, each job waiting for all of the layer before: 2^66 ways, 1,900 edges."""
    ids = [[str(uuid4()) for _ in range(10)] for _ in range(20)]
    rows = [{"id": each} for each in ids[0]]
    for above, layer in itertools.pairwise(ids):
        rows += [{"id": each, "depends_on": above} for each in layer]

    answers = links(*rows)

    assert {answer.outcome for answer in answers} == {"created"}
    assert refused_edge(UUID(ids[0][0]), UUID(ids[19][9]))[0] == "cyclic_dependency"
    assert refused_edge(UUID(ids[18][3]), UUID(ids[19][9]))[0] == "cyclic_dependency"
    assert add(UUID(ids[19][0]), UUID(ids[19][9])) == 1


def test_a_cycle_of_a_job_and_a_group_is_refused_whichever_edge_comes_last():
    """A member waits for a job that waits for the group."""
    open_group("g")
    outside = job("g")
    inside, elsewhere = links({"group": "g", "name": "in"}, {})

    assert refused_edge(inside.job_id, outside)[0] == "cyclic_dependency"
    code, words = refusal(outside, group="g")
    assert code == "cyclic_dependency"
    assert "'g'" in words
    add(inside.job_id, elsewhere.job_id)
    assert refused_edge(elsewhere.job_id, "g")[0] == "cyclic_dependency"


def test_a_cycle_of_groups_is_refused():
    """The second group waits for the first; a member of the first would wait for the second."""
    open_group("first")
    open_group("second", "first")
    (member,) = links({"group": "first", "name": "one"})

    assert refusal("second", group="first")[0] == "cyclic_dependency"
    assert refused_edge(member.job_id, "second")[0] == "cyclic_dependency"


def test_a_cycle_through_a_member_that_ended_before_it_ran_is_refused():
    """It comes back with its prerequisite: then all would wait for each other."""
    parent = job()
    open_group("g")
    (member,) = links({"group": "g", "depends_on": [str(parent)]})
    run(parent, how=FAILED)
    assert status(member.job_id) == CANCELLED
    retry_many([parent])

    assert refused_edge(parent, "g")[0] == "cyclic_dependency"


def test_a_group_that_is_sealed_and_waits_takes_late_edges_of_its_members():
    first = job()
    group_id, (member,) = sealed_group("g", {})

    add(member, first)
    run(first)
    run(member)

    assert seal(group_id) == state(group_id) == COMPLETED


def test_an_edge_that_is_satisfied_closes_no_cycle():
    first = job()
    second = job({"job": str(first), "on_failure": "ignore"})
    run(first, how=FAILED)
    retry_many([first])

    assert add(first, second) == 1
    run(second)
    run(first)
    assert statuses(first, second) == [COMPLETED] * 2

"""Staged races: prerequisites end together, an edge is made while its target ends or is purged."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from uuid import UUID

import pytest
from django.db import transaction

from pgbroker.models import Job
from pgbroker.states import GroupState
from tests.support.held import at_once, claim_apart, held, outcome_of, passes_while_open, settling
from tests.support.jobs import status
from tests.support.links import (
    CANCELLED,
    COMPLETED,
    FAILED,
    READY,
    WAITING,
    add,
    claim,
    edges,
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
)
from tests.support.plain import plain
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)


# ------------------------------------------------------------------ two prerequisites end together


@pytest.mark.parametrize("first_to_commit", [0, 1])
def test_two_prerequisites_that_end_in_two_open_transactions_free_their_dependent(first_to_commit):
    parents = [job(), job()]
    dependent = job(*parents)
    leases = claim_apart(*parents)

    with held(settling(leases[0])) as one, held(settling(leases[1])) as other:
        both = [one, other] if first_to_commit == 0 else [other, one]
        both[0].commit()
        passes_while_open()
        both[1].commit()
    passes()

    assert status(dependent) == READY
    assert edges(dependent) == dict.fromkeys(parents, (COMPLETED, True))


@pytest.mark.parametrize("ends", list(itertools.product([COMPLETED, FAILED], repeat=2)), ids=str)
def test_the_last_two_members_that_end_together_end_their_group_once(ends):
    group_id, members = sealed_group("g", {}, {}, on_completed={"job_type": "tests.ok"})
    dependent = job("g")
    leases = claim_apart(*members)

    with held(settling(leases[0], ends[0])) as one, held(settling(leases[1], ends[1])) as other:
        assert state(group_id) == GroupState.SEALED
        other.commit()
        passes_while_open()
        one.commit()
    passes()

    good = ends == (COMPLETED, COMPLETED)
    assert state(group_id) == (GroupState.COMPLETED if good else GroupState.FAILED)
    assert status(dependent) == (READY if good else CANCELLED)
    assert Job.objects.count() == (4 if good else 3)


def test_who_leaves_a_dependent_to_a_pass_says_so_when_it_commits():
    parents = [job(), job()]
    job(*parents)
    leases = claim_apart(*parents)

    with second_session() as listener, held(settling(leases[0])):
        listener.execute("listen pgbroker")
        at_once(settling(leases[1]))
        told = [each.payload for each in listener.notifies(timeout=5, stop_after=1)]

    assert told == ["*resolve"]


def test_a_dependent_that_was_left_to_a_pass_is_no_repair():
    parents = [job(), job()]
    dependent = job(*parents)
    leases = claim_apart(*parents)
    with held(settling(leases[0])) as one:
        at_once(settling(leases[1]))
        one.commit()
    assert (left(), status(dependent)) == (1, WAITING)

    assert repaired() == []
    passes()
    assert (status(dependent), left()) == (READY, 0)


def test_who_leaves_a_group_to_a_pass_says_so_when_it_commits():
    _, members = sealed_group("g", {}, {})
    leases = claim_apart(*members)

    with second_session() as listener, held(settling(leases[0])):
        listener.execute("listen pgbroker")
        at_once(settling(leases[1]))
        told = [each.payload for each in listener.notifies(timeout=5, stop_after=1)]

    assert told == ["*resolve"]


def test_a_prerequisite_whose_end_is_rolled_back_has_not_ended():
    parents = [job(), job()]
    dependent = job(*parents)
    leases = claim_apart(*parents)

    with held(settling(leases[0])) as one:
        at_once(settling(leases[1]))
        one.roll_back()
    passes()

    assert status(dependent) == WAITING
    assert edges(dependent) == {parents[0]: (0, False), parents[1]: (COMPLETED, True)}


# ------------------------------------------------------------------ an edge is made while its target ends

# Ways to make something wait for a job, each returning what waits.
WAYS: dict[str, Callable[[UUID], UUID]] = {
    "an entry": job,
    "many at once, the short way": lambda parent: (
        links(plain(depends_on=[str(parent)]), plain(depends_on=[str(parent)]))[1].job_id
    ),
    "a late edge": lambda parent: _late(parent),
    "a member of a group that waits": lambda parent: _in_group(parent),
}


def _late(parent: UUID) -> UUID:
    dependent = job()
    add(dependent, parent)
    return dependent


def _in_group(parent: UUID) -> UUID:
    open_group("waits", parent)
    return links({"group": "waits"})[0].job_id


@pytest.mark.parametrize("how", [COMPLETED, FAILED])
@pytest.mark.parametrize("way", WAYS)
def test_a_target_that_ends_while_the_edge_is_not_committed_is_seen_at_the_commit(way, how):
    """And whoever settles it waits for nobody."""
    parent = job()
    (lease,) = claim(parent)

    with transaction.atomic():
        dependent = WAYS[way](parent)
        at_once(settling(lease, how))
        assert status(dependent) == WAITING

    assert status(dependent) == (READY if how == COMPLETED else CANCELLED)
    assert edges(dependent) == {parent: (how, how == COMPLETED)}
    passes()
    assert repaired() == []


@pytest.mark.parametrize("how", [COMPLETED, FAILED, "rolled back"])
@pytest.mark.parametrize("way", WAYS)
def test_an_edge_is_not_committed_before_a_settle_of_its_target_is(way, how):
    parent = job()
    (lease,) = claim(parent)

    with held(settling(lease, FAILED if how == FAILED else COMPLETED)) as settle_:
        adding = InThread(lambda: WAYS[way](parent)).start()
        wait_until_blocked(adding, settle_.thread)
        settle_.roll_back() if how == "rolled back" else settle_.commit()
    dependent = adding.result()

    assert status(dependent) == {COMPLETED: READY, FAILED: CANCELLED, "rolled back": WAITING}[how]


@pytest.mark.parametrize("settle_first", [True, False])
def test_a_group_that_ends_while_something_comes_to_wait_for_it_is_seen(settle_first):
    group_id, (member,) = sealed_group("g", {})
    (lease,) = claim(member)

    if settle_first:
        with held(settling(lease)) as settle_:
            adding = InThread(lambda: job("g")).start()
            wait_until_blocked(adding, settle_.thread)
            settle_.commit()
        dependent = adding.result()
    else:
        with transaction.atomic():
            dependent = job("g")
            at_once(settling(lease))

    assert (state(group_id), status(dependent)) == (GroupState.COMPLETED, READY)


def test_a_group_that_comes_to_wait_for_a_job_that_ends_sees_it():
    parent = job()
    (lease,) = claim(parent)
    with transaction.atomic():
        group_id, _ = sealed_group("g", depends_on=[str(parent)])
        dependent = job("g")
        at_once(settling(lease))
    passes()

    assert (state(group_id), status(dependent)) == (GroupState.COMPLETED, READY)


def test_what_a_group_waits_for_is_met_while_a_member_is_being_made():
    """Its name is another transaction's until that is undone; by then nothing is left to wait for."""
    parent = job()
    open_group("g", parent)
    with held(lambda: links({"group": "g", "name": "one"})) as other:
        adding = InThread(lambda: links({"group": "g", "name": "one"})).start()
        wait_until_blocked(adding, other.thread)
        at_once(lambda: run(parent))
        other.roll_back()
    (answer,) = adding.result()

    assert answer.outcome == "created"
    assert status(answer.job_id) == READY


def test_dependents_that_others_left_to_a_pass_are_not_held_by_whoever_adds_one_more():
    parent = job()
    answers = links(*({"depends_on": [str(parent)]} for _ in range(700)))
    run(parent)
    waiting = [each.job_id for each in answers if status(each.job_id) == WAITING]
    assert len(waiting) == 200

    with held(lambda: status(job(parent))) as adder:
        assert adder.answer == READY
        at_once(passes)
        assert set(statuses(*waiting)) == {READY}


def test_a_rolled_back_savepoint_takes_its_edges_along():
    parent, other = job(), job()
    leases = claim_apart(parent, other)

    with transaction.atomic():
        kept = job(parent)
        with transaction.atomic():
            gone = job(parent, other)
            transaction.set_rollback(True)
        at_once(settling(leases[0]))

    assert status(kept) == READY
    assert not Job.objects.filter(pk=gone).exists()
    assert (edges(gone), left()) == ({}, 0)
    at_once(settling(leases[1]))


@pytest.mark.parametrize("is_over_before", [True, False])
def test_b054_a_prerequisite_that_is_purged_before_its_edge_is_committed_leaves_nobody_waiting(
    is_over_before,
):
    """Whoever knows how it ended goes on; where nobody knows any more, the call is refused at its commit."""
    parent = job()
    (lease,) = claim(parent)
    if is_over_before:
        settling(lease)()

    with held(lambda: job(parent)) as adder, second_session() as purge:
        if not is_over_before:
            at_once(settling(lease))
        assert delete_what_is_over(purge) == 1
        refused = outcome_of(adder.commit)

    assert refused == (None if is_over_before else "dependency_not_found")
    assert [each.status for each in Job.objects.all()] == ([READY] if is_over_before else [])


def delete_what_is_over(session) -> int:
    """Purge as retention will."""
    return session.execute("delete from pgbroker.job where status >= 10").rowcount


def test_b054_a_prerequisite_that_is_deleted_once_its_edge_is_satisfied_is_not_missed():
    done, runs = job(), job()
    dependent = job(done, runs)
    run(done)

    with second_session() as purge:
        for _ in range(3):
            delete_what_is_over(purge)
    assert not Job.objects.filter(pk=done).exists()
    run(runs)

    assert status(dependent) == READY
    assert repaired() == []

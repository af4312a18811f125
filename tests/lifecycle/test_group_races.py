"""Staged races of run groups: seal against add, settle and cancel; two transactions that close a cycle together."""

from __future__ import annotations

import pytest

from pgbroker.lifecycle.cancel_group import cancel_group
from pgbroker.states import GroupState
from tests.support.held import CLOSING, at_once, closing, held, outcome_of, passes_while_open, settling
from tests.support.jobs import status
from tests.support.links import (
    CANCELLED,
    claim,
    deferred,
    job,
    links,
    open_group,
    passes,
    run,
    seal,
    state,
    why,
)
from tests.support.sessions import InThread, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)


# ------------------------------------------------------------------ seal against add, settle and cancel


def test_whoever_seals_waits_for_who_is_adding_and_counts_the_member():
    group_id = open_group("g")
    with held(lambda: links({"group": "g"})) as adder:
        sealing = InThread(lambda: seal(group_id)).start()
        wait_until_blocked(sealing, adder.thread)
        adder.commit()

    assert sealing.result() == GroupState.SEALED
    run(adder.answer[0].job_id)
    assert state(group_id) == GroupState.COMPLETED


@pytest.mark.parametrize("rows", [[{}], [{"depends_on": []}, {}]], ids=["one", "many"])
@pytest.mark.parametrize("commits", [True, False])
def test_whoever_adds_waits_for_who_is_sealing(commits, rows):
    group_id = open_group("g")
    with held(lambda: seal(group_id)) as sealer:
        adding = InThread(lambda: links(*({"group": "g", **row} for row in rows))).start()
        wait_until_blocked(adding, sealer.thread)
        sealer.commit() if commits else sealer.roll_back()

    outcomes = {each.outcome for each in adding.result()}
    assert outcomes == ({"group_sealed"} if commits else {"created"})


def test_b058_a_cancel_waits_for_who_is_adding_and_takes_the_member_along():
    group_id = open_group("g")
    with held(lambda: links({"group": "g"})) as adder:
        cancelling = InThread(lambda: cancel_group(group_id)).start()
        wait_until_blocked(cancelling, adder.thread)
        adder.commit()

    assert cancelling.result().cancelled == 1
    assert status(adder.answer[0].job_id) == CANCELLED
    assert links({"group": "g"})[0].outcome == "group_sealed"


def test_a_group_that_is_sealed_while_its_last_member_is_being_settled_ends():
    group_id = open_group("g")
    (member,) = links({"group": "g"})
    (lease,) = claim(member.job_id)

    with held(settling(lease)) as settle_:
        sealing = InThread(lambda: seal(group_id)).start()
        wait_until_blocked(sealing, settle_.thread)
        settle_.commit()

    assert sealing.result() == GroupState.COMPLETED


def test_a_member_that_is_settled_while_its_group_is_being_sealed_is_not_missed_and_waits_for_nobody():
    group_id = open_group("g")
    (member,) = links({"group": "g"})
    (lease,) = claim(member.job_id)

    with held(lambda: seal(group_id)) as sealer:
        at_once(settling(lease))
        passes_while_open()
        sealer.commit()
    passes()

    assert state(group_id) == GroupState.COMPLETED


# ------------------------------------------------------------------ cycles


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("what", CLOSING)
def test_two_transactions_do_not_close_a_cycle_together(what, turned, commits):
    one, other = closing(what)
    if turned:
        one, other = other, one

    with held(one) as first:
        second = InThread(lambda: outcome_of(other)).start()
        wait_until_blocked(second, first.thread)
        first.commit() if commits else first.roll_back()

    assert first.answer in (1, "created")
    if commits:
        assert second.result() == "cyclic_dependency"
    else:
        assert second.result() in (1, "created")


def test_a_reference_that_comes_true_takes_its_turn_with_who_adds_to_the_graph():
    dependent = job({"group": "g", "within_seconds": 60})
    open_group("g")
    with held(lambda: links({"group": "g", "depends_on": [str(dependent)]})) as adder:
        assert at_once(deferred) == 0, "it comes back later, and waits for nobody"
        adder.commit()

    assert deferred() == 1
    assert why(dependent) == ("reference_expired", None)

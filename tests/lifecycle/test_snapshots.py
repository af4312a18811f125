"""Transactions at REPEATABLE READ and above: what they do not see of others, a pass sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from pgbroker import db
from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.settle import settle
from pgbroker.lifecycle.unblock import unblock_many
from pgbroker.states import GroupState
from tests.support.held import at_once, claim_apart, settling
from tests.support.jobs import completed, status
from tests.support.links import (
    BLOCKED,
    CANCELLED,
    COMPLETED,
    FAILED,
    READY,
    claim,
    job,
    open_group,
    passes,
    seal,
    sealed_group,
    state,
)

pytestmark = pytest.mark.django_db(transaction=True)

LEVELS = ["repeatable read", "serializable"]


def in_old_snapshot(work: Callable[[], Any], *, level: str = "repeatable read") -> None:
    """Do it in a transaction that has looked already, then let the passes come."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"set transaction isolation level {level}")
            cursor.execute("select count(*) from pgbroker.job")
        work()
    passes()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", ["cancelled", "settled"])
@pytest.mark.parametrize(
    ("policy", "end", "expected"),
    [
        ("ignore", COMPLETED, READY),
        ("ignore", FAILED, READY),
        ("cancel", FAILED, CANCELLED),
        ("block", FAILED, BLOCKED),
    ],
)
def test_two_prerequisites_that_end_together_free_their_dependent(level, how, policy, end, expected):
    first, second = job(), job()
    dependent = job(first, second, on_failure=policy)
    lease, other = claim_apart(first, second) if how == "settled" else (claim(first)[0], None)

    def ends() -> None:
        at_once(settling(lease, end))
        cancel_many([second]) if other is None else settle([completed(other)])

    in_old_snapshot(ends, level=level)

    assert status(dependent) == expected


@pytest.mark.parametrize("level", LEVELS)
def test_the_last_two_members_of_a_group_end_it(level):
    group, members = sealed_group("g", {}, {})
    dependent = job("g", on_failure="ignore")
    (lease,) = claim(members[0])

    in_old_snapshot(lambda: (at_once(settling(lease)), cancel_many([members[1]])), level=level)

    assert state(group) == GroupState.FAILED
    assert status(dependent) == READY


def test_a_group_that_waits_for_two_that_end_together_is_over():
    first, second = job(), job()
    group = open_group("g", first, second, on_failure="ignore")
    seal(group)
    (lease,) = claim(first)

    in_old_snapshot(lambda: (at_once(settling(lease)), cancel_many([second])))

    assert state(group) == GroupState.COMPLETED


def test_a_group_that_is_sealed_after_its_last_member_has_ended_is_over():
    group = open_group("g")
    (lease,) = claim(job(group="g"))

    in_old_snapshot(lambda: (at_once(settling(lease)), seal(group)))

    assert state(group) == GroupState.COMPLETED


def test_one_that_is_unblocked_while_the_other_prerequisite_ends_is_free():
    bad, good = job(), job()
    dependent = job(bad, good, on_failure="block")
    at_once(settling(claim(bad)[0], FAILED))
    passes()
    assert status(dependent) == BLOCKED
    (lease,) = claim(good)

    in_old_snapshot(lambda: (at_once(settling(lease)), unblock_many([dependent])))

    assert status(dependent) == READY


def test_a_retry_beside_a_new_dependent_frees_it_in_the_end():
    bad = job()
    at_once(settling(claim(bad)[0], FAILED))
    made: list[Any] = []

    def retries() -> None:
        at_once(lambda: made.append(job(bad, on_failure="block")))
        retry_many([bad])

    in_old_snapshot(retries)

    assert status(made[0]) != BLOCKED


def test_our_own_sessions_look_anew_with_each_statement_whatever_the_default_is(monkeypatch):
    options = {
        **connection.settings_dict["OPTIONS"],
        "options": r"-c default_transaction_isolation=serializable",
    }
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    session = db.Session("default", purpose="test")
    try:
        (level,) = session.connection.execute("show transaction_isolation").fetchone()
    finally:
        session.drop()

    assert level == "read committed"

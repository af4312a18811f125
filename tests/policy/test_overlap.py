"""What becomes of a tick while an earlier occurrence is not over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgbroker.policy.overlap import Decision, Occupancy, Policy

ALLOW, SKIP, BUFFER_ONE, CANCEL_OTHER = Policy


@pytest.mark.parametrize("policy", Policy)
def test_where_nothing_runs_the_tick_starts(policy):
    assert Occupancy().decide(policy) == (Decision.START, Occupancy(running=1))


@pytest.mark.parametrize(
    ("policy", "running", "waiting", "decision", "then"),
    [
        (ALLOW, 3, 0, Decision.START, Occupancy(4, 0)),
        (SKIP, 1, 0, Decision.SKIP, Occupancy(1, 0)),
        (BUFFER_ONE, 1, 0, Decision.BUFFER, Occupancy(1, 1)),
        (BUFFER_ONE, 1, 1, Decision.SKIP, Occupancy(1, 1)),
        # The other has just ended, and the one that waited for it has not begun.
        (BUFFER_ONE, 0, 1, Decision.SKIP, Occupancy(0, 1)),
        (SKIP, 0, 1, Decision.SKIP, Occupancy(0, 1)),
        (CANCEL_OTHER, 2, 1, Decision.CANCEL_AND_START, Occupancy(1, 0)),
    ],
)
def test_where_another_runs_the_policy_decides(policy, running, waiting, decision, then):
    assert Occupancy(running, waiting).decide(policy) == (decision, then)


@given(st.lists(st.sampled_from(Policy), max_size=30), st.integers(0, 5), st.integers(0, 1))
def test_over_any_ticks_no_policy_runs_or_buffers_more_than_it_may(policies, running, waiting):
    occupancy = Occupancy(running, waiting)
    for policy in policies:
        before = occupancy
        decision, occupancy = before.decide(policy)
        grew = occupancy.running - before.running

        assert occupancy.waiting <= 1
        if decision is Decision.SKIP:
            assert occupancy == before
        elif policy in (SKIP, BUFFER_ONE) and grew:
            assert before == Occupancy()
        elif policy is CANCEL_OTHER:
            assert occupancy == Occupancy(running=1)


def test_of_six_ticks_at_once_each_policy_makes_what_it_should():
    """As after a stop of the scheduler, when catching up."""
    made = {}
    for policy in Policy:
        occupancy, decisions = Occupancy(), []
        for _ in range(6):
            decision, occupancy = occupancy.decide(policy)
            decisions.append(decision)
        made[policy] = decisions

    assert made == {
        ALLOW: [Decision.START] * 6,
        SKIP: [Decision.START, *[Decision.SKIP] * 5],
        BUFFER_ONE: [Decision.START, Decision.BUFFER, *[Decision.SKIP] * 4],
        CANCEL_OTHER: [Decision.START, *[Decision.CANCEL_AND_START] * 5],
    }

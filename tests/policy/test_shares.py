"""How the parts of a whole lie along a bar."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgbroker.policy.shares import NARROWEST, lay_along

counts = st.lists(st.integers(0, 10**6), min_size=1, max_size=10)


@given(counts.filter(any), st.integers(40, 600))
def test_parts_fill_the_bar_one_after_the_other(parts, width):
    placed = lay_along(parts, width=width)

    assert placed[0][0] == 0
    assert placed[-1][0] + placed[-1][1] == pytest.approx(width, abs=0.11)
    assert all(one[0] + one[1] == pytest.approx(other[0], abs=0.11) for one, other in pairwise(placed))


@given(counts, st.integers(40, 600))
def test_what_is_there_is_seen_and_nothing_else(parts, width):
    placed = lay_along(parts, width=width)

    assert [bool(count) for count in parts] == [breadth > 0 for _, breadth in placed]
    assert all(
        breadth >= NARROWEST - 0.11 for count, (_, breadth) in zip(parts, placed, strict=True) if count
    )


@given(counts.filter(any), st.integers(40, 600))
def test_more_is_never_narrower(parts, width):
    placed = lay_along(parts, width=width)

    by_count = [breadth for _, (_, breadth) in sorted(zip(parts, placed, strict=True))]
    assert all(less <= more + 0.21 for less, more in pairwise(by_count))


def test_halves_are_halves():
    assert lay_along([5, 0, 5], width=100) == [(0, 50), (50, 0), (50, 50)]

"""Where the parts of a job's life stand in a picture."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from pgbroker.policy.timeline import NARROWEST, ROWS_MAX, Moment, Span, in_order, place, round_up, stack

BEGIN = datetime(2026, 11, 29, tzinfo=UTC)
END = BEGIN + timedelta(seconds=100)
WIDTH = 500.0


def span(start: float, end: float | None) -> Span:
    at = BEGIN + timedelta(seconds=start)
    return Span(at, None if end is None else BEGIN + timedelta(seconds=end), "failed", "attempt")


def test_moments_of_one_instant_keep_their_order():
    told = [Moment(END, "c"), Moment(BEGIN, "a"), Moment(BEGIN, "b")]

    assert [each.what for each in in_order(told)] == ["a", "b", "c"]


def test_a_wait_fills_what_lies_between_attempts():
    bars, waits = place([span(20, 40), span(60, None)], begin=BEGIN, end=END, width=WIDTH)

    assert [(bar.x, bar.width) for bar in bars] == [(100, 100), (300, 200)]
    assert [(wait.x, wait.width, wait.row) for wait in waits] == [(0, 100, 0), (200, 100, 1)]


@given(st.lists(st.tuples(st.floats(-50, 150), st.floats(0, 100)), max_size=40), st.floats(0, 1000))
def test_every_bar_can_be_seen_and_lies_within_the_picture(times, seconds):
    spans = [span(start, start + length) for start, length in times]

    bars, waits = place(spans, begin=BEGIN, end=BEGIN + timedelta(seconds=seconds), width=WIDTH)

    assert len(bars) == min(len(spans), ROWS_MAX)
    for bar in bars:
        assert bar.width >= NARROWEST
        assert -0.11 <= bar.x <= bar.x + bar.width <= WIDTH + 0.11
    assert all(wait.width > 0 for wait in waits)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=60
    )
)
def test_columns_stand_on_the_ground_and_stay_below_the_top(columns):
    top, placed = stack(columns, height=120)

    assert top >= max(map(sum, columns))
    for column, parts in zip(columns, placed, strict=True):
        assert [bool(count) for count in column] == [tall > 0 for _, tall in parts]
        # Each count that is not zero takes at least one line, so three may rise two above their share.
        assert all(0 <= y <= 120 for y, _ in parts)


@given(st.integers(0, 10**12))
def test_the_top_of_a_scale_is_a_round_number_near_the_highest(number):
    top = round_up(number)

    assert str(top).rstrip("0") in {"1", "2", "5"}
    assert number <= top <= max(1, number * 5 // 2)

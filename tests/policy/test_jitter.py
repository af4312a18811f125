"""How long a tick's job waits: at random to look at, and always the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from pgbroker.policy.jitter import jitter

TICK = datetime(2026, 11, 29, 2, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_a_wait_is_the_same_in_every_release():
    """A fail-over may be to another one: a change of these figures makes occurrences come to two instants."""
    assert jitter(7, TICK, most=MINUTE) == timedelta(microseconds=14_008_842)
    assert jitter(UUID(int=7), TICK, most=MINUTE) == timedelta(microseconds=31_963_565)


@given(
    schedule_id=st.integers(1, 2**63),
    tick=st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    most=st.timedeltas(timedelta(0), timedelta(days=366)),
)
def test_a_wait_is_within_its_bounds(schedule_id, tick, most):
    wait = jitter(schedule_id, tick, most=most)

    assert timedelta(0) <= wait < max(most, timedelta(microseconds=1))
    assert jitter(schedule_id, tick.astimezone(timezone(timedelta(hours=2))), most=most) == wait


def test_waits_are_spread_over_schedules_and_over_ticks():
    for waits in (
        [jitter(schedule_id, TICK, most=MINUTE) for schedule_id in range(1_000)],
        [jitter(7, TICK + MINUTE * count, most=MINUTE) for count in range(1_000)],
    ):
        tenths = [sum(wait // (MINUTE / 10) == tenth for wait in waits) for tenth in range(10)]
        assert all(60 < number < 140 for number in tenths), tenths

"""How long a tick's job waits, so that the jobs of one minute do not all start at once. Pure."""

from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def jitter(schedule_id: int | UUID, tick: datetime, *, most: timedelta) -> timedelta:
    """
    Return a wait from nothing to less than *most*, evenly spread over schedules and ticks.

    The same for the same schedule and tick, whoever asks and whenever: what creates an occurrence a second
    time, after a fail-over, must come to the same instant. Nothing where *most* is nothing.
    """
    assert most >= timedelta(0)
    instant = (tick - _EPOCH) // _MICROSECOND
    share = int.from_bytes(blake2b(f"{schedule_id}:{instant}".encode(), digest_size=8).digest())
    return timedelta(microseconds=(most // _MICROSECOND) * share >> 64)

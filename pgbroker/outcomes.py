"""
What a handler can do, as values: the exceptions it may raise (or return) to steer its job, and
`Ended`, the record of one finished attempt that settle writes.

A worker reports; the statement that holds the row decides the next status.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from pgbroker.errors import InvalidOption
from pgbroker.lease import Lease
from pgbroker.policy.durations import seconds_of
from pgbroker.states import AttemptState


def _delay(field: str, value: timedelta | float | int | None) -> timedelta | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (timedelta, int, float)):
        raise InvalidOption(field, f"is {value!r}", "Give seconds or a timedelta.")
    delay = value if isinstance(value, timedelta) else timedelta(seconds=value)
    if delay < timedelta(0):
        raise InvalidOption(field, f"is negative ({seconds_of(delay)})", "Give a delay of zero or more.")
    return delay


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """
    The argument of a job that is enqueued by `on_exhausted`: which job became a dead letter, and why.

    *attempts* is how many it used, *error_code* and *error* are those of the last one; the text is cut after
    1,000 characters. `get_job(job_id)` has everything else.
    """

    job_id: UUID
    job_type: str
    queue: str
    attempts: int
    error_code: str | None
    error: str | None
    died_at: datetime


class Verdict(Exception):
    """Base of what a handler raises or returns to say how its attempt ended."""


class Retry(Verdict):
    """
    Try again after *delay* (seconds or timedelta; default: the type's backoff): running -> scheduled.

    Burns an attempt; when none is left the job becomes a dead letter.
    """

    def __init__(self, delay: timedelta | float | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry requested")
        self.delay = _delay("Retry.delay", delay)
        self.reason = reason


class Snooze(Verdict):
    """Come back after *delay* (seconds or timedelta) without burning an attempt: running -> scheduled."""

    def __init__(self, delay: timedelta | float, reason: str = "") -> None:
        super().__init__(reason or "snoozed")
        checked = _delay("Snooze.delay", delay)
        if checked is None:
            raise InvalidOption("Snooze.delay", "is missing", "Give seconds or a timedelta.")
        self.delay: timedelta = checked
        self.reason = reason


class Discard(Verdict):
    """Give the job up for good, whatever attempts are left: running -> failed."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "discarded")
        self.reason = reason


class Ended(NamedTuple):
    """
    How one attempt ended, as settle records it.

    `delay` is the wait before a retry or after a snooze; `permanent` forbids a retry; `result` and
    `log_tail` are stored with the attempt. `result` is JSON text; where `result_body` names a body in the
    storage, it is the body's stub. Times are the database's.
    """

    lease: Lease
    state: AttemptState
    started_at: datetime
    seconds: float
    delay: timedelta | None = None
    permanent: bool = False
    dead: bool = False
    error_code: str | None = None
    error: str | None = None
    traceback: str | None = None
    result: str | None = None
    log_tail: str | None = None
    result_body: str | None = None


class Settled(NamedTuple):
    """The row's decision about one attempt: the job's next status."""

    job_id: UUID
    lease_token: int
    status: int

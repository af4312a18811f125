"""One attempt in this process: its lease, its handler, and the one outcome it may have."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pgbroker.bodies import row_limit
from pgbroker.conf import Settings
from pgbroker.context import JobContext, Stop, StopReason, running_result
from pgbroker.errors import AttemptCancelled, AttemptTimedOut, ChildCrashed, InvalidOption, PgBrokerError
from pgbroker.lease import Lease
from pgbroker.outcomes import Discard, Ended, Retry, Snooze
from pgbroker.payload import encode_result
from pgbroker.policy.backoff import LONGEST_SECONDS, Backoff
from pgbroker.policy.error_text import bounded, describe_exception
from pgbroker.policy.values import LONGEST_TIMEOUT
from pgbroker.registry import JobType
from pgbroker.runtime.log_tail import log_tail
from pgbroker.states import AttemptState

if TYPE_CHECKING:
    from pgbroker.runtime.executors.base import Executor

# What an attempt that raised after it was asked to stop is recorded as.
_STOPPED_AS = {"cancelled": AttemptState.CANCELLED, "timed_out": AttemptState.TIMED_OUT}
# A longer wait is a mistake, and would not fit into a timestamp.
_LONGEST_DELAY = timedelta(seconds=LONGEST_SECONDS)
_LONGEST_CODE = 200
# One for all that have none.
_NONE: Mapping[str, Any] = MappingProxyType({})


def _code_of(error: BaseException) -> str | None:
    """Return the stable code of an error of ours; None for any other, or for a code that no column takes."""
    if not isinstance(error, PgBrokerError):
        return None
    # Project code may derive from it, and assign anything.
    code: object = getattr(error, "code", None)
    if type(code) is not str or not 0 < len(code) <= _LONGEST_CODE:
        return None
    return code if bounded(code, 4 * _LONGEST_CODE) == code else None


class Attempt:
    """
    An attempt from claim to settle. Made for every job, so it is small.

    `claimed_at` is the monotonic clock when the claim returned; instants are the claim's database time
    plus a difference. `leased_from` is the one when the claim was sent: the lease began no earlier. Whoever
    calls `end_once` first decides the outcome: the handler's thread, or the watchdog that gave it up.
    """

    __slots__ = (
        "_open",
        "abandoned",
        "claimed_at",
        "error",
        "executor",
        "handle",
        "job_type",
        "lease",
        "leased_from",
        "log_bytes",
        "log_lines",
        "options",
        "returned",
        "started",
        "stop",
        "timeout",
        "told",
        "using",
    )
    # Who runs it; set before the board gives it a slot.
    executor: "Executor"

    def __init__(
        self,
        lease: Lease,
        job_type: JobType,
        claimed_at: float,
        settings: Settings,
        using: str | None = None,
    ) -> None:
        self.lease = lease
        # The alias of the database it came from; None: the first of DATABASES.
        self.using = using
        self.job_type = job_type
        self.claimed_at = self.leased_from = claimed_at
        # The database takes any JSON from whoever writes rows by hand.
        self.options: Mapping[str, Any] = lease.options if isinstance(lease.options, dict) else _NONE
        self.started: float | None = None
        self.stop = Stop()
        # The reasons it was asked to stop for.
        self.told: tuple[StopReason, ...] = ()
        self.timeout = self._timeout(settings.TIMEOUT_SECONDS)
        self.log_bytes = settings.MAX_LOG_BYTES
        # Its slot was given to another while the handler still ran; the handler has come back. The board's.
        self.abandoned = self.returned = False
        self.error: BaseException | None = None
        # Whatever the executor needs to reach the running handler.
        self.handle: Any = None
        self.log_lines: deque[str] | None = None
        self._open = [True]

    def _timeout(self, default: float | None) -> float | None:
        seconds = self.options.get("timeout")
        # Compared before it is made a float: an integer of JSON may be larger than any, and NaN is in no range.
        if (
            isinstance(seconds, (int, float))
            and not isinstance(seconds, bool)
            and 0 < seconds <= LONGEST_TIMEOUT.total_seconds()
        ):
            return float(seconds)
        if (declared := self.job_type.task.timeout) is not None:
            return declared.total_seconds()
        return default

    def end_once(self) -> bool:
        """Tell the first caller True and every other False; list.pop is atomic."""
        try:
            return self._open.pop()
        except IndexError:
            return False

    @property
    def is_open(self) -> bool:
        """True while nobody has decided the outcome."""
        return bool(self._open)

    def context(self) -> JobContext:
        """Make what the handler gets as its first argument."""
        return JobContext(self.lease, self.job_type, self.stop, self.using)

    def completed(self, value: Any, settings: Settings) -> Ended:
        """
        Translate what the handler returned; a returned verdict counts as if it was raised.

        With BODY_STORAGE the result may be too large for a row: then it is still to be saved.
        """
        if isinstance(value, (Retry, Snooze, Discard)):
            return self.failed(value, settings)
        if value is None:
            return self._ended(AttemptState.COMPLETED)
        try:
            result = encode_result(
                value,
                return_hint=self.job_type_result_hint,
                limit_bytes=row_limit(settings.MAX_RESULT_BYTES, settings),
            )
        except PgBrokerError as error:
            return self.failed(error, settings)
        return self._ended(AttemptState.COMPLETED, result=result)

    @property
    def job_type_result_hint(self) -> Any:
        """The codec of the handler's return annotation, or None."""
        return self.job_type.signature.result

    def failed(self, error: BaseException, settings: Settings) -> Ended:
        """Translate what the handler raised; never raises itself, whatever that is."""
        try:
            return self._failed(error, settings)
        except BaseException as trouble:
            # A verdict with odd attributes, a backoff callable that exits: the slot must come free.
            return self._ended(
                AttemptState.FAILED,
                delay=settings.BACKOFF.delay(self.lease.failures_before + 1, 1.0),
                error_code="outcome_not_described",
                error=f"{type(error).__name__} could not be recorded: {type(trouble).__name__}",
            )

    def cancelled_unstarted(self, settings: Settings) -> Ended:
        """Record an attempt that was asked to cancel before its handler was called."""
        self.stop.set("cancelled")
        return self.failed(AttemptCancelled("cancelled before it started"), settings)

    def _failed(self, error: BaseException, settings: Settings) -> Ended:
        match error:
            case Snooze():
                return self._ended(
                    AttemptState.SNOOZED,
                    delay=min(error.delay, _LONGEST_DELAY),
                    error=self._bounded(error.reason, settings),
                )
            case Discard():
                self.error = error
                return self._ended(
                    AttemptState.FAILED,
                    permanent=True,
                    error_code="discarded",
                    error=self._bounded(error.reason, settings),
                )
            case Retry(delay=delay) if delay is not None:
                self.error = error
                return self._ended(
                    AttemptState.FAILED,
                    delay=min(delay, _LONGEST_DELAY),
                    error_code="retry",
                    error=self._bounded(error.reason, settings),
                )
        self.error = error
        state = AttemptState.FAILED
        if self.stop.reason in _STOPPED_AS:
            state = _STOPPED_AS[self.stop.reason]
        if self._past_deadline():
            return self._ended(
                AttemptState.TIMED_OUT,
                permanent=True,
                error_code="deadline_exceeded",
                error="the job passed its deadline while it ran",
            )
        if state is AttemptState.TIMED_OUT:
            return self.timed_out(settings)
        described = describe_exception(error, limit_bytes=settings.MAX_ERROR_BYTES)
        code, message = _code_of(error) or described.class_path, described.message
        if isinstance(error, Retry):
            code = "retry"
        elif state is AttemptState.CANCELLED and isinstance(error, asyncio.CancelledError):
            # How a coroutine hears of what `raise_if_cancelled` tells a thread: one thing, so one code.
            code, message = AttemptCancelled.code, message or "the attempt was asked to stop: cancelled"
        return self._ended(
            state,
            delay=self.backoff(error, settings),
            error_code=code,
            error=message,
            traceback=described.traceback,
        )

    def timed_out(self, settings: Settings) -> Ended:
        """Record an attempt that ran longer than its timeout, or past the job's deadline."""
        if self.timeout is None or self._past_deadline():
            return self._ended(
                AttemptState.TIMED_OUT,
                permanent=True,
                error_code="deadline_exceeded",
                error="the job passed its deadline while it ran",
            )
        error = AttemptTimedOut(f"the attempt ran longer than its timeout of {self.timeout:g} s")
        self.error = error
        return self._ended(
            AttemptState.TIMED_OUT,
            delay=self.backoff(error, settings),
            error_code=error.code,
            error=str(error),
        )

    def crashed(self, error: ChildCrashed, settings: Settings) -> Ended:
        """Record an attempt whose process ended under it; the first crash of a job is tried again at once."""
        self.error = error
        return self._ended(
            AttemptState.CRASHED,
            delay=self.backoff(error, settings) if self.lease.crash_count else timedelta(0),
            error_code=error.code,
            error=str(error),
        )

    def undecodable(self, error: PgBrokerError, settings: Settings) -> Ended:
        """Record arguments that do not fit the handler: the code, or the payload, has to change first."""
        self.error = error
        return self._ended(
            AttemptState.FAILED,
            delay=self.backoff(error, settings),
            error_code=error.code,
            error=self._bounded(str(error), settings),
        )

    def backoff(self, error: BaseException, settings: Settings) -> timedelta:
        """Choose the wait before the next attempt: of this job, its type, or the setting."""
        failures = self.lease.failures_before + 1
        dice = random.random()  # noqa: S311 - spreads load, hides nothing
        stored = self.options.get("backoff")
        if stored:
            try:
                return Backoff(**stored).delay(failures, dice)
            except (InvalidOption, TypeError, ArithmeticError, ValueError):
                # Written by hand: what it cannot mean is read as absent.
                pass
        declared = self.job_type.task.backoff
        if isinstance(declared, Backoff):
            return declared.delay(failures, dice)
        if declared is not None:
            try:
                waited = declared(error, running_result(self.lease, self.job_type))
                delay = waited if isinstance(waited, timedelta) else timedelta(seconds=waited)
                if timedelta(0) <= delay <= timedelta(days=366):
                    return delay
            except Exception as trouble:  # a broken callable must not lose the job
                error.add_note(
                    f"pgbroker: the backoff callable failed ({type(trouble).__name__}); the default was used"
                )
        return settings.BACKOFF.delay(failures, dice)

    def ask_to_stop(self, reason: StopReason) -> None:
        """Set the handler's stop signal; an executor may do more."""
        self.stop.set(reason)

    def stopped_before_it_ran(self) -> AttemptCancelled | None:
        """Return why the handler must not be called any more, or None."""
        reason = self.stop.reason
        return None if reason is None else AttemptCancelled(f"asked to stop before it started: {reason}")

    def _past_deadline(self) -> bool:
        deadline = self.lease.deadline_at
        if deadline is None:
            return False
        return self.lease.leased_at + timedelta(seconds=time.monotonic() - self.claimed_at) >= deadline

    def seconds_to_deadline(self) -> float | None:
        """How long until the job's deadline, by the database's clock at the claim; None without one."""
        if self.lease.deadline_at is None:
            return None
        left = (self.lease.deadline_at - self.lease.leased_at).total_seconds()
        return left - (time.monotonic() - self.claimed_at)

    def _bounded(self, text: object, settings: Settings) -> str | None:
        return bounded(str(text), settings.MAX_ERROR_BYTES) if text else None

    def _ended(self, state: AttemptState, **more: Any) -> Ended:
        started = self.started if self.started is not None else time.monotonic()
        return Ended(
            self.lease,
            state,
            self.lease.leased_at + timedelta(seconds=started - self.claimed_at),
            time.monotonic() - started,
            log_tail=log_tail(self.log_lines, self.log_bytes) if self.log_lines else None,
            **more,
        )

"""How long to wait before the next attempt. Pure: the caller brings the count and the dice."""

import math
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from pgbroker.errors import InvalidOption

# Beyond this a delay is not a retry policy but a mistake; it also keeps every sum inside a timestamptz.
LONGEST_SECONDS = 366 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """
    Exponential backoff with full jitter: a random share of `base * factor ** (failures - 1)`, at most `cap`.

    Seconds. A `factor` of 1 waits the same each time; without `jitter` the whole wait is used.
    """

    base: float = 5.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: bool = True

    def __post_init__(self) -> None:
        for name in ("base", "factor", "cap"):
            _refuse_unless_number(f"backoff.{name}", getattr(self, name))
        if self.base < 0:
            raise InvalidOption("backoff.base", f"is negative ({self.base})", "Give zero or more seconds.")
        if self.factor < 1:
            raise InvalidOption("backoff.factor", f"is below 1 ({self.factor})", "Give 1 or more.")
        if not 0 <= self.cap <= LONGEST_SECONDS:
            raise InvalidOption(
                "backoff.cap",
                f"is outside 0 to {LONGEST_SECONDS:.0f} s ({self.cap})",
                "Give a cap in that range.",
            )

    def longest(self, failures: int) -> float:
        """Return the wait in seconds after so many *failures* (at least 1), before jitter."""
        if self.base == 0:
            return 0.0
        exponent = max(failures, 1) - 1
        # Capped before it is multiplied: 5 ** 40 s would overflow the date type and lose the job.
        if self.factor > 1 and exponent * math.log(self.factor) >= math.log(max(self.cap, 1e-9) / self.base):
            return self.cap
        return min(self.cap, self.base * self.factor**exponent)

    def delay(self, failures: int, dice: float) -> timedelta:
        """Return the wait after so many *failures*; *dice* is a random number in [0, 1)."""
        longest = self.longest(failures)
        return timedelta(seconds=longest * dice if self.jitter else longest)

    def as_json(self) -> dict[str, Any]:
        """Return the form that is stored with a job type, for statements that run without a worker."""
        return asdict(self)


def _refuse_unless_number(field: str, value: object) -> None:
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return
    except OverflowError:
        pass
    raise InvalidOption(field, f"is not a number that a float holds ({str(value)[:80]})", "Give seconds.")


def backoff_from(value: object, *, field: str = "backoff") -> Backoff:
    """Make a `Backoff` of what a person may write: a Backoff, seconds (always the same), or a mapping."""
    if isinstance(value, Backoff):
        return value
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _refuse_unless_number(field, value)
        return Backoff(base=float(value), factor=1.0, cap=max(float(value), 0.0), jitter=False)
    if isinstance(value, dict):
        unknown = sorted(set(value) - {"base", "factor", "cap", "jitter"})
        if unknown:
            raise InvalidOption(field, f"has unknown keys {unknown}", "Use base, factor, cap, jitter.")
        return Backoff(**value)
    raise InvalidOption(
        field, f"is {value!r}", "Give seconds, a mapping of base, factor, cap and jitter, or a Backoff."
    )

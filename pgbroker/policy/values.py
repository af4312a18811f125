"""Checks of one value that somebody wrote: what it must be, and what to write instead."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pgbroker.errors import InvalidOption
from pgbroker.policy.durations import seconds_of

LONGEST_TIMEOUT = timedelta(days=30)
_NUL = "\x00"
# Of what people say about what they do.
LONGEST_REMARK = 2000


def text(longest: int) -> Callable[[str, Any], str]:
    """Return a check of (field, value) for a string of 1 to *longest* characters that PostgreSQL can store."""

    def check(field: str, value: Any) -> str:
        string(field, value)
        if not 1 <= len(value) <= longest:
            raise InvalidOption(field, f"has {len(value)} characters", f"Give 1 to {longest}.")
        return _storable(field, value)

    return check


def string(field: str, value: Any) -> str:
    """Return *value* if it is a string; raises `InvalidOption`. For a name that is then looked up."""
    if not isinstance(value, str):
        raise InvalidOption(field, f"is a {type(value).__name__}", "Give a string.")
    return value


def remark(field: str, value: Any) -> str:
    """Return what somebody says about what he does, which may be empty; raises `InvalidOption`."""
    string(field, value)
    if len(value) > LONGEST_REMARK:
        raise InvalidOption(field, f"has {len(value)} characters", f"Give at most {LONGEST_REMARK}.")
    return _storable(field, value)


def truth(field: str, value: Any) -> bool:
    """Return *value* if it is True or False; raises `InvalidOption`."""
    if not isinstance(value, bool):
        raise InvalidOption(field, f"is {value!r}", "Give True or False.")
    return value


def _storable(field: str, value: str) -> str:
    if _NUL in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidOption(
            field, "has a NUL or a lone surrogate, which PostgreSQL cannot store", "Remove it."
        )
    return value


def one_of(*choices: str) -> Callable[[str, Any], str]:
    """Return a check of (field, value) for one of these words."""

    def check(field: str, value: Any) -> str:
        if value not in choices:
            raise InvalidOption(field, f"is {value!r}", f"Choose one of: {', '.join(choices)}.")
        return str(value)

    return check


def whole(field: str, value: Any, smallest: int, largest: int) -> int:
    """Return *value* if it is a whole number in the range; raises `InvalidOption`."""
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise InvalidOption(field, f"is {value!r}", f"Give a whole number from {smallest} to {largest}.")
    return value


def elements(field: str, value: Any, cure: str) -> Iterable[Any]:
    """Return what can be gone through one by one, and is no text or mapping; raises `InvalidOption`."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InvalidOption(field, f"is a {type(value).__name__}", cure)
    return value


def named(field: str, value: Any) -> Mapping[str, Any]:
    """Return *value* if it is a mapping, of names to values; raises `InvalidOption`."""
    if not isinstance(value, Mapping):
        raise InvalidOption(field, f"is a {type(value).__name__}", "Give a mapping of names to values.")
    return value


def duration(field: str, value: Any, *, longest: timedelta = LONGEST_TIMEOUT) -> timedelta:
    """Return seconds or a timedelta as a timedelta above zero; raises `InvalidOption`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # Before it is rounded to microseconds, as the database looks at it.
        if 0 < value < 1e-6 or value > longest.total_seconds():
            raise InvalidOption(
                field, f"is {value!r} seconds", f"Give a microsecond or more, at most {seconds_of(longest)}."
            )
        try:
            value = timedelta(seconds=value)
        except (OverflowError, ValueError):
            raise InvalidOption(
                field, f"is {value!r} seconds", f"Give at most {seconds_of(longest)}."
            ) from None
    if not isinstance(value, timedelta):
        raise InvalidOption(field, f"is {value!r}", "Give seconds or a timedelta.")
    if not timedelta(0) < value <= longest:
        raise InvalidOption(
            field, f"is {seconds_of(value)}", f"Give more than zero and at most {seconds_of(longest)}."
        )
    return value


def instant(field: str, value: Any) -> datetime:
    """Return an aware datetime; raises `InvalidOption` for a naive one: nobody would know which hour it means."""
    if not isinstance(value, datetime):
        raise InvalidOption(field, f"is {value!r}", "Give an aware datetime.")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidOption(
            field, f"is naive ({value})", "Give it a time zone: django.utils.timezone.make_aware()."
        )
    if not datetime(1970, 1, 1, tzinfo=UTC) <= value.astimezone(UTC) <= datetime(9000, 1, 1, tzinfo=UTC):
        raise InvalidOption(field, f"is {value}", "Give an instant between the years 1970 and 9000.")
    return value

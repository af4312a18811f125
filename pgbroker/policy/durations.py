"""How a stretch of time is written in a message. Pure."""

from datetime import timedelta


def seconds_of(value: timedelta) -> str:
    """Write a duration in seconds, as options take it: `-1 s`, not Python's "-1 day, 23:59:59"."""
    whole, rest = divmod(value, timedelta(seconds=1))
    # As a float, a long duration would lose its last digits.
    return f"{whole} s" if not rest else f"{value.total_seconds():.6f}".rstrip("0") + " s"

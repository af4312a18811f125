"""How a stretch of time is written in a message. Pure."""

from datetime import timedelta


def duration_of(value: timedelta) -> str:
    """Write a duration as people read it; one below nothing in seconds."""
    return seconds_of(value) if value < timedelta(0) else str(value)


def seconds_of(value: timedelta) -> str:
    """Write a duration in seconds, as options take it: `-1 s`, not Python's "-1 day, 23:59:59"."""
    whole, rest = divmod(value, timedelta(seconds=1))
    # As a float, a long duration would lose its last digits.
    return f"{whole} s" if not rest else f"{value.total_seconds():.6f}".rstrip("0") + " s"


def roughly(seconds: float) -> str:
    """Write an age in its two largest units: `3m 20s`."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (left, "s")]
    while len(parts) > 1 and not parts[0][0]:
        del parts[0]
    return " ".join(f"{count}{unit}" for count, unit in parts[:2])

"""
Write moments and durations as ISO 8601 text that loses nothing, and read them back. Pure.

A zone's key follows in brackets, as RFC 9557 has it, and then the fold where it is set:
`2026-11-01T01:30:00-05:00[America/New_York][fold=1]`.
"""

import re
from datetime import datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from pgbroker.policy.plain_json import Refused


def _zone_tag(zone: tzinfo | None) -> str:
    if zone is None or type(zone) is timezone:
        return ""
    if type(zone) is not ZoneInfo:
        raise Refused(
            f"has a time zone of type {type(zone).__module__}.{type(zone).__qualname__}",
            "Use zoneinfo.ZoneInfo or datetime.timezone.",
        )
    if not zone.key:
        raise Refused("has a ZoneInfo without a key", "Make it with ZoneInfo(key).")
    return f"[{zone.key}]"


def moment_text(value: datetime | time) -> str:
    """Write ISO 8601, then the zone's key as RFC 9557 does, then the fold."""
    text = value.isoformat() + _zone_tag(value.tzinfo)
    return f"{text}[fold=1]" if value.fold else text


def _untagged(text: str) -> tuple[str, ZoneInfo | None, int]:
    """Split a moment's text into the ISO 8601 part, the zone and the fold."""
    moment, *tags = text.replace("]", "").split("[")
    fold = 0
    if tags and tags[-1] == "fold=1":
        fold = 1
        tags.pop()
    if len(tags) > 1:
        raise ValueError("more than one zone")
    return moment, ZoneInfo(tags[0]) if tags else None, fold


def datetime_of(text: str) -> datetime:
    if "[" not in text:
        return datetime.fromisoformat(text)
    plain, zone, fold = _untagged(text)
    moment = datetime.fromisoformat(plain)
    if zone is None:
        return moment.replace(fold=fold)
    local = moment.replace(tzinfo=zone, fold=fold)
    if moment.tzinfo is not None and local.utcoffset() != moment.utcoffset():
        # The rules of the zone differ here from where the job was enqueued: the instant is kept.
        return moment.astimezone(zone)
    return local


def time_of(text: str) -> time:
    if "[" not in text:
        return time.fromisoformat(text)
    plain, zone, fold = _untagged(text)
    moment = time.fromisoformat(plain)
    return moment.replace(tzinfo=zone, fold=fold) if zone else moment.replace(fold=fold)


_DURATION = re.compile(
    r"P(?:(-?\d{1,10})D)?(?:T(?:(-?\d{1,14})H)?(?:(-?\d{1,14})M)?(?:(-?)(\d{1,14})(?:\.(\d{1,6}))?S)?)?",
    re.ASCII,
)


def duration_text(value: timedelta) -> str:
    """Write an ISO 8601 duration from the three numbers a timedelta keeps, so nothing is rounded."""
    fraction = f".{value.microseconds:06}" if value.microseconds else ""
    return f"P{value.days}DT{value.seconds}{fraction}S"


def duration_of(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError("not a duration")
    days, hours, minutes, sign, seconds, fraction = match.groups()
    whole = timedelta(seconds=int(seconds or 0), microseconds=int((fraction or "").ljust(6, "0")))
    return timedelta(days=int(days or 0), hours=int(hours or 0), minutes=int(minutes or 0)) + (
        -whole if sign else whole
    )

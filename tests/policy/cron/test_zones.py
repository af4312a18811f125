"""Which time zones there are, where their rules come from, and how a change of the rules is noticed."""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime
from importlib import resources
from itertools import pairwise

import pytest
import tzdata

from pgbroker.errors import InvalidTimeZone
from pgbroker.policy.cron import parse, zones


@pytest.mark.parametrize(
    "zone",
    [
        "",
        " ",
        "Mars/Olympus",
        "../../etc/passwd",
        "/usr/share/zoneinfo/UTC",
        "America",
        "America/",
        "America/New_York/",
        "./UTC",
        "UTC\0",
        "UTC\n",
        "+02:00",
        "UTC+2",
        "Factory",
        "localtime",
        "posixrules",
        "posix/UTC",
        "right/UTC",
        "tzdata.zi",
        "é",
        "x" * 1_000_000,
        None,
        5,
        b"UTC",
        ["UTC"],
    ],
    ids=lambda zone: ascii(zone)[:30],
)
def test_what_is_no_iana_name_is_refused(zone):
    with pytest.raises(InvalidTimeZone) as caught:
        parse("0 0 * * *", zone)

    assert caught.value.code == "invalid_time_zone"
    assert len(caught.value.message) < 250


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("europe/berlin", "Europe/Berlin"), ("America/New York", "America/New_York"), ("utc", "UTC")],
)
def test_a_name_that_is_nearly_right_is_proposed(typed, meant):
    with pytest.raises(InvalidTimeZone, match=f"Did you mean '{meant}'"):
        parse("0 0 * * *", typed)


def test_every_zone_can_be_read_and_fires():
    midnight = datetime(2026, 11, 29, 12, tzinfo=UTC)

    assert len(zones.names()) > 590
    for name in zones.names():
        tick = parse("0 0 * * *", name).first_after(midnight)
        assert (tick.wall.hour, tick.wall.minute) == (0, 0)


def test_the_rules_are_those_of_the_package_not_of_the_system(monkeypatch):
    monkeypatch.setattr(zones, "ZoneInfo", Without())

    assert zones.load.__wrapped__("Africa/Cairo").rules == "Africa/Cairo from a file"


class Without:
    """A ZoneInfo that cannot look at the system."""

    def __call__(self, key):
        raise AssertionError(f"the system was asked for {key}")

    def from_file(self, file, *, key):
        return f"{key} from a file"


def test_a_fingerprint_is_that_of_the_rules():
    assert zones.load("US/Eastern").fingerprint == zones.load("America/New_York").fingerprint
    prints = [zones.load(name).fingerprint for name in ("America/New_York", "America/Toronto", "UTC")]
    assert len(set(prints)) == 3
    assert all(len(each) == 16 for each in prints)


def test_the_version_is_that_of_the_package():
    assert zones.version() == tzdata.IANA_VERSION
    assert re.fullmatch(r"20\d\d[a-z]", zones.version())


def changes(content: bytes) -> list[int]:
    """Read the instants at which a TZif file (RFC 9636) changes the offset."""
    version = content[4:5]
    assert version >= b"2"
    isut, isstd, leap, count, types, letters = struct.unpack(">6l", content[20:44])
    second = 44 + count * 5 + types * 6 + letters + leap * 8 + isstd + isut
    isut, isstd, leap, count, types, letters = struct.unpack(">6l", content[second + 20 : second + 44])
    body = second + 44
    instants = struct.unpack(f">{count}q", content[body : body + count * 8])
    kinds = content[body + count * 8 : body + count * 9]
    offsets = [
        struct.unpack(">l", content[start : start + 4])[0]
        for start in range(body + count * 9, body + count * 9 + types * 6, 6)
    ]
    found, offset = [], offsets[0]
    for instant, kind in zip(instants, kinds, strict=True):
        if offsets[kind] != offset:
            found.append(instant)
        offset = offsets[kind]
    return found


def test_no_two_changes_of_a_zone_are_as_close_as_the_clock_is_looked_at():
    """
    So none is overlooked. The closest lie a week apart; new zone data with closer ones fails here, and then
    the clock has to be looked at more often.
    """
    closest = min(
        later - earlier
        for name in zones.names()
        for times in [changes(resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes())]
        for earlier, later in pairwise(times)
    )

    assert closest >= 2 * 86_400

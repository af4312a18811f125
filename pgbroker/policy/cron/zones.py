"""
The rules of time zones, from one source: the package tzdata, which is installed with pgbroker.

Not from the system, which `ZoneInfo(key)` asks first: hosts that run the same lock file must agree about
a schedule's next run, and a version of the system's zone data can seldom be told.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from hashlib import sha256
from importlib import import_module, resources
from io import BytesIO
from zoneinfo import ZoneInfo

from pgbroker.errors import InvalidTimeZone


# Compared by identity: a zone is read once a process, and is the key of what is remembered about it.
@dataclass(frozen=True, slots=True, eq=False)
class Zone:
    """A time zone. The *fingerprint* is another one when the zone's rules have changed."""

    key: str
    rules: ZoneInfo
    fingerprint: str


@cache
def names() -> frozenset[str]:
    """Return the names of all time zones that a schedule may have."""
    listed = (resources.files("tzdata") / "zones").read_text(encoding="ascii").split()
    return frozenset(listed) - {"Factory"}  # stands for "not set up yet"


def version() -> str:
    """Return the release of the zone data as IANA names it, such as 2026f. Later ones sort behind."""
    return str(import_module("tzdata").IANA_VERSION)


def checked(key: object) -> str:
    """Return the IANA name as it was given, or raise InvalidTimeZone. Links such as US/Eastern are taken."""
    if isinstance(key, str) and key in names():
        return key
    shown = (key if isinstance(key, str) else str(key))[:80]
    wanted = shown.lower()
    close = [name for name in names() if name.lower() == wanted] or get_close_matches(shown, names(), n=1)
    cure = (
        f"Did you mean {close[0]!r}?"
        if close
        else "Use an IANA name, such as 'Africa/Johannesburg' or 'UTC'."
    )
    raise InvalidTimeZone(shown, cure)


# Not bounded by a number: only names of the list come here, and there are 600.
@cache
def load(key: str) -> Zone:
    """Return the zone of a name that was checked."""
    assert key in names()
    file = resources.files("tzdata").joinpath("zoneinfo", *key.split("/"))
    content = file.read_bytes()
    return Zone(key, ZoneInfo.from_file(BytesIO(content), key=key), sha256(content).hexdigest()[:16])

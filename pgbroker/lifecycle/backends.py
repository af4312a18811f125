"""backends: ask the server what it does for some sessions, and change nothing."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from pgbroker import db


class Backend(NamedTuple):
    """One session as the server sees it: it is idle, reading what its client sends, or busy; None: not ours to know."""

    pid: int
    does: str | None
    since: datetime | None


def backends(pids: Sequence[int], *, using: str | db.Session = "default") -> dict[int, Backend]:
    """Return what the server says of those of its processes that are there, and of the asking one."""
    found = db.fetch("backends", {"pids": list(pids)}, Backend._make, using=using)
    return {each.pid: each for each in found}

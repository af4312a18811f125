"""What /proc tells of processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def alive(pids: Iterable[int]) -> set[int]:
    """Those of the processes that are there and no zombies."""
    return {pid for pid in pids if state_of(pid) not in ("", "Z")}


def state_of(pid: int) -> str:
    """What a process does, as the letter of /proc; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parents() -> dict[int, int]:
    """The parent of each process there is."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return found


def descendants_of(pid: int) -> set[int]:
    """What a process started, and what that started."""
    above, found = parents(), {pid}
    while more := {each for each in above if above[each] in found} - found:
        found |= more
    return found - {pid}


def sockets_of(pid: int) -> list[str]:
    """The sockets that a process has open."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        # One may be closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(each))
    return [each for each in found if each.startswith("socket:")]

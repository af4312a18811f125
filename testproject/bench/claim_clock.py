"""How long statements of a worker process took: written by the workers of a row into a folder."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from pgbroker import db

VARIABLE = "BENCH_CLAIMS"
# Which statements, by their names; claims where nothing is said.
STATEMENTS = "BENCH_STATEMENTS"
_ENTRY = struct.Struct("<dd")


def install() -> None:
    """Time the statements of this process from now on, if it was asked to."""
    if directory := os.environ.get(VARIABLE):
        timed = os.environ.get(STATEMENTS, "claim").split(",")
        # Unbuffered: an entry is whole or absent, also when the process is killed.
        files = {name: (Path(directory) / f"{name}-{os.getpid()}").open("ab", buffering=0) for name in timed}
        # Each statement has its own loop, and runs there one at a time.
        began = dict.fromkeys(timed, 0.0)

        def clock(moment: str, statement: str) -> None:
            if statement not in files:
                return
            now = time.monotonic()
            if moment == "before":
                began[statement] = now
            else:
                files[statement].write(_ENTRY.pack(now, now - began[statement]))

        db.fault = clock


def timed(directory: Path, *, statement: str = "claim") -> list[tuple[float, float]]:
    """Return when each statement of all processes ended, by the monotonic clock, and its seconds, in that order."""
    entries: list[tuple[float, float]] = []
    for path in directory.glob(f"{statement}-*"):
        whole = path.read_bytes()
        entries += _ENTRY.iter_unpack(whole[: len(whole) - len(whole) % _ENTRY.size])
    return sorted(entries)


def read(directory: Path, *, statement: str = "claim") -> list[float]:
    """Return the seconds of all such statements of all processes, in the order in which they ended."""
    return [seconds for _, seconds in timed(directory, statement=statement)]

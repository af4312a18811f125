"""How long each claim of a worker process took: written by the workers of `soak` into a folder."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from pgbroker import db

VARIABLE = "BENCH_CLAIMS"
_ENTRY = struct.Struct("<dd")


def install() -> None:
    """Time the claims of this process from now on, if it was asked to."""
    if directory := os.environ.get(VARIABLE):
        # Unbuffered: an entry is whole or absent, also when the process is killed.
        file = (Path(directory) / f"claims-{os.getpid()}").open("ab", buffering=0)
        began = 0.0

        def clock(moment: str, statement: str) -> None:
            nonlocal began
            if statement != "claim":
                return
            now = time.monotonic()
            if moment == "before":
                began = now
            else:
                file.write(_ENTRY.pack(now, now - began))

        db.fault = clock


def read(directory: Path) -> list[float]:
    """Return the seconds of all claims of all processes, in the order in which they ended."""
    entries: list[tuple[float, float]] = []
    for path in directory.glob("claims-*"):
        whole = path.read_bytes()
        entries += _ENTRY.iter_unpack(whole[: len(whole) - len(whole) % _ENTRY.size])
    return [seconds for _, seconds in sorted(entries)]

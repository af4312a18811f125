"""
Which jobs ran, how often, and when the first one began: a file of one byte a job, mapped by whoever runs them.

Standard library only: it is imported in the environments of the peers too. A note costs a tenth of a
microsecond, needs no system call that would hand Python's lock to another thread, and outlives a kill -9.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

VARIABLE = "BENCH_RAN"
HEADER = 16
_AT = struct.Struct("<d")

# Shared with forked children, who write into the same file.
_seen: mmap.mmap | None = None
_looked = False


def make(path: Path, jobs: int) -> Look:
    """Make the file for jobs 0 to *jobs* - 1, of which none has run."""
    path.write_bytes(bytes(HEADER + jobs))
    return Look(path)


def note(number: int) -> None:
    """Note that job *number* runs. The first one notes when; where there is no file nothing is noted."""
    if not _looked:
        _open()
    if _seen is not None:
        _seen[HEADER + number] += 1


def _open() -> None:
    global _seen, _looked
    if path := os.environ.get(VARIABLE):
        seen = _map(Path(path))
        if _AT.unpack_from(seen)[0] == 0.0:
            # The monotonic clock is one for all processes of a machine.
            _AT.pack_into(seen, 0, time.monotonic())
        _seen = seen
    _looked = True


def _map(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


class Stamps:
    """When each job began, by the monotonic clock: eight bytes a job, written by whichever process ran it."""

    VARIABLE = "BENCH_STAMPS"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._times = _map(path)

    @classmethod
    def make(cls, path: Path, jobs: int) -> Stamps:
        """Make the file for jobs 0 to *jobs* - 1."""
        path.write_bytes(bytes(_AT.size * jobs))
        return cls(path)

    @classmethod
    def given(cls) -> Stamps:
        """Open the file that the environment names."""
        return cls(Path(os.environ[cls.VARIABLE]))

    def stamp(self, number: int) -> None:
        """Note that job *number* begins now."""
        _AT.pack_into(self._times, _AT.size * number, time.monotonic())

    def at(self, number: int) -> float | None:
        """Return when the job began; None before it has."""
        return _AT.unpack_from(self._times, _AT.size * number)[0] or None


class Look:
    """What whoever waits for the jobs sees of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = _map(path)

    @property
    def began_at(self) -> float | None:
        """When the first job began, by the monotonic clock; None before that."""
        return _AT.unpack_from(self._seen)[0] or None

    @property
    def missing(self) -> int:
        """How many jobs have not run."""
        return self.times().count(0)

    def times(self) -> bytes:
        """Return how often each job ran."""
        return self._seen[HEADER:]

    def prove_once(self) -> None:
        """Raise unless each job ran exactly once."""
        times = self.times()
        if times.count(1) != len(times):
            never = times.count(0)
            raise AssertionError(
                f"of {len(times)} jobs {never} never ran and {len(times) - never - times.count(1)} more than once"
            )

"""Crashes on purpose: before or after the n-th statement, through the place `pgbroker.db` keeps for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from pgbroker import db

Moment = Literal["before", "after"]


class Crash(BaseException):
    """What a killed process would be: no handler of errors catches it."""


@contextmanager
def fault(at: Callable[[Moment, str], None]) -> Iterator[None]:
    """Call *at* with the moment and the name of every statement."""
    assert db.fault is None
    db.fault = at
    try:
        yield
    finally:
        db.fault = None


@contextmanager
def statements_run() -> Iterator[list[str]]:
    """Note the names of the statements that run, in order."""
    names: list[str] = []
    with fault(lambda moment, name: names.append(name) if moment == "before" else None):
        yield names


@contextmanager
def crash_after(nth: int, *, moment: Moment = "after") -> Iterator[None]:
    """Crash after (or before) the *nth* statement, counted from 1; does nothing when fewer run."""
    seen = 0

    def at(now: Moment, name: str) -> None:
        nonlocal seen
        if now == moment:
            seen += 1
            if seen == nth:
                raise Crash(f"{moment} {name}")

    with fault(at):
        yield

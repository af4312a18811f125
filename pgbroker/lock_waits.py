"""Wait for what somebody's open transaction holds: a little, all in all, and then go on with the rest."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import psycopg
from django.db import OperationalError

from pgbroker.limited import limiting

T = TypeVar("T")

# What is waited at least, so that whoever only passes by is let pass.
SHORTEST = 0.005


class Patience:
    """So many seconds for all waits together; whoever comes when they are spent waits for a moment only."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    @property
    def is_spent(self) -> bool:
        """True once there is none left."""
        return self.left <= 0

    @contextmanager
    def limiting(self, *, using: str) -> Iterator[None]:
        """
        Let what is inside wait for a lock no longer than that; it is a transaction, or a part of one.

        Raises Django's OperationalError, which `is_held` knows, and what is inside is undone then.
        """
        began = time.monotonic()
        try:
            with limiting("lock_timeout", max(SHORTEST, self.left), using=using):
                yield
        except OperationalError as error:
            if is_held(error):
                self.left -= time.monotonic() - began
            raise


def is_held(error: BaseException) -> bool:
    """Tell whether an error says that somebody holds a row, or a name, for longer than was waited."""
    return isinstance(error.__cause__ or error, psycopg.errors.LockNotAvailable)


def write_unhindered(
    wanted: Sequence[T], write: Callable[[Sequence[T]], object], *, patience: Patience, using: str
) -> list[T]:
    """
    Write all that is wanted in one statement; where somebody holds one of them, in halves. Returns what is left.

    One of a thousand costs twenty statements, and not a thousand.
    """
    left: list[T] = []
    parts = [wanted]
    while parts:
        part = parts.pop()
        if not part:
            continue
        try:
            with patience.limiting(using=using):
                write(part)
        except OperationalError as error:
            if not is_held(error):
                raise
            if len(part) == 1 or patience.left < -1:
                # Later, by whoever declares it again.
                left += part
                continue
            half = len(part) // 2
            parts += [part[:half], part[half:]]
    return left

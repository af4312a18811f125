"""The rows that can be run, by name. Each family is a module of this package with a list `ROWS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

# One a line, so that two additions do not meet.
FAMILIES = (
    "drain",
    "isolation",
    "orm",
    "enqueue",
    "pickup",
    "scale",
    "held",
    "memory",
    "soak",
    "idle",
    "waiting",
    "plain_cost",
    "schedules",
)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large a run is to be. A number that was given on the command line goes before those of the row."""

    quick: bool = False
    jobs: int | None = None
    rounds: int | None = None

    def count(self, *, quick: int, full: int) -> int:
        """Return how many jobs to run."""
        return self.jobs or (quick if self.quick else full)

    def turns(self, *, quick: int, full: int) -> int:
        """Return how many rounds to measure."""
        return self.rounds or (quick if self.quick else full)


@dataclass(frozen=True, kw_only=True)
class Row:
    """
    One row: its name, what it measures in one sentence, and the function that measures it.

    The function returns what `compare.row` makes.
    """

    name: str
    what: str
    measure: Callable[[Scale], dict[str, Any]]


def all_rows() -> dict[str, Row]:
    """Import every family and return its rows, in order."""
    modules = [import_module(f"testproject.bench.{family}") for family in FAMILIES]
    return {row.name: row for module in modules for row in module.ROWS}

"""The scenarios by name: each is a function that makes one fault, and returns when the fault is over."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testproject.chaos.stage import Stage

FAMILIES = ("processes", "server", "traffic", "people", "network", "clocks", "groups")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """
    One fault and what it is made on.

    *proxied*: workers reach PostgreSQL through a network that can be broken. *clocks*: how many seconds the
    wall clock of each worker's host is wrong; there are as many workers as clocks. *meddles*: people act on jobs,
    so nobody can say how each must end.
    """

    make: Callable[[Stage], None]
    proxied: bool = False
    clocks: tuple[int, ...] = (0, 0)
    quick: bool = False
    meddles: bool = False

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        return self.make.__name__.replace("_", "-")

    @property
    def what(self) -> str:
        """What happens, in one sentence."""
        return " ".join((inspect.getdoc(self.make) or "").split("\n\n")[0].split())


_known: dict[str, Scenario] = {}


def scenario(
    *,
    proxied: bool = False,
    clocks: tuple[int, ...] = (0, 0),
    quick: bool = False,
    meddles: bool = False,
) -> Callable[[Callable[[Stage], None]], Scenario]:
    """Make a scenario of a function; *quick* ones are the short form that CI runs."""

    def declare(make: Callable[[Stage], None]) -> Scenario:
        made = Scenario(make=make, proxied=proxied, clocks=clocks, quick=quick, meddles=meddles)
        assert made.name not in _known
        _known[made.name] = made
        return made

    return declare


def all_scenarios() -> dict[str, Scenario]:
    """Import every family and return its scenarios, in order."""
    for family in FAMILIES:
        import_module(f"testproject.chaos.{family}")
    return dict(_known)

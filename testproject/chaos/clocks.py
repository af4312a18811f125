"""Hosts whose wall clock is wrong."""

from __future__ import annotations

from testproject.chaos.scenarios import scenario
from testproject.chaos.stage import Stage


@scenario(clocks=(600, -600))
def clocks_minutes_off(stage: Stage) -> None:
    """One worker's host is ten minutes fast, the other's ten minutes slow, and one of them is killed."""
    stage.wait(5)
    stage.kill()

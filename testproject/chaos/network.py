"""Faults of the network between the workers and PostgreSQL."""

from __future__ import annotations

from testproject.chaos.scenarios import scenario
from testproject.chaos.settings import LEASE_SECONDS
from testproject.chaos.stage import Stage


@scenario(proxied=True)
def network_swallows(stage: Stage) -> None:
    """
    Half open: for two leases nothing goes through and nothing is closed, new connections included.

    What was swallowed never arrives, and the old connections stay dead when the network is back.
    """
    stage.proxy.tell("swallow")
    stage.wait(2 * LEASE_SECONDS)
    stage.proxy.tell("pass")


@scenario(proxied=True)
def network_swallows_shortly(stage: Stage) -> None:
    """Half open for less than a lease: every open connection is dead, and nobody has lost a job yet."""
    stage.proxy.tell("swallow")
    stage.wait(LEASE_SECONDS / 3)
    stage.proxy.tell("pass")


@scenario(proxied=True, quick=True)
def connections_forgotten(stage: Stage) -> None:
    """A firewall forgets all flows: what is open is dead, without a word, and new connections work at once."""
    stage.proxy.tell("forget")


@scenario(proxied=True)
def connections_reset(stage: Stage) -> None:
    """Every connection is reset, five times in five seconds."""
    for _ in range(5):
        stage.proxy.tell("reset")
        stage.wait(1)


@scenario(proxied=True)
def connections_cut(stage: Stage) -> None:
    """Every connection is closed from the other side, five times in five seconds."""
    for _ in range(5):
        stage.proxy.tell("cut")
        stage.wait(1)


@scenario(proxied=True)
def network_delayed(stage: Stage) -> None:
    """Every piece takes 100 ms longer in each direction, as to another continent."""
    stage.proxy.tell("delay 0.1")
    stage.wait(10)
    stage.proxy.tell("pass")

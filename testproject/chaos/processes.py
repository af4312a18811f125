"""Faults of worker processes: killed, stopped, killed while PostgreSQL falls over as well."""

from __future__ import annotations

import signal
import threading

from testproject.chaos.scenarios import scenario
from testproject.chaos.settings import LEASE_SECONDS
from testproject.chaos.stage import Stage


@scenario()
def worker_killed_once(stage: Stage) -> None:
    """One of two workers is killed with SIGKILL, as the kernel does when memory runs out."""
    stage.kill()


@scenario()
def workers_killed_repeatedly(stage: Stage) -> None:
    """
    Both workers are killed with SIGKILL again and again, in turn, with a pause of 0.5 to 1.5 s.

    Some die while they start, some with a hundred jobs in hand. What each had claimed comes back with its lease.
    """
    for turn in range(10):
        stage.kill(turn % 2)
        stage.wait(stage.dice.uniform(0.5, 1.5))


@scenario()
def all_workers_killed_at_once(stage: Stage) -> None:
    """Both workers are killed in the same moment: for a second nobody is there at all."""
    stage.kill(0)
    stage.kill(1)


@scenario()
def worker_stopped_and_continued(stage: Stage) -> None:
    """
    One of two workers stands still (SIGSTOP) until its leases are long over, and goes on (SIGCONT).

    As a virtual machine that is moved, or a laptop that slept. Its jobs run elsewhere meanwhile, and whatever it
    reports when it wakes is refused.
    """
    stage.signal(signal.SIGSTOP)
    stage.wait(1.6 * LEASE_SECONDS)
    stage.signal(signal.SIGCONT)


@scenario()
def both_workers_stopped_and_continued(stage: Stage) -> None:
    """Both workers stand still until all leases are over: who wakes first finds the leases of both expired."""
    stage.signal(signal.SIGSTOP, 0)
    stage.signal(signal.SIGSTOP, 1)
    stage.wait(1.6 * LEASE_SECONDS)
    stage.signal(signal.SIGCONT, 0)
    stage.signal(signal.SIGCONT, 1)


@scenario()
def worker_stuttering(stage: Stage) -> None:
    """One worker is stopped for a third of a lease and continued, again and again, as on a host without memory."""
    for _ in range(6):
        stage.signal(signal.SIGSTOP)
        stage.wait(stage.dice.uniform(0.2, 0.4) * LEASE_SECONDS)
        stage.signal(signal.SIGCONT)
        stage.wait(0.3)


@scenario(quick=True)
def workers_killed_while_the_server_crashes(stage: Stage) -> None:
    """PostgreSQL crashes (an immediate restart), and one worker is killed before, one after it is back."""
    crash = threading.Thread(target=stage.server.restart, args=("immediate",))
    stage.kill(0)
    crash.start()
    stage.wait(stage.dice.uniform(0.0, 0.5))
    stage.kill(1)
    crash.join()

"""Jobs that test workers in processes of their own run; an app of `tests.support.worker_settings`."""

from __future__ import annotations

import time

from pgbroker import JobContext, job


@job(name="handlers.nothing", queue_name="handlers")
def nothing() -> None:
    """Do nothing."""


@job(name="handlers.deaf", queue_name="handlers")
def deaf(seconds: float) -> str:
    """Sleep, and hear nothing meanwhile."""
    time.sleep(seconds)
    return "awake"


@job(name="handlers.attentive", queue_name="handlers", takes_context=True)
def attentive(context: JobContext, seconds: float) -> bool:
    """Wait, and stop when told to; returns whether it was."""
    return context.wait(seconds)

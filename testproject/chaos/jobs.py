"""The handlers: each works for a while, does one thing to the world, and ends as its arguments say."""

from __future__ import annotations

import asyncio
import time

from pgbroker import Discard, JobContext, Snooze, job
from testproject.chaos.models import Effect, Repaired

QUEUE = "chaos"


class Flaky(Exception):
    """What a handler raises that is meant to fail."""


@job(name="chaos.work", queue_name=QUEUE, takes_context=True)
def work(context: JobContext, seconds: float, load: str, fails: int = 0) -> str:
    """Work in a thread and return the *load*; the first *fails* attempts fail after the work was done."""
    time.sleep(seconds)
    Effect.objects.create(**_of(context))
    if context.attempt <= fails:
        raise Flaky(f"attempt {context.attempt} of {fails} that fail")
    return load


@job(name="chaos.work_async", queue_name=QUEUE, takes_context=True)
async def work_async(context: JobContext, seconds: float, load: str, fails: int = 0) -> str:
    """Work on the event loop."""
    await asyncio.sleep(seconds)
    await Effect.objects.acreate(**_of(context))
    if context.attempt <= fails:
        raise Flaky(f"attempt {context.attempt} of {fails} that fail")
    return load


@job(name="chaos.come_back", queue_name=QUEUE, takes_context=True)
def come_back(context: JobContext, seconds: float) -> None:
    """Ask for another turn the first time."""
    Effect.objects.create(**_of(context))
    if context.attempt == 1:
        raise Snooze(seconds)


@job(name="chaos.give_up", queue_name=QUEUE, takes_context=True)
def give_up(context: JobContext) -> None:
    """Find out that there is nothing to do: failed for good."""
    Effect.objects.create(**_of(context))
    raise Discard("there is nothing to do")


@job(name="chaos.never", queue_name=QUEUE, takes_context=True, max_attempts=3)
def never(context: JobContext) -> None:
    """Fail each time: a dead letter in the end."""
    Effect.objects.create(**_of(context))
    raise Flaky("always")


@job(name="chaos.mend", queue_name=QUEUE, takes_context=True)
def mend(context: JobContext, graph: str) -> None:
    """Fail for good, until somebody has repaired the graph."""
    Effect.objects.create(**_of(context))
    if not Repaired.objects.filter(graph=graph).exists():
        raise Discard("it is broken")


@job(name="chaos.called", queue_name=QUEUE, takes_context=True)
def called(context: JobContext) -> None:
    """Hear that a run group has ended."""
    Effect.objects.create(**_of(context))


def _of(context: JobContext) -> dict[str, object]:
    lease = context.lease
    return {
        "job_id": lease.job_id,
        "lease_token": lease.lease_token,
        "attempt_no": lease.attempt_count,
        "worker_id": lease.worker_id,
    }

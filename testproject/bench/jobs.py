"""The handlers that are measured. Those that do nothing leave only the broker to be measured."""

import time
from datetime import date
from functools import cache

from pgbroker import Discard, JobContext, job
from testproject.bench import claim_clock, ran
from testproject.bench.models import Item

QUEUE = "bench"

claim_clock.install()


@job(name="bench.noop_async", queue_name=QUEUE)
async def noop_async(number: int, month: date, note: str) -> None:
    """Do nothing, on the event loop."""
    ran.note(number)


@job(name="bench.noop_sync", queue_name=QUEUE)
def noop_sync(number: int, month: date, note: str) -> None:
    """Do nothing, in a thread."""
    ran.note(number)


@job(name="bench.give_up", queue_name=QUEUE)
async def give_up(number: int, month: date, note: str) -> None:
    """Fail for good."""
    raise Discard("it cannot be")


@job(name="bench.beside", queue_name="beside")
async def beside(number: int, month: date, note: str) -> None:
    """Do nothing, in another queue."""


@job(name="bench.stamp", queue_name=QUEUE)
def stamp(number: int, month: date, note: str) -> None:
    """Note when it began, in a thread."""
    _stamps().stamp(number)


@cache
def _stamps() -> ran.Stamps:
    return ran.Stamps.given()


@job(name="bench.touch", queue_name=QUEUE)
def touch(number: int, month: date, note: str) -> None:
    """Read one row and write one, through the ORM."""
    touch_item(number)


@job(
    name="bench.mixed",
    queue_name=QUEUE,
    takes_context=True,
    max_attempts=20,
    backoff={"base": 0.05, "factor": 1.0, "cap": 0.05},
)
def mixed(context: JobContext, number: int, fails: int, seconds: float, note: str) -> None:
    """Fail as often as it is told to, and otherwise take its time."""
    ran.note(number)
    if context.attempt <= fails:
        raise Unlucky
    if seconds:
        time.sleep(seconds)


class Unlucky(Exception):
    """What a job of the mix fails with."""


def touch_item(number: int) -> None:
    """Do what the handler does; the plain loop beside it does the same."""
    read = Item.objects.get(pk=2 * number + 1)
    Item.objects.filter(pk=2 * number + 2).update(count=read.count + 1)
    ran.note(number)

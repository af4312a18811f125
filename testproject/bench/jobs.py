"""The handlers that are measured. Those that do nothing leave only the broker to be measured."""

from datetime import date
from functools import cache

from pgbroker import job
from testproject.bench import ran
from testproject.bench.models import Item

QUEUE = "bench"


@job(name="bench.noop_async", queue_name=QUEUE)
async def noop_async(number: int, month: date, note: str) -> None:
    """Do nothing, on the event loop."""
    ran.note(number)


@job(name="bench.noop_sync", queue_name=QUEUE)
def noop_sync(number: int, month: date, note: str) -> None:
    """Do nothing, in a thread."""
    ran.note(number)


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


def touch_item(number: int) -> None:
    """Do what the handler does; the plain loop beside it does the same."""
    read = Item.objects.get(pk=2 * number + 1)
    Item.objects.filter(pk=2 * number + 2).update(count=read.count + 1)
    ran.note(number)

"""The handlers that are measured: they do nothing, so that only the broker is left."""

from datetime import date

from pgbroker import job


@job(name="bench.noop_async", queue_name="bench")
async def noop_async(customer_id: int, month: date, note: str) -> None:
    """Do nothing, on the event loop."""


@job(name="bench.noop_sync", queue_name="bench")
def noop_sync(customer_id: int, month: date, note: str) -> None:
    """Do nothing, in a thread."""

"""beat: tell that a worker process lives."""

from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from pgbroker import db


class WorkerState(NamedTuple):
    """What a worker tells of itself."""

    worker_id: UUID
    name: str
    host: str
    pid: int
    version: str
    queues: list[str]
    slots: int
    running: int = 0
    held: int = 0
    draining: bool = False
    stopped: bool = False


def beat(state: WorkerState, *, lease: timedelta, using: str | db.Session = "default") -> None:
    """Make or renew the worker's row; it counts as alive for *lease*. Recovery never depends on it."""
    db.fetch("beat", {**state._asdict(), "lease": lease}, tuple, using=using)

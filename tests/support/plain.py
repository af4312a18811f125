"""Rows of plain jobs, which go the short way, and which way they went."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from pgbroker.lifecycle.enqueue import Enqueued, enqueue_rows
from tests.support.crash import statements_run
from tests.support.jobs import QUEUE, TYPE

ENVELOPE = {"v": 1, "args": [1], "kwargs": {"note": "Grüße"}}


def plain(**changes: Any) -> dict[str, Any]:
    """Make a row; what is "absent" is left out."""
    entry = {
        "id": str(uuid4()), "job_type": TYPE, "queue": QUEUE, "args": ENVELOPE, "type_version": 3, "priority": 0,
        "max_attempts": 7,
    }  # fmt: skip
    return {name: value for name, value in {**entry, **changes}.items() if value != "absent"}


def ways(rows: list[dict[str, Any]]) -> tuple[list[Enqueued], list[str]]:
    """Enqueue rows; returns the answers and the statements it took."""
    with statements_run() as statements:
        answers = enqueue_rows(rows)
    return answers, statements

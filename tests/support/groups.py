"""Run groups in few words, for tests of what people see and do: members, what waits for them, and what fails."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.support import links
from tests.support.jobs import enqueue_one, type_id
from tests.support.links import FAILED


def open_group(name: str, *, depends_on: list[Any] | tuple[()] = (), **options: Any) -> UUID:
    """Open a run group of the current tenant, and declare the types of its callbacks."""
    for callback in ("on_completed", "on_failed"):
        if callback in options:
            type_id(options[callback]["job_type"])
    return links.open_group(name, *depends_on, **options)


def member(group: str, **options: Any) -> UUID:
    """Enqueue a job into an open group."""
    return enqueue_one(group=group, **options)


def after(*prerequisites: object, **options: Any) -> UUID:
    """Enqueue a job that waits for these: ids of jobs, or references as an entry has them."""
    return links.job(*prerequisites, **options)


def fail(*job_ids: UUID) -> None:
    """Let ready jobs fail for good, one after the other."""
    for job_id in job_ids:
        links.run(job_id, how=FAILED)

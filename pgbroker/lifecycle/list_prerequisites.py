"""list_prerequisites: read what a job waits for, with results, and change nothing."""

from typing import Any, NamedTuple
from uuid import UUID

from pgbroker import db

START = UUID(int=0)


class AnswerRow(NamedTuple):
    """A job or a group that others wait for, and what its handler returned: JSON, or with a body its stub."""

    id: UUID
    is_group: bool
    name: str | None
    group: str | None
    status: int
    result: Any
    result_body: str | None


def list_prerequisites(
    job_id: UUID, *, after: UUID = START, limit: int, using: str | db.Session = "default"
) -> list[AnswerRow]:
    """List the prerequisites of a job of the current tenant by id, from *after* on."""
    return db.fetch(
        "list_prerequisites",
        {"job_id": job_id, "after": after, "limit": limit},
        AnswerRow._make,
        using=using,
    )


def list_members(
    group_id: UUID, *, after: UUID = START, limit: int, using: str | db.Session = "default"
) -> list[AnswerRow]:
    """List the members of a run group of the current tenant by id, from *after* on."""
    return db.fetch(
        "list_members", {"group_id": group_id, "after": after, "limit": limit}, AnswerRow._make, using=using
    )

"""enqueue: -> scheduled, ready, in the caller's transaction."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pgbroker import db


class Enqueued(NamedTuple):
    """
    The answer for one job.

    *outcome* is created, replaced (created in place of the job that *detail* names), existing, or the code
    of a refusal that *detail* explains.
    """

    ordinal: int
    job_id: UUID
    outcome: str
    detail: str | None
    created_at: datetime

    @property
    def made(self) -> bool:
        """True when this call stored a job."""
        return self.outcome in ("created", "replaced")

    @property
    def refused(self) -> bool:
        """True when nothing was stored and no stored job was found."""
        return not self.made and self.outcome != "existing"


def enqueue_rows(rows: Sequence[dict[str, Any]], *, using: str | db.Session = "default") -> list[Enqueued]:
    """
    Enqueue jobs for the current tenant, each a row as `pgbroker.enqueue_many_1` takes it, in one statement.

    Returns one answer a row, in order; a refused row does not sink the others. The rows become visible
    with the caller's commit.
    """
    if not rows:
        return []
    # A value that JSON does not know was refused where the arguments were encoded.
    jobs = json.dumps(rows, allow_nan=False, separators=(",", ":"))
    return db.fetch("enqueue_many", {"jobs": jobs}, Enqueued._make, using=using)

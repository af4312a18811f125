"""add_edge: ready, scheduled -> waiting."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pgbroker import db


def add_edge(
    job_id: UUID,
    depends_on: Sequence[Any],
    *,
    on_failure: str = "cancel",
    using: str | db.Session = "default",
) -> int:
    """
    Make a job of the current tenant, which has not started, wait for more; returns how many edges are new.

    *depends_on* are references as an entry of `pgbroker.enqueue_many_1` has them. A refusal is an error of
    the database with errcode PB001 and pgbroker's code as its hint; nothing is stored then.
    """
    (added,) = db.fetch(
        "add_edge",
        {"job_id": job_id, "depends_on": json.dumps(list(depends_on)), "on_failure": on_failure},
        lambda values: values[0],
        using=using,
    )
    return int(added)

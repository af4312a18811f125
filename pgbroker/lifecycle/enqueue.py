"""enqueue: -> scheduled, ready, in the caller's transaction."""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pgbroker import db

_PLAIN_TEXTS = ("principal", "correlation_id", "traceparent")
_PLAIN_NUMBERS = ("type_version", "priority", "max_attempts")
# What a plain job says of itself. A row with any other key goes the long way.
_PLAIN = {"id", "job_type", "queue", "args", *_PLAIN_TEXTS, *_PLAIN_NUMBERS}
_PRINTABLE = re.compile(r"[ -~]*").fullmatch


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


def _enqueue_plain(row: dict[str, Any], using: str | db.Session) -> Enqueued | None:
    """Try the short way, which takes half the time: None when the row needs the long one, and nothing is stored."""
    if not row.keys() <= _PLAIN:
        return None
    try:
        job_id = UUID(row["id"])
        texts = [row["job_type"], row["queue"], *(row.get(name) for name in _PLAIN_TEXTS)]
        numbers = [row[name] for name in _PLAIN_NUMBERS]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    # What may not fit a parameter of the statement is for the long way, which refuses the row and not the call.
    if not all(value is None or (type(value) is str and _PRINTABLE(value)) for value in texts):
        return None
    if not all(type(value) is int and abs(value) < 2**31 for value in numbers):
        return None
    parameters = dict(
        zip(("job_type", "queue", *_PLAIN_TEXTS, *_PLAIN_NUMBERS), texts + numbers, strict=True)
    )
    (created_at,) = db.fetch(
        "enqueue_plain", {"job_id": job_id, "args": _dumps(row["args"]), **parameters}, _only, using=using
    )
    return None if created_at is None else Enqueued(1, job_id, "created", None, created_at)


def _only(values: Sequence[Any]) -> Any:
    return values[0]


def _dumps(value: Any) -> str:
    # A value that JSON does not know was refused where the arguments were encoded.
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def enqueue_rows(rows: Sequence[dict[str, Any]], *, using: str | db.Session = "default") -> list[Enqueued]:
    """
    Enqueue jobs for the current tenant, each a row as `pgbroker.enqueue_many_1` takes it, in one statement.

    Returns one answer a row, in order; a refused row does not sink the others. The rows become visible
    with the caller's commit.
    """
    if not rows:
        return []
    if len(rows) == 1 and (answer := _enqueue_plain(rows[0], using)) is not None:
        return [answer]
    return db.fetch("enqueue_many", {"jobs": _dumps(rows)}, Enqueued._make, using=using)

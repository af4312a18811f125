"""configure: change how a queue ages and how long its leases last. Workers learn of it within half a minute."""

from types import EllipsisType
from typing import NamedTuple

from pgbroker import db


class Configured(NamedTuple):
    """A queue as it is now; None: the setting's default applies."""

    id: int
    name: str
    ageing_seconds: float | None
    lease_seconds: float | None


def configure_queue(
    name: str,
    *,
    ageing_seconds: float | EllipsisType | None = ...,
    lease_seconds: float | EllipsisType | None = ...,
    using: str | db.Session = "default",
) -> Configured | None:
    """Set what is given (None: back to the setting's default) and return the queue; None when there is none."""
    changed = db.fetch(
        "configure_queue",
        {
            "name": name,
            "set_ageing": ageing_seconds is not ...,
            "ageing_seconds": None if ageing_seconds is ... else ageing_seconds,
            "set_lease": lease_seconds is not ...,
            "lease_seconds": None if lease_seconds is ... else lease_seconds,
        },
        Configured._make,
        using=using,
    )
    return changed[0] if changed else None

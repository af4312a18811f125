"""configure: change how a queue ages and how long its leases last. Workers learn of it within half a minute."""

from types import EllipsisType
from typing import NamedTuple

from pgbroker import db
from pgbroker.conf import KEYS
from pgbroker.errors import InvalidOption, InvalidSetting


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
    """
    Set what is given (None: back to the setting's default) and return the queue; None when there is none.

    Raises `InvalidOption` for what AGEING_SECONDS or LEASE_SECONDS could not be.
    """
    _check("ageing_seconds", ageing_seconds)
    _check("lease_seconds", lease_seconds)
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


def _check(name: str, value: float | EllipsisType | None) -> None:
    if value is None or value is ...:
        return
    try:
        KEYS[name.upper()].metadata["check"](name, value)
    except InvalidSetting as error:
        raise InvalidOption(name, error.trouble, error.cure) from error

"""Candidates for a duty, and time that passes for leases."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.db import connection

from pgbroker.lifecycle.lead import Answer, lead
from pgbroker.models import Leader

DUTY = "upkeep"
LEASE = timedelta(seconds=10)
ADA = UUID("00000000-0000-7000-8000-0000000000a1")
BEN = UUID("00000000-0000-7000-8000-0000000000b1")


def ask(holder: UUID, *, duty: str = DUTY, lease: timedelta = LEASE, **options: object) -> Answer | None:
    """Ask for the lease, under a name made from the id."""
    return lead(duty, holder=holder, name=f"candidate {holder.hex[-2:]}", lease=lease, **options)


def leader(duty: str = DUTY) -> Leader:
    """Read who leads, or led last."""
    return Leader.objects.get(pk=duty)


def age_lease(seconds: float, *, duty: str = DUTY) -> None:
    """Let time pass for a lease: move its times back."""
    with connection.cursor() as cursor:
        cursor.execute(
            "update pgbroker.leader set since = since - %(by)s, expires_at = expires_at - %(by)s "
            "where duty = %(duty)s",
            {"by": timedelta(seconds=seconds), "duty": duty},
        )

"""How far a run group is."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from uuid import UUID

from pgbroker.lifecycle.group_progress import GroupRow
from pgbroker.states import TERMINAL, GroupState, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """
    The members of a run group, counted by status at one instant.

    *tolerate* is the group's policy: how many members may end badly, or what share, such as "5%".
    """

    name: str
    state: GroupState
    total: int
    counts: Mapping[Status, int]
    tolerate: int | str
    created_at: datetime
    sealed_at: datetime | None
    finished_at: datetime | None
    # The jobs of the callbacks, once there are any, and why one could not be enqueued.
    completed_job_id: UUID | None
    failed_job_id: UUID | None
    callback_error: str | None

    @property
    def ended(self) -> int:
        """How many members have ended, well or badly."""
        return sum(number for status, number in self.counts.items() if status in TERMINAL)

    @property
    def completed(self) -> int:
        """How many members have completed."""
        return self.counts.get(Status.COMPLETED, 0)

    @property
    def failed(self) -> int:
        """How many members have ended without success."""
        return self.ended - self.completed

    @property
    def percent(self) -> float:
        """What share of the members has ended, from 0 to 100; of a group without members, 100 once it is over."""
        if self.total == 0:
            return 100.0 if self.is_over else 0.0
        return 100.0 * self.ended / self.total

    @property
    def is_over(self) -> bool:
        """True once the group has ended."""
        return self.state >= GroupState.COMPLETED


def progress_of(row: GroupRow) -> Progress:
    """Read what the database counted."""
    counts = {Status(int(status)): number for status, number in row.members.items()}
    return Progress(
        name=row.name,
        state=GroupState(row.state),
        total=sum(counts.values()),
        counts=MappingProxyType(dict(sorted(counts.items()))),
        tolerate=row.tolerate_count or 0 if row.tolerate_percent is None else f"{row.tolerate_percent:.15g}%",
        created_at=row.created_at,
        sealed_at=row.sealed_at,
        finished_at=row.finished_at,
        completed_job_id=row.completed_job_id,
        failed_job_id=row.failed_job_id,
        callback_error=row.callback_error,
    )

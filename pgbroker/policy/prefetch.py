"""How many jobs a worker may hold that do not run yet. Pure."""

import math
from dataclasses import dataclass, field

# A type is quick when its jobs take at most this long; slow ones are claimed for a free slot only.
QUICK_SECONDS = 0.05
# Work for so many seconds, held, hides the round trip of the next claim, and makes claims of slower jobs few.
HORIZON_SECONDS = 0.3
_WEIGHT = 0.2


@dataclass(slots=True)
class Pace:
    """What a worker has learned of how long jobs run: of each type, and all in all."""

    seconds_by_type: dict[int, float] = field(default_factory=dict)
    seconds: float | None = None

    def saw(self, total_by_type: dict[int, tuple[int, float]]) -> None:
        """Learn from attempts that have ended: how many of each type, and their seconds together."""
        count = sum(number for number, _ in total_by_type.values())
        if not count:
            return
        # A new dictionary: the claimer reads the other one while the settler is here.
        known = self.seconds_by_type.copy()
        for job_type_id, (number, seconds) in total_by_type.items():
            known[job_type_id] = _moved(known.get(job_type_id), seconds / number)
        self.seconds_by_type = known
        self.seconds = _moved(self.seconds, sum(seconds for _, seconds in total_by_type.values()) / count)

    def quick_types(self) -> list[int]:
        """List the types whose jobs may be held: none until known, none of the slow ones."""
        return sorted(key for key, seconds in self.seconds_by_type.items() if seconds <= QUICK_SECONDS)

    def prefetch(self, slots: int, most: int) -> int:
        """Return how many to hold: what *slots* do within a short horizon, at most *most*."""
        if self.seconds is None:
            return 0
        if self.seconds <= 0:
            return most
        return min(most, math.floor(slots * HORIZON_SECONDS / self.seconds))


def _moved(known: float | None, seen: float) -> float:
    return seen if known is None else known + _WEIGHT * (seen - known)

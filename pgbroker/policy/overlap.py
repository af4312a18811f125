"""What to do when a tick comes while an earlier occurrence of its schedule is not over. Pure."""

from enum import StrEnum
from typing import NamedTuple


class Policy(StrEnum):
    """Whether occurrences of a schedule may run at the same time, and which one gives way."""

    ALLOW = "allow"
    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    CANCEL_OTHER = "cancel_other"


class Decision(StrEnum):
    """What becomes of a tick."""

    START = "start"
    SKIP = "skip"
    BUFFER = "buffer"
    CANCEL_AND_START = "cancel_and_start"


class Occupancy(NamedTuple):
    """How many occurrences of a schedule are *running*, which is: are not over, and how many *wait* for them."""

    running: int = 0
    waiting: int = 0

    def decide(self, policy: Policy) -> tuple[Decision, "Occupancy"]:
        """
        Decide about the next tick, and return what then is, for the tick after it.

        BUFFER: it waits until no other is running, and only one does; a second is skipped. CANCEL_AND_START:
        whatever runs or waits is cancelled, and this one takes its place.
        """
        started = Occupancy(self.running + 1, self.waiting)
        if not (self.running or self.waiting):
            return Decision.START, started
        match policy:
            case Policy.ALLOW:
                return Decision.START, started
            case Policy.SKIP:
                return Decision.SKIP, self
            case Policy.BUFFER_ONE if self.waiting:
                return Decision.SKIP, self
            case Policy.BUFFER_ONE:
                return Decision.BUFFER, Occupancy(self.running, 1)
            case Policy.CANCEL_OTHER:
                return Decision.CANCEL_AND_START, Occupancy(1)

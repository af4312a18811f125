"""What a schedule asks for where the clock of its zone is changed. Pure."""

from enum import StrEnum

# Vixie's limit: a change by more than that is a correction of the clock, and nothing is made up for.
CORRECTION_SECONDS = 3 * 3_600
# More than any change of a clock.
ANY_SECONDS = 3 * 86_400


class Ambiguous(StrEnum):
    """What happens to a time that the clock shows twice."""

    AUTO = "auto"
    ONCE = "once"
    TWICE = "twice"

    def once_within(self, *, starred: bool) -> int:
        """Return of how many seconds a change may be, so that times which it repeats fire once."""
        match self:
            case Ambiguous.ONCE:
                return ANY_SECONDS
            case Ambiguous.TWICE:
                return 0
            case Ambiguous.AUTO:
                return 0 if starred else CORRECTION_SECONDS


class Nonexistent(StrEnum):
    """What happens to a time that the clock skips."""

    AUTO = "auto"
    SKIP = "skip"
    NEXT_VALID = "next_valid"

    def moved_within(self, *, starred: bool) -> int:
        """Return of how many seconds a change may be, so that times which it skips fire at its end."""
        match self:
            case Nonexistent.NEXT_VALID:
                return ANY_SECONDS
            case Nonexistent.SKIP:
                return 0
            case Nonexistent.AUTO:
                return 0 if starred else CORRECTION_SECONDS

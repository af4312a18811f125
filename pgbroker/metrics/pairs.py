"""The labels of a queue and a job type, and a bound on how many there are."""

from pgbroker.metrics.catalogue import MOST_PAIRS, OTHER, UNKNOWN


class Pairs:
    """The pairs that were met, up to `MOST_PAIRS`; whoever comes later is `other`. Not for two threads at once."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def of(self, queue: str | None, job_type: str | None) -> tuple[str, str]:
        """Return the labels to count under."""
        pair = (queue or UNKNOWN, job_type or UNKNOWN)
        if pair not in self._known:
            if len(self._known) >= MOST_PAIRS:
                return OTHER, OTHER
            self._known.add(pair)
        return pair

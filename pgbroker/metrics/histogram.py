"""A histogram that takes a batch of values at once."""

from bisect import bisect_right
from itertools import accumulate

from pgbroker.metrics.catalogue import BUCKETS


class Histogram:
    """Counts values by the bucket they fall into, as Prometheus wants them: a bucket takes what is not larger."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def observe(self, values: list[float]) -> None:
        """Take values in. Sorts the list: beside a look at each value the bounds are few."""
        values.sort()
        below = 0
        for place, bound in enumerate(BUCKETS):
            upto = bisect_right(values, bound, below)
            self.counts[place] += upto - below
            below = upto
            if below == len(values):
                break
        else:
            self.counts[-1] += len(values) - below
        self.total += sum(values)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return the buckets, each with all that is not larger than its bound."""
        bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))

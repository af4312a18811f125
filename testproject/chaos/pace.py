"""Was throughput hurt, and is it back? Decided from completions by second. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean, median

# The share of what was usual that counts as recovered.
SHARE = 0.95
# Seconds that are looked at together: in one alone chance decides on which side of its border some jobs end.
WIDTH = 4

Counts = Mapping[int, int]


def between(counts: Counts, start: int, stop: int) -> list[int]:
    """Return the counts of those seconds; one in which nothing ended has no entry."""
    return [counts.get(second, 0) for second in range(start, stop)]


def usual(counts: Counts, start: int, stop: int) -> float:
    """Return what is done in a second there: the median of all stretches of WIDTH seconds."""
    assert stop - start >= WIDTH
    return float(median(_stretch(counts, second) for second in range(start, stop - WIDTH + 1)))


def recovery(counts: Counts, *, until: int, before: float) -> int | None:
    """
    Return after how many seconds from second 0 on throughput was back; None if it was not by *until*.

    Back: the next WIDTH seconds, and all that follow together, make the share of *before*.
    """
    for second in range(until - WIDTH + 1):
        rest = mean(between(counts, second, until))
        if min(_stretch(counts, second), rest) >= SHARE * before:
            return second
    return None


def _stretch(counts: Counts, start: int) -> float:
    return mean(between(counts, start, start + WIDTH))

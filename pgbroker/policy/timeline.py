"""A job's life in order of time, from what was kept of it, and where each part stands in a picture."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened at an instant."""

    at: datetime
    what: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted: an attempt. *end* is None while it runs."""

    start: datetime
    end: datetime | None
    what: str
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A span or the wait before it, placed in a picture."""

    x: float
    width: float
    row: int
    what: str
    label: str


# The narrowest bar that can still be seen and pointed at.
NARROWEST = 3.0
ROWS_MAX = 30


def in_order(moments: Iterable[Moment]) -> list[Moment]:
    """Sort moments by time; at the same instant they stay as they were given."""
    return sorted(moments, key=lambda moment: moment.at)


def place(
    spans: Sequence[Span], *, begin: datetime, end: datetime, width: float
) -> tuple[list[Bar], list[Bar]]:
    """
    Place spans, a row each, and the waits before them, on a line from *begin* to *end*.

    Returns the bars of the spans and of the waits. Of very many spans the last ROWS_MAX are shown.
    """
    whole = max((end - begin).total_seconds(), 0.001)

    def x_of(at: datetime) -> float:
        return round(min(max((at - begin).total_seconds() / whole, 0.0), 1.0) * width, 1)

    shown = sorted(spans, key=lambda span: span.start)[-ROWS_MAX:]
    bars, waits = [], []
    since = begin
    for row, span in enumerate(shown):
        left, right = x_of(span.start), x_of(span.end or end)
        breadth = max(right - left, NARROWEST)
        left = min(left, width - breadth)
        waited_from = x_of(since)
        if left - waited_from >= 1:
            waits.append(Bar(waited_from, round(left - waited_from, 1), row, "wait", ""))
        bars.append(Bar(round(left, 1), round(breadth, 1), row, span.what, span.label))
        since = span.end or end
    return bars, waits


def stack(columns: Sequence[Sequence[int]], *, height: float) -> tuple[int, list[list[tuple[float, float]]]]:
    """
    Place columns of stacked counts: per column a list of (y, height) from the bottom up.

    Also returns the value at the top of the picture, a round number.
    """
    highest = max((sum(column) for column in columns), default=0)
    top = round_up(highest)
    placed = []
    for column in columns:
        parts, below = [], height
        for count in column:
            tall = round(count / top * height, 1)
            # What happened at all must be seen.
            tall = max(tall, 1.0) if count else 0.0
            below = round(below - tall, 1)
            parts.append((max(below, 0.0), tall))
        placed.append(parts)
    return top, placed


def round_up(number: int) -> int:
    """Return the next of 1, 2, 5, 10, 20, 50 ... that is not below *number*."""
    scale = 1
    while True:
        for step in (1, 2, 5):
            if step * scale >= number:
                return step * scale
        scale *= 10

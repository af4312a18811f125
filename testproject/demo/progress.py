"""What the demo shows while it works: one line that changes in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from pgbroker.states import LIVE, Status

PLAIN_LINE_SECONDS = 2.0
# The rate is that of the last seconds, so that it moves and does not flicker.
RATE_SECONDS = 2.0


class Progress:
    """A status line below whatever else is said."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._shown = False
        self._plain_at = 0.0
        self._seen: list[tuple[float, int]] = []

    def say(self, text: str = "") -> None:
        """Print a line that stays."""
        if self._shown:
            print("\r\x1b[K", end="")
            self._shown = False
        print(text, flush=True)

    def begin(self) -> None:
        """Forget the rate: something new is counted."""
        self._seen = [(time.monotonic(), 0)]
        self._plain_at = time.monotonic() + PLAIN_LINE_SECONDS

    def show(self, counts: Mapping[Status, int], total: int) -> int:
        """
        Show how far *total* jobs are, of which so many are in each status; returns how many have ended.

        Claimed are those that run and those a worker holds ready, which the row does not tell apart.
        """
        now = time.monotonic()
        ended = sum(number for status, number in counts.items() if status not in LIVE)
        line = (
            f"{now - self.began:6.1f} s  {ended:,} of {total:,} jobs ended, {self._rate(now, ended):,.0f}/s"
            f"  (claimed {counts.get(Status.RUNNING, 0):,}, ready {counts.get(Status.READY, 0):,}, "
            f"later {counts.get(Status.SCHEDULED, 0):,})"
        )
        if self._terminal:
            print(f"\r{line}\x1b[K", end="", flush=True)
            self._shown = True
        elif now >= self._plain_at or ended == total:
            print(line, flush=True)
            self._plain_at = now + PLAIN_LINE_SECONDS
        return ended

    def _rate(self, now: float, ended: int) -> float:
        self._seen.append((now, ended))
        while len(self._seen) > 2 and now - self._seen[1][0] >= RATE_SECONDS:
            self._seen.pop(0)
        then, before = self._seen[0]
        return (ended - before) / (now - then) if now > then else 0.0


def table(head: list[str], rows: list[list[str]]) -> str:
    """Lay rows out under their head: the first column to the left, the others, numbers, to the right."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(cells: list[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()

    return "\n".join([line(head), line(["-" * width for width in widths]), *map(line, rows)])

"""Lines of text: tables whose columns give way where the width is short, and what is cut off. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pgbroker.management.output import harmless

Tone = Literal["plain", "heading", "warning", "error", "faint"]

BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
SHORTEST_NAME = 8
GAP = "  "


class Line(NamedTuple):
    """One line and how it is to look."""

    text: str
    tone: Tone = "plain"


class Column(NamedTuple):
    """A column of a table; one that is *flexible* is cut where the line is too long, the longest first."""

    heading: str
    right: bool = False
    flexible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """
    What the lines must fit into: *width* characters, and *rows*, or None for as many as it takes.

    *bars* are the levels of a sparkline. *top* limits the queues on a page without end; *all_workers* lists
    those too that are gone.
    """

    width: int | None = None
    rows: int | None = None
    bars: str = BARS
    top: int | None = None
    all_workers: bool = False


def cut(text: str, width: int | None) -> str:
    """Shorten a text to a width, with an ellipsis at its end."""
    if width is None or len(text) <= width:
        return text
    return text[: max(0, width - 1)] + "…" if width > 0 else ""


def table(columns: Sequence[Column], rows: Sequence[Sequence[Any]], width: int | None) -> list[str]:
    """Lay rows out under headings; the first line has the headings."""
    lines = [
        [column.heading.upper() for column in columns],
        *([_cell(value) for value in row] for row in rows),
    ]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    if width is not None:
        _shrink(widths, columns, width)
    return [
        GAP.join(
            cell.rjust(size) if column.right else cut(cell, size).ljust(size)
            for cell, size, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    ]


def _shrink(widths: list[int], columns: Sequence[Column], width: int) -> None:
    """Take from the longest flexible column until the table fits, or nothing can be taken."""
    flexible = [place for place, column in enumerate(columns) if column.flexible]
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while excess > 0 and flexible:
        longest = max(flexible, key=lambda place: widths[place])
        if widths[longest] <= SHORTEST_NAME:
            return
        widths[longest] -= 1
        excess -= 1


def _cell(value: Any) -> str:
    if value in (None, "") or value == []:
        return "-"
    if isinstance(value, list):
        value = ",".join(map(str, value))
    return harmless(str(value), keep="")


def limited(everything: Sequence[Any], limit: int | None) -> tuple[Sequence[Any], Sequence[Any]]:
    """Split off what does not fit; one line of the limit tells of the rest."""
    if limit is None or len(everything) <= limit:
        return everything, ()
    return everything[: limit - 1], everything[limit - 1 :]

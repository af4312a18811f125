"""What commands print: tables for people, one JSON document for programs, progress for whoever waits."""

import json
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

from django.core.management.base import OutputWrapper

from pgbroker.policy.durations import roughly
from pgbroker.reports import PauseLine

LONGEST_CELL = 60


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """Write one JSON document, in one line without *indent*; times in ISO 8601, ids as text."""
    return json.dumps(value, default=_plain, indent=indent, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} in a report")


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]], *, cut: bool = True) -> str:
    """Lay rows out in columns, numbers to the right; "-" where there is nothing. Long cells end in "…" if *cut*."""
    cells = [[_cell(value, cut=cut) for value in row] for row in rows]
    right = [
        bool(cells)
        and all(row[column].rstrip("+").replace(".", "", 1).isdigit() or row[column] == "-" for row in cells)
        for column in range(len(headings))
    ]
    lines = [[heading.upper() for heading in headings], *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def table_of_pauses(pauses: Iterable[PauseLine]) -> str:
    """Lay pauses out, by what they stop."""
    headings = ("queue", "type", "tenant", "since", "until", "by", "reason")
    return table(
        headings, ((p.queue, p.job_type, p.tenant, p.paused_at, p.until, p.by, p.reason) for p in pauses)
    )


def _cell(value: Any, *, cut: bool) -> str:
    match value:
        case None | "":
            return "-"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S")
        case float():
            return f"{value:.1f}"
        case list() | tuple():
            return ",".join(map(str, value)) or "-"
    text = harmless(str(value), keep="")
    return text if not cut or len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"


def harmless(text: str, *, keep: str = "\n\t") -> str:
    """Take out what moves the cursor of a terminal or hides text; line breaks stay unless told otherwise."""
    return "".join(each if each.isprintable() or each in keep else " " for each in text)


def pairs(facts: Iterable[tuple[str, Any]]) -> str:
    """Lay facts out, a line each, without those that are empty."""
    shown = [(name, value) for name, value in facts if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {_full(value)}" for name, value in shown)


def _full(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    return harmless(str(value), keep="")


def ago(seconds: float | None) -> str:
    """Write an age in its largest units: `3m 20s`; "-" where there is none."""
    return "-" if seconds is None else roughly(seconds)


class Progress:
    """A line that grows while long work goes on; silent unless a terminal shows it."""

    WIDTH = 30

    def __init__(self, stream: OutputWrapper, *, total: int, what: str) -> None:
        self.stream, self.total, self.what = stream, max(total, 1), what
        self.shown = stream.isatty()

    def tell(self, done: int) -> None:
        """Show that so many are done."""
        if not self.shown:
            return
        full = min(self.WIDTH, self.WIDTH * done // self.total)
        self.stream.write(f"\r[{'#' * full}{' ' * (self.WIDTH - full)}] {done} {self.what} ", ending="")
        self.stream.flush()

    def end(self) -> None:
        """Leave the line."""
        if self.shown:
            self.stream.write("")

"""The figures as tables of Markdown, from the lines that a run printed: no figure is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

LINES = Path(__file__).resolve().parent.parent.parent / "docs" / "explanation" / "benchmarks.jsonl"


def rows(path: Path = LINES) -> list[dict[str, Any]]:
    """Read the lines of a run; of a name that was measured again, the last line."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    return list({line["name"]: line for line in lines}.values())


def figures(path: Path = LINES) -> str:
    """Return every comparison of every row, good or bad."""
    return _table(
        ("Row", "Measured", "Beside", "Its figure", "Ratio", "Spread", "Goal", "Holds"),
        (cells for row in rows(path) for cells in _comparisons(row)),
    )


def _comparisons(row: dict[str, Any]) -> Iterable[Sequence[str]]:
    if "against" not in row:
        yield f"`{row['name']}`", "", f"not run: {row['not_run']}", "", "", "", "", ""
        return
    for number, part in enumerate(row["against"]):
        name = f"`{row['name']}`" if number == 0 else ""
        value = f"{_number(row['value'])} {row['unit']}" if number == 0 else ""
        what = f"{part['what']} {part['version']}" if "version" in part else part["what"]
        if "not_run" in part:
            what += f" (not run: {part['not_run']})"
        spread = " to ".join(map(_number, part["spread"])) if part.get("spread") else ""
        ratio = part.get("ratio", part.get("figure"))
        holds = {True: "yes", False: "**no**", None: ""}[part["holds"]]
        yield name, value, what, _number(part.get("value")), _number(ratio), spread, part["goal"] or "", holds


def conditions(path: Path = LINES) -> str:
    """Return how large each run was, and what it ran on."""
    return _table(
        ("Row", "Jobs", "Rounds", "Smaller run", "Versions"),
        (
            (
                f"`{row['name']}`",
                _number(row.get("jobs")),
                _number(row.get("rounds")),
                "yes" if row["quick"] else "no",
                ", ".join(f"{name} {version}" for name, version in row.get("versions", {}).items()),
            )
            for row in rows(path)
        ),
    )


def peers(path: Path = LINES) -> str:
    """Return how each peer was driven."""
    found = {
        part["what"]: (part["what"], part["version"], part["python"], part["settings"])
        for row in rows(path)
        for part in row.get("against", [])
        if "settings" in part
    }
    return _table(("Peer", "Version", "Python", "Settings"), sorted(found.values()))


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    everything = [headings, ["---"] * len(headings), *lines]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in everything
    )

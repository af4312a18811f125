"""Contestants in rotation, and what their figures say: medians, ratios, goals."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class NotRun(Exception):
    """A contestant cannot be measured here; the message says why. Its goal neither holds nor fails."""


@dataclass
class Figures:
    """What each contestant did in each round, and why some did nothing."""

    of: dict[str, list[float]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.of[name])


def rotate(contestants: Mapping[str, Callable[[], float]], *, rounds: int) -> Figures:
    """Run A B C, A B C, …: what the machine does meanwhile meets all of them."""
    figures = Figures()
    for number in range(rounds):
        for name, run in contestants.items():
            if name in figures.not_run:
                continue
            tell(f"round {number + 1} of {rounds}: {name}")
            try:
                figures.of.setdefault(name, []).append(run())
            except NotRun as reason:
                figures.not_run[name] = str(reason)
                figures.of.pop(name, None)
                tell(f"{name} was not run: {reason}", keep=True)
    tell("")
    return figures


def ratio(
    what: str,
    values: Sequence[float],
    divided_by: Sequence[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Divide round by round, and tell whether the median of the ratios reaches its goal. None: no goal, a reference."""
    ratios = [value / other for value, other in zip(values, divided_by, strict=True)]
    return {
        "what": what,
        "value": rounded(statistics.median(divided_by)),
        "ratio": rounded(statistics.median(ratios)),
        "spread": [rounded(min(ratios)), rounded(max(ratios))],
        **_verdict(statistics.median(ratios), at_least, at_most),
        **more,
    }


def against(
    figures: Figures,
    subject: str,
    other: str,
    *,
    what: str | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Compare two contestants of a rotation. One that was not run has no ratio, and `holds` is null."""
    if other in figures.not_run:
        goal = _verdict(None, at_least, at_most)["goal"]
        return {
            "what": what or other, "value": None, "ratio": None, "spread": None, "goal": goal, "holds": None,
            "not_run": figures.not_run[other], **more,
        }  # fmt: skip
    return ratio(
        what or other,
        figures.of[subject],
        figures.of[other],
        at_least=at_least,
        at_most=at_most,
        **more,
    )


def figure(
    what: str, value: float, *, at_least: float | None = None, at_most: float | None = None
) -> dict[str, Any]:
    """Hold one number, which is divided by nothing, against its goal."""
    return {"what": what, "figure": rounded(value), **_verdict(value, at_least, at_most)}


def _verdict(value: float | None, at_least: float | None, at_most: float | None) -> dict[str, Any]:
    assert at_least is None or at_most is None
    if at_least is not None:
        return {"goal": f">= {at_least:g}", "holds": None if value is None else value >= at_least}
    if at_most is not None:
        return {"goal": f"<= {at_most:g}", "holds": None if value is None else value <= at_most}
    return {"goal": None, "holds": None}


def row(value: float, unit: str, parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """
    Write what a row says: its own figure first, then each thing it was held against.

    `holds` is false when any goal is missed, null when one could not be tried. `ratio`, `goal` and `spread`
    are those of the first part.
    """
    verdicts = [part["holds"] for part in parts if part["goal"] is not None]
    holds = False if False in verdicts else None if None in verdicts else True
    first = parts[0]
    return {
        "value": rounded(value),
        "unit": unit,
        "against": parts,
        **({"ratio": first["ratio"]} if "ratio" in first else {"figure": first["figure"]}),
        "goal": first["goal"],
        "holds": holds,
        "spread": first.get("spread"),
        **more,
    }


def rounded(value: float) -> float:
    """Keep four digits: more say nothing."""
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that *share* of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def tell(text: str, *, keep: bool = False) -> None:
    """Show on a terminal what goes on, in one line; elsewhere only what is worth keeping."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="\n" if keep else "", file=sys.stderr, flush=True)
    elif keep:
        print(text, file=sys.stderr, flush=True)

"""
Draw the states of a job as SVG, from `TRANSITIONS`: a picture that needs no script and no other host.

Only the places of the boxes are chosen by hand. A verb that leads from many states to one, or among the
ended ones, is one arrow from a frame around them; an arrow of a verb that does not exist yet is dashed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

from pgbroker.states import ENTRY, RETRYABLE, TRANSITIONS, Status

WIDTH, HEIGHT = 900, 530
BOX_WIDTH, BOX_HEIGHT = 112, 34

# Centres of the boxes.
PLACES = {
    Status.WAITING: (140, 80),
    Status.BLOCKED: (340, 80),
    Status.SCHEDULED: (140, 260),
    Status.READY: (340, 260),
    Status.SUSPENDED: (340, 350),
    Status.RUNNING: (555, 260),
    Status.COMPLETED: (775, 130),
    Status.DEAD_LETTER: (775, 250),
    Status.FAILED: (775, 330),
    Status.CANCELLED: (775, 410),
}
assert set(PLACES) == set(Status)

# No verb of this release leads here.
PLANNED = frozenset({Status.WAITING, Status.BLOCKED, Status.SUSPENDED})

# Drawn together with cancel, which goes the same way.
TO_CANCELLED = frozenset({(Status.WAITING, Status.CANCELLED), (Status.BLOCKED, Status.CANCELLED)})

# Verbs drawn as one arrow from frame to frame.
FRAMED = ("expire", "cancel", "retry")


def exists(verb: str) -> bool:
    """Tell whether this release has the verb."""
    return (Path(__file__).resolve().parent.parent / "pgbroker" / "lifecycle" / f"{verb}.py").exists()


def draw() -> str:
    """Return the picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="13">',
        "<title>The states of a job and the verbs between them</title>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="#567"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        *_frames(),
        *_single_arrows(),
        *(_box(status) for status in Status),
        '<text x="20" y="515" fill="#567">Solid: in this release. Dashed: planned. '
        "Every other change of status is refused by the database.</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(status: Status) -> str:
    x, y = PLACES[status]
    fill = "#e7f0ea" if status is Status.COMPLETED else "#f6e8e6" if status >= 10 else "#e8eef6"
    entry = (
        ' stroke-dasharray="5 4"' if status in PLANNED else ' stroke-width="2.5"' if status in ENTRY else ""
    )
    return (
        f'<rect x="{x - BOX_WIDTH // 2}" y="{y - BOX_HEIGHT // 2}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" '
        f'fill="{fill}" stroke="#345"{entry}/><text x="{x}" y="{y + 5}" text-anchor="middle" fill="#123">'
        f"{status.label}</text>"
    )


def _arrow(path: str, label: str, at: tuple[float, float], *, solid: bool) -> str:
    dash = "" if solid else ' stroke-dasharray="5 4"'
    return (
        f'<path d="{path}" fill="none" stroke="#567" stroke-width="1.5"{dash} marker-end="url(#tip)"/>'
        f'<text x="{at[0]:.0f}" y="{at[1]:.0f}" text-anchor="middle" font-size="11" fill="#345" '
        f'stroke="#ffffff" stroke-width="3" paint-order="stroke">{label}</text>'
    )


def _single_arrows() -> list[str]:
    """One arrow for each pair of states, with the verbs that go that way."""
    verbs_of: dict[tuple[Status, Status], list[str]] = defaultdict(list)
    for verb, pairs in TRANSITIONS.items():
        if verb not in FRAMED:
            for pair in pairs - TO_CANCELLED:
                verbs_of[pair].append(verb)
    arrows = []
    for (old, new), verbs in sorted(verbs_of.items()):
        bend = 26.0 if (new, old) in verbs_of else 10.0
        if (old, new) == (Status.RUNNING, Status.SCHEDULED):
            bend = -66.0
        path, at = _curve(PLACES[old], PLACES[new], bend)
        if (old, new) == (Status.RUNNING, Status.SCHEDULED):
            at = (450, at[1] + 18)
        arrows.append(
            _arrow(path, ", ".join(verbs), at, solid=any(map(exists, verbs)) and not {old, new} & PLANNED)
        )
    return arrows


def _curve(start: tuple[int, int], end: tuple[int, int], bend: float) -> tuple[str, tuple[float, float]]:
    """Bend a line to its left by *bend*; returns the path between the boxes and where its label goes."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    normal = ((y2 - y1) / length, -(x2 - x1) / length)
    control = ((x1 + x2) / 2 + 2 * bend * normal[0], (y1 + y2) / 2 + 2 * bend * normal[1])
    first, last = _edge(start, control), _edge(end, control)
    middle = ((x1 + x2) / 2 + bend * normal[0], (y1 + y2) / 2 + bend * normal[1] + 4)
    path = f"M{first[0]:.0f} {first[1]:.0f}Q{control[0]:.0f} {control[1]:.0f} {last[0]:.0f} {last[1]:.0f}"
    return path, middle


def _edge(centre: tuple[int, int], towards: tuple[float, float]) -> tuple[float, float]:
    """Return where a line from the centre of a box leaves it."""
    across, down = towards[0] - centre[0], towards[1] - centre[1]
    share = min(
        (BOX_WIDTH / 2 + 3) / abs(across) if across else math.inf,
        (BOX_HEIGHT / 2 + 3) / abs(down) if down else math.inf,
    )
    return centre[0] + across * share, centre[1] + down * share


def _frames() -> list[str]:
    """The frames, and the arrows of the verbs that go from every state in one to others."""
    live = {old for old, _ in TRANSITIONS["cancel"]}
    assert TRANSITIONS["cancel"] == {(old, Status.CANCELLED) for old in live}
    assert TRANSITIONS["expire"] == {(old, Status.FAILED) for old in live}
    assert TRANSITIONS["resolve"] > TO_CANCELLED
    assert TRANSITIONS["retry"] == {(old, new) for old in RETRYABLE for new in ENTRY}
    left = _frame(live, "not running")
    right = _frame(RETRYABLE, "ended without success")
    resolved = "cancel (planned: resolve, from waiting and blocked)"
    return [
        left,
        right,
        _arrow("M414 358C500 375 600 345 714 333", "expire", (560, 356), solid=exists("expire")),
        _arrow("M414 380C500 430 600 425 714 413", resolved, (560, 441), solid=exists("cancel")),
        _arrow("M775 445C740 500 300 505 200 398", "retry", (480, 486), solid=exists("retry")),
    ]


def _frame(members: set[Status] | frozenset[Status], label: str) -> str:
    xs, ys = [PLACES[one][0] for one in members], [PLACES[one][1] for one in members]
    x, y = min(xs) - BOX_WIDTH // 2 - 14, min(ys) - BOX_HEIGHT // 2 - 24
    width, height = max(xs) - min(xs) + BOX_WIDTH + 28, max(ys) - min(ys) + BOX_HEIGHT + 40
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="#fafafa" stroke="#bbc" '
        f'stroke-dasharray="2 3"/><text x="{x + 10}" y="{y + 16}" font-size="11" fill="#678">{label}</text>'
    )

"""
What the admin's pages of run groups and of what waits for what show: pictures as numbers for SVG templates.

As in `pages.py`, the templates draw with attributes and classes only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pgbroker import group_reports
from pgbroker.group_reports import Graph, GroupLine, Link, Links, Member, MemberCounts, Preview
from pgbroker.policy.graph_layout import Measure, lay_out
from pgbroker.policy.shares import lay_along
from pgbroker.states import GroupState, OnFailure, Status

BAR_WIDTH, LIST_BAR_WIDTH, BAND_HEIGHT, BAND_LABEL = 520, 140, 22, 110
SIZE, PADDING = Measure(), 12
# Characters that fit into a box.
LABEL_MAX = 22
# An edge that still holds its dependent back, one that no longer does, and one whose prerequisite ended badly.
ARROW_STATES = ("open", "met", "wrong")
# From what is done to what is still to come.
ORDER = (
    Status.COMPLETED, Status.DEAD_LETTER, Status.FAILED, Status.CANCELLED, Status.BLOCKED, Status.RUNNING,
    Status.READY, Status.SCHEDULED, Status.SUSPENDED, Status.WAITING,
)  # fmt: skip


def words(label: str) -> str:
    """Write a status as people do."""
    return label.replace("_", " ")


def many(count: int) -> str:
    """Write a bounded count."""
    return f"{count}+" if count >= group_reports.BOUND else str(count)


@dataclass(frozen=True, slots=True)
class Part:
    """One status in a bar."""

    label: str
    words: str
    status: int
    count: int
    x: float
    width: float
    is_bounded: bool = True

    @property
    def told(self) -> str:
        """The count with its name."""
        return f"{self.shown} {self.words}"

    @property
    def shown(self) -> str:
        """The count."""
        return many(self.count) if self.is_bounded else str(self.count)


@dataclass(frozen=True, slots=True)
class Bar:
    """How many have which status, along a line."""

    width: int
    parts: list[Part]

    @property
    def told(self) -> str:
        """All parts in words."""
        return ", ".join(part.told for part in self.parts) or "no members"


def draw_bar(counts: dict[Status, int], *, width: int, bounded: bool = True) -> Bar:
    """Draw counts by status; *bounded* ones stop at BOUND."""
    present = [status for status in ORDER if counts.get(status)]
    placed = lay_along([counts[status] for status in present], width=width)
    return Bar(
        width,
        [
            Part(status.label, words(status.label), int(status), counts[status], x, breadth, bounded)
            for status, (x, breadth) in zip(present, placed, strict=True)
        ],
    )


# ------------------------------------------------------------------ the graph


@dataclass(frozen=True, slots=True)
class Node:
    """A job or a group in the picture. *kind* is job, group or gone; only what is there leads somewhere."""

    id: UUID
    kind: str
    label: str
    state: str
    title: str
    x: float
    y: float
    is_outside: bool

    @property
    def width(self) -> float:
        """The width of the box."""
        return SIZE.width

    @property
    def height(self) -> float:
        """The height of the box."""
        return SIZE.height

    @property
    def text_x(self) -> float:
        """Where its texts begin."""
        return self.x + 10

    @property
    def label_y(self) -> float:
        """The base line of the name."""
        return self.y + 15

    @property
    def state_y(self) -> float:
        """The base line of the state."""
        return self.y + 30

    @property
    def state_words(self) -> str:
        """The state as people write it."""
        return words(self.state)


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge in the picture: a path, what became of it, and what it says."""

    path: str
    state: str
    title: str


@dataclass(frozen=True, slots=True)
class GraphPicture:
    """A group's members, by levels; *cut* edges are in a circle and cannot be drawn."""

    width: float
    height: float
    nodes: list[Node]
    arrows: list[Arrow]
    levels: int
    cut: int


def draw_graph(graph: Graph) -> GraphPicture | None:
    """Draw a graph; None where there is nothing to be drawn."""
    if not graph.members:
        return None
    facts: dict[UUID, tuple[str, str, str, bool]] = {
        each.id: ("job", each.shown, Status(each.status).label, False) for each in graph.members
    }
    for edge in graph.edges:
        if edge.prerequisite_id not in facts:
            facts[edge.prerequisite_id] = _outside(edge)
    outside = [each for each, (*_, is_outside) in facts.items() if is_outside]
    ids = [*sorted(outside), *sorted(each.id for each in graph.members)]
    layout = lay_out(ids, [(edge.prerequisite_id, edge.dependent_id) for edge in graph.edges], SIZE)
    edges = {(edge.prerequisite_id, edge.dependent_id): edge for edge in graph.edges}
    nodes = []
    for box in layout.boxes:
        kind, name, state, is_outside = facts[box.node]
        shown = name if len(name) <= LABEL_MAX else f"{name[: LABEL_MAX - 1]}…"
        what = "run group " if kind == "group" else ""
        title = f"{what}{name}: {words(state)}{', outside of this group' if is_outside else ''}"
        nodes.append(Node(box.node, kind, shown, state, title, box.x + PADDING, box.y + PADDING, is_outside))
    arrows = []
    for line in layout.lines:
        edge = edges[line.prerequisite, line.dependent]
        names = f"{facts[line.prerequisite][1]} → {facts[line.dependent][1]}"
        arrows.append(Arrow(_path(line.points), _state_of(edge), f"{names}: {_told(edge)}"))
    return GraphPicture(
        round(layout.width + 2 * PADDING, 1),
        round(layout.height + 2 * PADDING, 1),
        nodes,
        arrows,
        layout.levels,
        len(layout.cut),
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Write a line as SVG does: curved where it is straight on, else with its turns."""
    (x1, y1), *between, (x2, y2) = [(x + PADDING, y + PADDING) for x, y in points]
    # Short of the box, for the arrow's head.
    y2 -= 6
    if between:
        return f"M{x1:.1f} {y1:.1f}" + "".join(f"L{x:.1f} {y:.1f}" for x, y in (*between, (x2, y2)))
    middle = (y1 + y2) / 2
    return f"M{x1:.1f} {y1:.1f}C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"


def _outside(edge: group_reports.Edge) -> tuple[str, str, str, bool]:
    if edge.kind is None or edge.status is None:
        return "gone", "not there any more", Status(edge.outcome).label if edge.outcome else "gone", True
    label = (GroupState if edge.kind == "group" else Status)(edge.status).label
    return edge.kind, edge.name or "", label, True


def _state_of(edge: group_reports.Edge) -> str:
    if edge.outcome > Status.COMPLETED:
        return "wrong"
    return "met" if edge.is_satisfied else "open"


def _told(edge: group_reports.Edge) -> str:
    policy = f"on failure {OnFailure(edge.on_failure).label}"
    if not edge.outcome:
        return f"still waited for, {policy}"
    how = words(Status(edge.outcome).label)
    return (
        f"{how}, counts as met"
        if edge.is_satisfied and edge.outcome > Status.COMPLETED
        else f"{how}, {policy}"
    )


@dataclass(frozen=True, slots=True)
class BandRow:
    """A level, or several, of a graph that is too large to be drawn."""

    label: str
    bar: Bar
    y: float
    text_y: float


@dataclass(frozen=True, slots=True)
class BandsPicture:
    """A large group by levels: how many of each have which status."""

    rows: list[BandRow]
    height: int
    seen: int | None

    width = BAR_WIDTH
    left = BAND_LABEL

    @property
    def full_width(self) -> int:
        """The picture's width with its labels on both sides."""
        return self.left + self.width + 330

    @property
    def right(self) -> int:
        """Where the counts begin."""
        return self.left + self.width + 10


def draw_bands(graph: Graph) -> BandsPicture | None:
    """Draw a graph by levels; None where it is drawn whole."""
    if not graph.bands:
        return None
    widest = max(band.total for band in graph.bands)
    rows = []
    for place, band in enumerate(graph.bands):
        counts = {Status(status): count for status, count in band.counts.items()}
        width = max(round(band.total / widest * BAR_WIDTH), 24)
        label = f"level {band.first}" if band.first == band.last else f"levels {band.first} to {band.last}"
        rows.append(
            BandRow(
                label,
                draw_bar(counts, width=width, bounded=False),
                place * BAND_HEIGHT + 3,
                place * BAND_HEIGHT + 15,
            )
        )
    return BandsPicture(rows, len(rows) * BAND_HEIGHT, graph.seen)


# ------------------------------------------------------------------ pages


def describe_links(links: Links) -> dict[str, Any]:
    """Return what a page shows of what a job or a group waits for, and of what waits for it."""
    return {
        "prerequisites": [_row(each) for each in links.prerequisites],
        "dependents": [_row(each) for each in links.dependents],
        "more_prerequisites": links.more_prerequisites,
        "more_dependents": links.more_dependents,
    }


def _row(link: Link) -> dict[str, Any]:
    return {
        "kind": link.kind,
        "id": link.id,
        "name": link.name or "",
        "status": link.status_label,
        "status_words": words(link.status_label),
        "outcome": link.outcome_label,
        "outcome_words": words(link.outcome_label),
        "policy": link.policy,
        "satisfied_at": link.satisfied_at,
        "deadline_at": link.deadline_at,
    }


def describe_group(
    group: GroupLine, progress: MemberCounts, members: list[Member], graph: Graph, links: Links
) -> dict[str, Any]:
    """Return what the page of a group shows."""
    callbacks = [
        {
            "when": when,
            "job_type": entry.get("job_type"),
            "queue": entry.get("queue", "default"),
            "job_id": job_id,
        }
        for when, entry, job_id in (
            ("when it completes", group.on_completed, group.completed_job_id),
            ("when it fails", group.on_failed, group.failed_job_id),
        )
        if entry
    ]
    return {
        "group": group,
        "state": group.label,
        "progress": progress,
        "bar": draw_bar(dict(progress.counts), width=BAR_WIDTH),
        "graph": draw_graph(graph),
        "arrow_states": ARROW_STATES,
        "bands": draw_bands(graph),
        "members": [
            {
                **each._asdict(),
                "state": Status(each.status).label,
                "state_words": words(Status(each.status).label),
            }
            for each in members[: group_reports.LISTED_MAX]
        ],
        "more_members": progress.members > group_reports.LISTED_MAX,
        "member_count": many(progress.members),
        "callbacks": callbacks,
        **describe_links(links),
    }


def describe_preview(preview: Preview) -> dict[str, Any]:
    """Return what a page that asks before a cancel shows of what would go along."""
    totals = preview.totals
    return {
        "fates": [
            {
                "fate": fate,
                "told": preview.told(fate),
                "listed": preview.of(fate),
                "more": totals[fate] - len(preview.of(fate)),
            }
            for fate in group_reports.FATES
            if fate in totals
        ],
        "preview_is_exact": preview.is_exact,
    }

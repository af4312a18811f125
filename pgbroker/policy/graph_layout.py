"""
Where the boxes and lines of a graph stand: by levels, each node below all that it waits for. Pure.

Positions are numbers for a picture whose size follows from what is in it. The same graph gives the same picture,
in whatever order its edges are told.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)

# How often each level is sorted by where its neighbours stand: up and down. More changes little.
SWEEPS = 4


@dataclass(frozen=True, slots=True)
class Measure:
    """The size of a box, and the space around it: lines run there, beside boxes and between rows."""

    width: float = 146
    height: float = 38
    gutter: float = 20
    # Between rows of one level, and between levels.
    row_gap: float = 26
    level_gap: float = 46
    # A level with more boxes takes several rows.
    per_row: int = 6


@dataclass(frozen=True, slots=True)
class Box(Generic[Node]):
    """A node, placed: its upper left corner, and where that is in the grid."""

    node: Node
    level: int
    row: int
    column: int
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Line(Generic[Node]):
    """
    An edge, placed: from the lower side of the prerequisite to the upper side of what waits for it.

    Of two points where nothing lies between; else it turns, down a gutter, so that it passes below no other box.
    """

    prerequisite: Node
    dependent: Node
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Layout(Generic[Node]):
    """A graph, placed. *cut* are the edges that close a circle: nothing could be drawn below itself."""

    boxes: tuple[Box[Node], ...]
    lines: tuple[Line[Node], ...]
    cut: tuple[tuple[Node, Node], ...]
    width: float
    height: float

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return 1 + max((box.level for box in self.boxes), default=-1)


def lay_out(
    nodes: Sequence[Node], edges: Iterable[tuple[Node, Node]], measure: Measure | None = None
) -> Layout[Node]:
    """
    Place *nodes* and *edges*, each (prerequisite, dependent); an edge to a node that is not there is left out.

    A node stands one level below the lowest of its prerequisites. What cannot be told apart by its neighbours stands
    in the order of *nodes*.
    """
    size = measure or Measure()
    place = {node: index for index, node in enumerate(dict.fromkeys(nodes))}
    if not place:
        return Layout((), (), (), 0, 0)
    known = sorted(
        {(above, below) for above, below in edges if above in place and below in place},
        key=lambda edge: (place[edge[0]], place[edge[1]]),
    )
    level_of, cut = _levels(place, known)
    drawn = [edge for edge in known if edge not in cut]
    rows = [
        (level, row)
        for level, members in enumerate(_sorted_levels(place, level_of, drawn))
        for row in _rows(members, size.per_row)
    ]
    columns = max(len(row) for _, row in rows)
    boxes: dict[Node, Box[Node]] = {}
    bottom, before = 0.0, 0
    for number, (level, members) in enumerate(rows):
        if number:
            bottom += size.level_gap if level != before else size.row_gap
        # On a grid, so that the gutters go through from top to bottom.
        first = (columns - len(members)) // 2
        for column, node in enumerate(members, first):
            x = size.gutter + column * (size.width + size.gutter)
            boxes[node] = Box(node, level, number, column, x, bottom)
        bottom, before = bottom + size.height, level
    lines = tuple(_line(boxes[above], boxes[below], columns, size) for above, below in drawn)
    width = columns * size.width + (columns + 1) * size.gutter
    return Layout(tuple(boxes.values()), lines, tuple(sorted(cut, key=known.index)), width, bottom)


def _line(above: Box[Node], below: Box[Node], columns: int, size: Measure) -> Line[Node]:
    start = (above.x + size.width / 2, above.y + size.height)
    end = (below.x + size.width / 2, below.y)
    if below.row == above.row + 1:
        return Line(above.node, below.node, (start, end))
    # The gutter beside the lower box, on the side of the upper one. Who comes from another column or row runs beside.
    gutter = below.column if above.column <= below.column else below.column + 1
    lane = (above.row * columns + above.column) % 7 - 3
    x = size.gutter / 2 + gutter * (size.width + size.gutter) + lane * size.gutter / 10
    leaves = start[1] + size.row_gap * (0.12 + 0.36 * above.column / columns)
    arrives = end[1] - size.row_gap * (0.32 + 0.16 * below.column / columns)
    return Line(
        above.node,
        below.node,
        tuple(
            (round(px, 1), round(py, 1))
            for px, py in (start, (start[0], leaves), (x, leaves), (x, arrives), (end[0], arrives), end)
        ),
    )


def _levels(
    place: Mapping[Node, int], edges: Sequence[tuple[Node, Node]]
) -> tuple[dict[Node, int], set[tuple[Node, Node]]]:
    """Tell the level of each node, the longest way from the top, and which edges close a circle."""
    waits_for: dict[Node, set[Node]] = {node: set() for node in place}
    awaited: dict[Node, list[Node]] = defaultdict(list)
    cut: set[tuple[Node, Node]] = set()
    for above, below in edges:
        waits_for[below].add(above)
        awaited[above].append(below)
    level_of: dict[Node, int] = {}
    turn = [node for node in place if not waits_for[node]]
    left = dict.fromkeys(place)
    while left:
        if not turn:
            # Only circles are left: the first node of them begins, as if it waited for nothing more.
            first = next(iter(left))
            cut |= {(above, first) for above in waits_for[first]}
            waits_for[first].clear()
            turn.append(first)
        node = turn.pop()
        del left[node]
        level_of.setdefault(node, 0)
        for below in awaited[node]:
            if (node, below) in cut:
                continue
            level_of[below] = max(level_of.get(below, 0), level_of[node] + 1)
            waits_for[below].discard(node)
            if not waits_for[below]:
                turn.append(below)
    return level_of, cut


def _sorted_levels(
    place: Mapping[Node, int], level_of: Mapping[Node, int], edges: Sequence[tuple[Node, Node]]
) -> list[list[Node]]:
    """Put nodes of a level near their neighbours: by the mean of where those stand, back and forth."""
    levels: list[list[Node]] = [[] for _ in range(1 + max(level_of.values(), default=-1))]
    for node in place:
        levels[level_of[node]].append(node)
    above: dict[Node, list[Node]] = defaultdict(list)
    below: dict[Node, list[Node]] = defaultdict(list)
    for prerequisite, dependent in edges:
        above[dependent].append(prerequisite)
        below[prerequisite].append(dependent)
    where = {node: _share(index, members) for members in levels for index, node in enumerate(members)}

    for sweep in range(SWEEPS):
        neighbours, order = (above, levels) if sweep % 2 == 0 else (below, levels[::-1])
        for members in order:
            # Of a node without neighbours there, its own place is as good as any.
            wish = {
                node: sum(where[each] for each in neighbours[node]) / len(neighbours[node])
                if neighbours[node]
                else where[node]
                for node in members
            }
            members.sort(key=lambda node: (wish[node], place[node]))
            where.update({node: _share(index, members) for index, node in enumerate(members)})
    return levels


def _share(index: int, members: Sequence[object]) -> float:
    """Tell where in its level a node stands: 0 is left, 1 right."""
    return (index + 0.5) / len(members)


def _rows(members: Sequence[Node], per_row: int) -> list[Sequence[Node]]:
    """Cut a level into rows of nearly the same length."""
    count = -(-len(members) // per_row)
    return [members[len(members) * row // count : len(members) * (row + 1) // count] for row in range(count)]


@dataclass(frozen=True, slots=True)
class Band:
    """Neighbouring levels of a graph that is too large to be drawn, told as one: from *first* to *last*."""

    first: int
    last: int
    counts: dict[int, int]

    @property
    def total(self) -> int:
        """How many nodes are in it."""
        return sum(self.counts.values())


def bands(counts: Mapping[tuple[int, int], int], *, most: int) -> list[Band]:
    """Gather counts by (level, status) into at most so many bands, each of the same number of levels."""
    assert most >= 1
    if not counts:
        return []
    lowest, highest = min(level for level, _ in counts), max(level for level, _ in counts)
    width = -(-(highest - lowest + 1) // most)
    found: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for (level, status), count in sorted(counts.items()):
        found[(level - lowest) // width][status] += count
    return [
        Band(lowest + band * width, min(lowest + (band + 1) * width - 1, highest), dict(of_band))
        for band, of_band in sorted(found.items())
    ]

"""Where the boxes and lines of a graph stand."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from pgbroker.policy.graph_layout import Box, Layout, Line, Measure, bands, lay_out

SIZE = Measure()


@st.composite
def graphs(draw, *, circles: bool = False):
    """Numbers for nodes, in some order, and edges from lower to higher ones; with *circles*, in any direction."""
    count = draw(st.integers(0, 14))
    nodes = draw(st.permutations(range(count)))
    pairs = [(a, b) for a in range(count) for b in range(count) if (a != b if circles else a < b)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=40)) if pairs else []
    return nodes, edges


def boxes(layout: Layout[int]) -> dict[int, Box[int]]:
    return {box.node: box for box in layout.boxes}


def crosses(line: Line[int], box: Box[int]) -> bool:
    """Tell whether a stretch of a line lies within a box; where they touch is no crossing."""
    return any(
        min(x1, x2) < box.x + SIZE.width
        and box.x < max(x1, x2)
        and min(y1, y2) < box.y + SIZE.height
        and box.y < max(y1, y2)
        for (x1, y1), (x2, y2) in pairwise(line.points)
    ) or any(
        # A stretch without a breadth: upright, or level.
        (
            x1 == x2
            and box.x < x1 < box.x + SIZE.width
            and min(y1, y2) < box.y + SIZE.height
            and box.y < max(y1, y2)
        )
        or (
            y1 == y2
            and box.y < y1 < box.y + SIZE.height
            and min(x1, x2) < box.x + SIZE.width
            and box.x < max(x1, x2)
        )
        for (x1, y1), (x2, y2) in pairwise(line.points)
    )


def overlap(one: Box[int], other: Box[int]) -> bool:
    return abs(one.x - other.x) < SIZE.width and abs(one.y - other.y) < SIZE.height


@given(graphs(circles=True), st.integers(1, 8))
def test_every_node_has_its_place_and_no_two_overlap(graph, per_row):
    nodes, edges = graph

    layout = lay_out(nodes, edges, Measure(per_row=per_row))

    assert sorted(boxes(layout)) == sorted(nodes)
    assert not [pair for pair in combinations(layout.boxes, 2) if overlap(*pair)]
    for box in layout.boxes:
        assert 0 <= box.x <= box.x + SIZE.width <= layout.width + 0.11
        assert 0 <= box.y <= box.y + SIZE.height <= layout.height + 0.11


@given(graphs())
def test_every_edge_goes_down_a_level_and_is_drawn(graph):
    nodes, edges = graph

    layout = lay_out(nodes, edges)

    placed = boxes(layout)
    assert {(line.prerequisite, line.dependent) for line in layout.lines} == set(edges)
    assert layout.cut == ()
    for line in layout.lines:
        above, below = placed[line.prerequisite], placed[line.dependent]
        assert below.level > above.level
        assert line.points[0] == (above.x + SIZE.width / 2, above.y + SIZE.height)
        assert line.points[-1] == (below.x + SIZE.width / 2, below.y)
        assert all(one[1] <= other[1] for one, other in pairwise(line.points))


@given(graphs(), st.integers(1, 6))
def test_no_line_passes_below_a_box(graph, per_row):
    nodes, edges = graph

    layout = lay_out(nodes, edges, Measure(per_row=per_row))

    assert not [(line, box) for line in layout.lines for box in layout.boxes if crosses(line, box)]
    for line in layout.lines:
        assert all(0 < x < layout.width for x, _ in line.points)


@given(graphs())
def test_a_node_stands_right_below_the_lowest_of_its_prerequisites(graph):
    nodes, edges = graph

    placed = boxes(lay_out(nodes, edges))

    for node in nodes:
        above = [placed[a].level for a, b in edges if b == node]
        assert placed[node].level == (1 + max(above) if above else 0)


@given(graphs(circles=True))
def test_a_circle_is_cut_and_the_rest_still_goes_down(graph):
    nodes, edges = graph

    layout = lay_out(nodes, edges)

    drawn = {(line.prerequisite, line.dependent) for line in layout.lines}
    assert drawn | set(layout.cut) == set(edges)
    assert not drawn & set(layout.cut)
    assert all(line.points[0][1] < line.points[-1][1] for line in layout.lines)


@given(graphs(circles=True), st.data())
def test_the_same_graph_gives_the_same_picture_in_whatever_order_its_edges_come(graph, data):
    nodes, edges = graph
    shuffled = data.draw(st.permutations(edges + edges[:3]))

    assert lay_out(nodes, shuffled) == lay_out(nodes, edges)


def test_an_edge_to_a_node_that_is_not_there_is_left_out():
    layout = lay_out(["a"], [("gone", "a"), ("a", "gone")])

    assert layout.lines == ()
    assert boxes(layout)["a"].level == 0


def test_a_wide_level_takes_rows_of_nearly_the_same_length():
    layout = lay_out(list(range(13)), [], Measure(per_row=6))

    by_row = [[box.x for box in layout.boxes if box.y == y] for y in sorted({box.y for box in layout.boxes})]
    assert sorted(map(len, by_row)) == [4, 4, 5]
    assert layout.levels == 1


def test_nodes_stand_near_what_they_wait_for():
    edges = [("a", "y"), ("b", "x")]

    placed = boxes(lay_out(["a", "b", "x", "y"], edges))

    assert placed["y"].x == placed["a"].x < placed["b"].x == placed["x"].x


def test_a_graph_of_two_hundred_is_no_wider_than_its_rows():
    nodes = list(range(200))
    edges = [(each // 3, each) for each in nodes if each // 3 != each]

    layout = lay_out(nodes, edges)

    assert layout.width == SIZE.per_row * SIZE.width + (SIZE.per_row + 1) * SIZE.gutter
    assert len(layout.boxes) == 200
    assert not [(line, box) for line in layout.lines for box in layout.boxes if crosses(line, box)]


def test_an_empty_graph_has_no_size():
    layout: Layout[int] = lay_out([], [])

    assert (layout.boxes, layout.width, layout.height, layout.levels) == ((), 0, 0, 0)


# ------------------------------------------------------------------ what is too large to be drawn


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 300), st.sampled_from([2, 3, 10])), st.integers(1, 9), max_size=40
    ),
    st.integers(1, 40),
)
def test_bands_count_everything_once_in_order_and_are_few(counts, most):
    found = bands(counts, most=most)

    assert len(found) <= most
    assert sum(band.total for band in found) == sum(counts.values())
    assert all(one.last < other.first for one, other in pairwise(found))
    for (level, status), count in counts.items():
        (band,) = [each for each in found if each.first <= level <= each.last]
        assert band.counts[status] >= count


def test_few_levels_are_bands_of_one_each():
    found = bands({(0, 10): 5, (1, 2): 3, (1, 10): 1}, most=40)

    assert [(band.first, band.last, band.counts) for band in found] == [
        (0, 0, {10: 5}),
        (1, 1, {2: 3, 10: 1}),
    ]

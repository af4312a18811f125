"""How the parts of a whole lie along a bar. Pure."""

from collections.abc import Sequence

# The narrowest part that can still be seen and pointed at.
NARROWEST = 3.0


def lay_along(counts: Sequence[int], *, width: float) -> list[tuple[float, float]]:
    """
    Lay counts along a bar: of each its left end and its width, in order; together they fill the bar.

    What is there at all is seen: a small part is a little wider than its share, at the cost of the large ones.
    """
    whole = sum(counts)
    if not whole:
        return [(0.0, 0.0) for _ in counts]
    least = min(NARROWEST, width / len(counts))
    widths = [max(count / whole * width, least) if count else 0.0 for count in counts]
    # The excess is taken from what is wider than the least, in proportion.
    spare = sum(each - least for each in widths if each > least)
    excess = sum(widths) - width
    if excess > 0 and spare > 0:
        widths = [each - (each - least) * excess / spare if each > least else each for each in widths]
    placed, left = [], 0.0
    for each in widths:
        placed.append((round(left, 1), round(left + each, 1) - round(left, 1)))
        left += each
    return [(x, round(breadth, 1)) for x, breadth in placed]

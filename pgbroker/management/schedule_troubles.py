"""What the status tells of schedules: who creates what is due, and which of them do not do what they say. Pure."""

from collections import Counter
from collections.abc import Sequence

from pgbroker.management.lines import Column, Frame, Line, limited, table
from pgbroker.management.output import ago, harmless
from pgbroker.overview import Overview, TroubledSchedule

# Schedules in trouble that a screen lists, the count of the rest among them, and a page.
ON_A_SCREEN, ON_A_PAGE = 3, 20


def tell_scheduler(overview: Overview) -> list[Line]:
    """Say who creates what schedules are due, or that nobody does though there is something to come."""
    if overview.scheduler is not None:
        return [Line(f"scheduler: {harmless(overview.scheduler.name, keep='')}")]
    if not overview.lacks_scheduler:
        return []
    text = "scheduler: none runs: start broker_scheduler, or broker_worker --with-scheduler"
    # Between two calls of broker_scheduler --once nobody leads, and nothing is late.
    return [Line(text, "error" if overview.overdue_schedules else "warning")]


def tell_troubles(overview: Overview, frame: Frame) -> list[Line]:
    """List schedules that do not do what they say; a screen has room for the cure of the first one alone."""
    troubled, on_a_screen = overview.troubled_schedules, frame.rows is not None
    if not troubled:
        return []
    columns = [
        Column("schedule", flexible=True),
        Column("tenant", flexible=True),
        Column("trouble"),
        Column("since", right=True),
        Column("times", right=True),
        *([] if on_a_screen else [Column("cure")]),
        # The longest: last, where it widens nothing else.
        Column("error", flexible=True),
    ]
    shown, rest = limited(_in_turn(troubled), ON_A_SCREEN if on_a_screen else ON_A_PAGE)
    shown = sorted(shown, key=troubled.index)
    rows = [
        [
            *(each.name, each.tenant_id, each.trouble, ago(each.seconds), each.times or None),
            *([] if on_a_screen else [overview.cure_of(each)]),
            each.error,
        ]
        for each in shown
    ]
    lines = table(columns, rows, frame.width)
    told = [Line(lines[0], "heading"), *(Line(text, "error") for text in lines[1:])]
    if rest:
        count = f"{len(rest)}{'+' if overview.more_troubled else ''}"
        told.append(Line(f"+ {count} more schedules in trouble: broker_schedules list", "faint"))
    if on_a_screen:
        told.append(Line(f"cure of the first: {harmless(overview.cure_of(troubled[0]), keep='')}"))
    return told


def _in_turn(troubled: Sequence[TroubledSchedule]) -> list[TroubledSchedule]:
    """Put the first of each kind before the second of any: where all are overdue, what fails is to be seen too."""
    seen: Counter[str] = Counter()
    places = []
    for each in troubled:
        places.append(seen[each.trouble])
        seen[each.trouble] += 1
    return [each for _, each in sorted(zip(places, troubled, strict=True), key=lambda pair: pair[0])]

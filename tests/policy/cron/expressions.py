"""Expressions at random, each as text and as the sets that it means."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from tests.policy.cron.brute import Meaning

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


class Item(NamedTuple):
    """Part of a field's list, and what it means: *last* and *nth* in the fields that know them."""

    text: str
    values: frozenset[int] = frozenset()
    last: bool = False
    nth: frozenset[tuple[int, int]] = frozenset()


def item(low: int, high: int, words: list[str]) -> st.SearchStrategy[Item]:
    """Draw a star, a value, a range or a start, with a step or without."""

    @st.composite
    def draw_item(draw: st.DrawFn) -> Item:
        shape = draw(st.sampled_from(["value", "value", "range", "star/step", "range/step", "start/step"]))
        first = draw(st.integers(low, high))
        last = draw(st.integers(first, high))
        step = draw(st.integers(1, high + 5))

        def written(value: int) -> str:
            spellings = [str(value), f"{value:02}"]
            if words:
                word = words[value - low]
                spellings += [word, word.upper(), word.title()]
            return draw(st.sampled_from(spellings))

        match shape:
            case "value":
                return Item(written(first), frozenset({first}))
            case "range":
                return Item(f"{written(first)}-{written(last)}", frozenset(range(first, last + 1)))
            case "star/step":
                return Item(f"*/{step}", frozenset(range(low, high + 1, step)))
            case "range/step":
                text = f"{written(first)}-{written(last)}/{step}"
                return Item(text, frozenset(range(first, last + 1, step)))
            case _:
                return Item(f"{written(first)}/{step}", frozenset(range(first, high + 1, step)))

    return draw_item()


def nth_weekday() -> st.SearchStrategy[Item]:
    return st.tuples(st.integers(0, 7), st.sampled_from([1, 2, 3, 4, 5, -1])).map(
        lambda pair: Item(
            f"L{pair[0]}" if pair[1] < 0 else f"{pair[0]}#{pair[1]}",
            nth=frozenset({(pair[0] % 7, pair[1])}),
        )
    )


MINUTE = item(0, 59, [])
HOUR = item(0, 23, [])
DAY = st.one_of(item(1, 31, []), st.sampled_from([Item("L", last=True), Item("l", last=True)]))
MONTH = item(1, 12, MONTHS)
WEEKDAY = st.one_of(
    item(0, 6, WEEKDAYS),
    nth_weekday(),
    st.sampled_from(
        [Item("7", frozenset({0})), Item("5-7", frozenset({5, 6, 0})), Item("6-7", frozenset({6, 0}))]
    ),
)


def field(items: st.SearchStrategy[Item], low: int, high: int) -> st.SearchStrategy[list[Item]]:
    return st.one_of(
        st.just([Item("*", frozenset(range(low, high + 1)))]),
        st.lists(items, min_size=1, max_size=3),
    )


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, Meaning]:
    """Draw an expression of the dialect; some never fire."""
    fields = [
        draw(field(MINUTE, 0, 59)),
        draw(field(HOUR, 0, 23)),
        draw(field(DAY, 1, 31)),
        draw(field(MONTH, 1, 12)),
        draw(field(WEEKDAY, 0, 6)),
    ]
    minutes, hours, days, months, weekdays = (
        frozenset().union(*(each.values for each in items)) for items in fields
    )
    texts = [",".join(each.text for each in items) for items in fields]
    starred = [text.startswith("*") for text in texts]
    meaning = Meaning(
        minutes=minutes,
        hours=hours,
        days=days,
        last_day=any(each.last for each in fields[2]),
        months=months,
        weekdays=weekdays,
        nth=frozenset().union(*(each.nth for each in fields[4])),
        starred_time=starred[0] or starred[1],
        starred_day=starred[2] or starred[4],
    )
    blank = draw(st.sampled_from([" ", "  ", "\t"]))
    return blank.join(texts), meaning

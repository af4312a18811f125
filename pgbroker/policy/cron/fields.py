"""One field of a cron expression: what may stand in it, and which values it means. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from pgbroker.errors import InvalidCron

# Stands for the number in `L5`, the last Friday, as 1 to 5 do in `5#1` to `5#5`.
LAST = 0

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(frozen=True, slots=True)
class Field:
    """
    A field's name and bounds. `*` and `n/step` end at *high*; up to *highest* may be written.

    The two differ in the day of week alone, where 7 is another way to write Sunday.
    """

    name: str
    low: int
    high: int
    highest: int
    words: Mapping[str, int]
    hint: str


MINUTE = Field("minute", 0, 59, 59, {}, "Minutes are 0 to 59.")
HOUR = Field("hour", 0, 23, 23, {}, "Hours are 0 to 23, and midnight is 0.")
DAY = Field("day of month", 1, 31, 31, {}, "Days are 1 to 31, and L is the last one of the month.")
MONTH = Field(
    "month",
    1,
    12,
    12,
    {word: number for number, word in enumerate(_MONTHS, 1)},
    "Months are 1 to 12 or jan to dec.",
)
WEEKDAY = Field(
    "day of week",
    0,
    6,
    7,
    {word: number for number, word in enumerate(_WEEKDAYS)},
    "Weekdays are 0 (Sunday) to 7 (Sunday again), or sun to sat.",
)

# Other crons know these. Each is refused with what to write instead; matched on a whole item in lower case.
_FOREIGN = [
    (re.compile(pattern), trouble, cure)
    for pattern, trouble, cure in (
        (r".*\?.*", "has '?', which only some crons know", "Write * for any value."),
        (
            r"h(\(.*|/.*)?|r(\(.*|/.*)?|.*~.*",
            "has a value that a hash or chance would choose",
            "Choose the value; to spread load, give the schedule a jitter.",
        ),
        (
            r"lw|\d+w|w\d+",
            "has W, the nearest working day, which pgbroker does not know",
            "Choose the days, or let the job look at the date.",
        ),
        (
            r"l-.*",
            "counts back from the last day of the month",
            "L alone is the last day; for others, run daily and let the job look at the date.",
        ),
        (
            r"(\d|[a-z]{3})l",
            "has L behind the weekday",
            "Write it in front: L5 is the last Friday, and 0 or 7 is Sunday.",
        ),
    )
]


class Written(NamedTuple):
    """A field as it stands in an expression; *column* is where it begins, counted from 1."""

    expression: str
    field: Field
    text: str
    column: int

    @property
    def starred(self) -> bool:
        """Whether it begins with a star, which is all that Vixie's rules ask."""
        return self.text.startswith("*")

    def refuse(self, at: int, trouble: str, cure: str) -> NoReturn:
        raise InvalidCron(self.expression, self.field.name, self.column + at, trouble, cure)


def numbers(written: Written) -> tuple[int, ...]:
    """Return the values of a minute, an hour or a month, each once and in order."""
    return tuple(sorted({value for at, item in _items(written) for value in _range(written, at, item)}))


def days(written: Written) -> tuple[frozenset[int], bool]:
    """Return the days of the month, and whether the last one is meant whatever its number."""
    values: set[int] = set()
    last = False
    for at, item in _items(written):
        if item.lower() == "l":
            last = True
        else:
            values.update(_range(written, at, item))
    return frozenset(values), last


def weekdays(written: Written) -> tuple[frozenset[int], frozenset[tuple[int, int]]]:
    """Return the weekdays, 0 for Sunday, and pairs of a weekday and which one of the month, 1 to 5 or LAST."""
    values: set[int] = set()
    nth: set[tuple[int, int]] = set()
    for at, item in _items(written):
        name, mark, number = item.partition("#")
        if mark:
            if not (len(number) == 1 and number in "12345"):
                cure = "Write 1 to 5 behind the #; L5 is the last Friday."
                written.refuse(at + len(name), f"asks for weekday number {_short(number)} of a month", cure)
            nth.add((_value(written, at, name) % 7, int(number)))
        elif item[0] in "lL":
            if len(item) == 1:
                written.refuse(at, "has L without a weekday", "Write one behind it: L5 is the last Friday.")
            nth.add((_value(written, at + 1, item[1:]) % 7, LAST))
        else:
            values.update(value % 7 for value in _range(written, at, item))
    return frozenset(values), frozenset(nth)


def _items(written: Written) -> Iterator[tuple[int, str]]:
    """Split a field at its commas, and refuse what is known from other crons; each with where it begins."""
    at = 0
    for item in written.text.split(","):
        if not item:
            written.refuse(
                at, "has an empty place in its list", "Take out a comma, or write what is missing."
            )
        for pattern, trouble, cure in _FOREIGN:
            if pattern.fullmatch(item.lower()):
                written.refuse(at, trouble, cure)
        yield at, item
        at += len(item) + 1


def _range(written: Written, at: int, item: str) -> range:
    """Return the values of `*`, `a`, `a-b`, each with `/step` or without."""
    field = written.field
    base, slash, step = item.partition("/")
    if slash and not (step.isdecimal() and int(step)):
        cure = "Write a whole number from 1, as in */5."
        trouble = f"has the step {_short(step)}" if step else "has a / without a step"
        written.refuse(at + len(base) + 1, trouble, cure)
    first, dash, last = base.partition("-")
    if base == "*":
        low, high = field.low, field.high
    else:
        low = _value(written, at, first)
        high = low
        if dash:
            high = _value(written, at + len(first) + 1, last)
        elif slash:
            high = max(low, field.high)
    if low > high:
        written.refuse(
            at, f"has the range {_short(base)}, which runs backwards", _unwrapped(field, low, high)
        )
    return range(low, high + 1, int(step) if slash else 1)


def _unwrapped(field: Field, low: int, high: int) -> str:
    """Tell how to write a range that wraps, such as 22-2 or fri-mon."""
    if field is WEEKDAY and high == 0:
        return f"Write {low}-7: 7 is Sunday too."
    ranges = [f"{a}-{b}" if a < b else f"{a}" for a, b in ((low, field.high), (field.low, high))]
    return f"Write it as two: {','.join(ranges)}."


def _value(written: Written, at: int, text: str) -> int:
    field = written.field
    if (named := field.words.get(text.lower())) is not None:
        return named
    if not text:
        written.refuse(at, "lacks a value", field.hint)
    # The expression has only plain characters by now, so these are the digits 0 to 9.
    if not text.isdecimal():
        short = text[:3].lower()
        cure = f"Write {short}." if text.isalpha() and short in field.words else field.hint
        written.refuse(at, f"has {_short(text)}, which it does not know", cure)
    if not field.low <= int(text) <= field.highest:
        written.refuse(at, f"has {_short(text)}, outside {field.low} to {field.highest}", field.hint)
    return int(text)


def _short(text: str) -> str:
    return repr(text if len(text) <= 20 else f"{text[:19]}…")

"""A whole cron expression, read into times of the day and days. Pure."""

import re
from dataclasses import dataclass

from pgbroker.errors import CronNeverFires, InvalidCron
from pgbroker.policy.cron import fields
from pgbroker.policy.cron.days import Days
from pgbroker.policy.cron.fields import Written
from pgbroker.policy.cron.times import Times

LENGTH_MAX = 255

FIELDS = (fields.MINUTE, fields.HOUR, fields.DAY, fields.MONTH, fields.WEEKDAY)
NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_WHOLE = "expression"
_FIVE = "minute, hour, day of month, month, day of week"


@dataclass(frozen=True, slots=True)
class Expression:
    """
    What an expression means on a clock that is never changed; *parts* are its five fields as they were written.

    *starred*: its minute or its hour begins with a star. Such times follow the clock as it is changed,
    while all others are appointments, which are kept once.
    """

    text: str
    parts: tuple[str, ...]
    times: Times
    days: Days
    starred: bool


def checked(text: object) -> str:
    """Return the text, or raise InvalidCron if it is none or too long. The cost of the rest follows from that."""
    if not isinstance(text, str):
        shown, trouble = type(text).__name__, "is not text"
        raise InvalidCron(shown, _WHOLE, 1, trouble, f"Give a string with {_FIVE}.")
    if len(text) > LENGTH_MAX:
        trouble = f"has {len(text)} characters, more than {LENGTH_MAX}"
        raise InvalidCron(f"{text[:20]}…", _WHOLE, LENGTH_MAX + 1, trouble, "Make several schedules of it.")
    return text


def read(text: str) -> Expression:
    """
    Read an expression of five fields, or a nickname such as `@daily`; its length was checked.

    Raises InvalidCron, which says what is wrong, where and what to do, or CronNeverFires when it names
    days that no month has.
    """
    written = _split(text)
    minute, hour, day, month, weekday = written
    # From left to right, so that the first mistake is the one that is told.
    minutes, hours = fields.numbers(minute), fields.numbers(hour)
    days, last = fields.days(day)
    months = fields.numbers(month)
    weekdays, nth = fields.weekdays(weekday)
    calendar = Days(months, days, last, weekdays, nth, both=day.starred or weekday.starred)
    if calendar.none:
        raise CronNeverFires(
            text,
            day.field.name,
            day.column,
            "asks for days that none of these months has",
            "Choose other days or months.",
        )
    parts = tuple(each.text for each in written)
    return Expression(text, parts, Times(hours, minutes), calendar, minute.starred or hour.starred)


def _split(text: str) -> list[Written]:
    """Cut an expression into its five fields, each with the column where it begins."""
    if strange := re.search(r"[^\t -~]", text):
        trouble = f"has the character {strange[0]!a}"
        cure = "Write one line of plain letters, digits and blanks."
        raise InvalidCron(text, _WHOLE, strange.start() + 1, trouble, cure)
    found = list(re.finditer(r"[^\t ]+", text))
    if found and found[0][0].startswith("@"):
        return _nickname(text, found)
    if len(found) != len(FIELDS):
        trouble = f"does not have five fields but {len(found)}" if found else "is empty"
        cure = (
            "There are no fields for seconds or years: leave them out."
            if len(found) > len(FIELDS)
            else f"Give {_FIVE}. A star stands for any value."
        )
        position = found[len(FIELDS)].start() + 1 if len(found) > len(FIELDS) else len(text) + 1
        raise InvalidCron(text, _WHOLE, position, trouble, cure)
    return [
        Written(text, field, match[0], match.start() + 1) for field, match in zip(FIELDS, found, strict=True)
    ]


def _nickname(text: str, found: list[re.Match[str]]) -> list[Written]:
    name = found[0][0].lower()
    if name not in NICKNAMES or len(found) > 1:
        if name == "@reboot":
            trouble, cure = "names no time", "Enqueue the job where your site starts."
        elif name == "@every":
            trouble, cure = "counts from a start that nothing keeps", "Write a step, such as */5 * * * *."
        elif name in NICKNAMES:
            trouble, cure = f"has more behind {name}", f"Write {name} alone."
        else:
            trouble, cure = f"has {name[:20]!r}, which is no nickname", f"There are {', '.join(NICKNAMES)}."
        raise InvalidCron(text, _WHOLE, found[0].start() + 1, trouble, cure)
    column = found[0].start() + 1
    return [
        Written(text, field, part, column)
        for field, part in zip(FIELDS, NICKNAMES[name].split(), strict=True)
    ]

"""
How croniter reads an expression: the library that most Python schedulers ask, and that people learned cron from.

Only to tell whoever saves a schedule of the other reading. What fires does not depend on it. Pure.
"""

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta

from croniter import CroniterBadCronError, CroniterBadDateError, croniter

from pgbroker.policy.cron.expression import Expression

# Rules that differ do so soon: as many days on which it fires are compared, none later than a year and a bit.
_DAYS_COMPARED = 40
_FAR = timedelta(days=400)
_YEARS_SEARCHED = 2


def second_reading(expression: Expression, since: date) -> str | None:
    """
    Tell in a sentence where croniter reads *expression* otherwise, with its days compared from *since* on.

    None where both agree, and where croniter does not take the expression at all.
    """
    minute, hour, *days = expression.parts
    try:
        (minutes, hours, *_), _ = croniter.expand(" ".join(expression.parts))
        theirs = croniter(
            f"0 0 {' '.join(days)}",
            datetime.combine(since, time.min) - timedelta(minutes=1),
            ret_type=datetime,
            max_years_between_matches=_YEARS_SEARCHED,
        )
    except CroniterBadCronError:
        return None
    times = expression.times
    for name, text, here, there in (
        ("minute", minute, times.minutes, minutes),
        ("hour", hour, times.hours, hours),
    ):
        # To croniter a star, which it also makes of a list of all values.
        every = tuple(range(60 if name == "minute" else 24))
        if here != (every if "*" in there else tuple(there)):
            return f"croniter takes the {name} {text!r} for {_told(there)}, here it is {_told(here)}."
    return _days_apart(expression, theirs, since)


def _days_apart(expression: Expression, theirs: "croniter[datetime]", since: date) -> str | None:
    ordinal = since.toordinal()
    for _ in range(_DAYS_COMPARED):
        here = expression.days.on_or_after(ordinal)
        try:
            there: int | None = theirs.get_next().date().toordinal()
        except CroniterBadDateError:
            there = None
        seen = [each for each in (here, there) if each is not None]
        if not seen or min(seen) > (since + _FAR).toordinal():
            return None
        if here != there:
            day = date.fromordinal(min(seen))
            return (
                f"croniter would not fire on {day:%A} {day}, and here it does."
                if here == min(seen)
                else f"croniter would fire on {day:%A} {day}, and here it does not."
            )
        ordinal = min(seen) + 1
    return None


def _told(values: Sequence[int | str]) -> str:
    return "any" if "*" in values else ", ".join(str(value) for value in values)

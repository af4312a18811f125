"""What the page about cron expressions says is what they do."""

from __future__ import annotations

import re
from datetime import date, datetime
from itertools import islice

import pytest

from docs.generated import DOCS
from pgbroker.errors import InvalidCron
from pgbroker.policy.cron import Ambiguous, Nonexistent, parse
from pgbroker.policy.cron.expression import NICKNAMES
from pgbroker.policy.cron.second_reading import second_reading

PAGE = (DOCS / "reference" / "cron.md").read_text()


def table(*headings: str) -> list[list[str]]:
    """Return the cells of the table with those headings, without their code marks."""
    head = re.escape(f"| {' | '.join(headings)} |\n") + r"[|-]+\n"
    (body,) = re.findall(head + r"((?:\|.*\n)+)", PAGE)
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in body.splitlines()]


@pytest.mark.parametrize(("text", "since", "days"), table("Expression", "From", "First days"))
def test_the_first_days_are_as_told(text, since, days):
    cron = parse(text, "UTC", start=datetime.fromisoformat(since + "T00:00Z"))

    ticks = islice(cron.after(datetime(1970, 1, 1, tzinfo=cron.start.tzinfo)), 4)
    assert ", ".join(f"{tick.wall:%Y-%m-%d}" for tick in ticks) == days


@pytest.mark.parametrize(("text", "why"), table("Expression", "Why"))
def test_what_the_page_refuses_is_refused(text, why):
    assert why.endswith(".")
    with pytest.raises(InvalidCron):
        parse(text, "UTC")


@pytest.mark.parametrize(("text", "told"), table("Expression", "What is told"))
def test_the_other_reading_is_told_in_those_words(text, told):
    assert second_reading(parse(text, "UTC").expression, date(2025, 1, 1)) == told


@pytest.mark.parametrize(
    ("text", "zone", "rules", "after", "ticks"),
    table("Expression", "Zone", "Rules", "After", "Next, in UTC"),
)
def test_the_ticks_around_a_change_are_as_told(text, zone, rules, after, ticks):
    cron = parse(text, zone, **dict(rule.split("=") for rule in rules.split()))
    expected = [datetime.fromisoformat(each) for each in ticks.split(", ")]

    found = islice(cron.after(datetime.fromisoformat(after)), len(expected))
    assert [tick.instant for tick in found] == expected


def test_nicknames_and_rules_are_those_of_the_code():
    told = {
        name.strip(" `"): same for names, same in table("Nickname", "Same as") for name in names.split(",")
    }

    assert told == NICKNAMES
    assert [row[0] for row in table("`ambiguous`", "A time that the clock shows twice")] == list(Ambiguous)
    assert [row[0] for row in table("`nonexistent`", "A time that the clock skips")] == list(Nonexistent)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("5-10", "5,6,7,8,9,10"),
        ("*/15", "0,15,30,45"),
        ("5-30/10", "5,15,25"),
        ("5/15", "5,20,35,50"),
        ("*/90", "0"),
    ],
)
def test_what_a_field_means_is_as_told(field, text):
    assert f"`{field}`" in PAGE
    assert (
        parse(f"{field} * * * *", "UTC").expression.times == parse(f"{text} * * * *", "UTC").expression.times
    )

"""Where croniter reads an expression otherwise, whoever saves it is told; and where not, croniter agrees."""

from __future__ import annotations

import re
from datetime import date

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pgbroker.errors import CronNeverFires
from pgbroker.policy.cron import parse
from pgbroker.policy.cron.second_reading import second_reading
from tests.policy.cron.expressions import MONTHS, WEEKDAYS, expressions

SINCE = date(2025, 1, 1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0 10-10 * * *", "croniter takes the hour '10-10' for any, here it is 10."),
        ("5-5 * * * *", "croniter takes the minute '5-5' for any, here it is 5."),
        ("0 0 * * 1-1", "croniter would fire on Wednesday 2025-01-01, and here it does not."),
        ("0 0 15 * */3", "croniter would fire on Wednesday 2025-01-01, and here it does not."),
        ("0 0 13 * 5#1", "croniter would not fire on Friday 2025-01-03, and here it does."),
        ("0 0 30 2 1#5", None),  # here on 29 February 2044, which is too far away to be compared
        # croniter counts thirty days and the L as all thirty-one.
        ("0 0 2-31,L * *", "croniter would fire on Wednesday 2025-01-01, and here it does not."),
        ("0 0 * * 1,5#2", None),  # croniter does not take it
        ("0 0 * * 0,0#1", "croniter would not fire on Sunday 2025-01-12, and here it does."),
        ("*/5 0-23 * * *", None),
        ("0 9 * * mon-fri", None),
        ("0 0 1,15 * 3", None),
        ("0 0 29 2 *", None),
        ("@daily", None),
    ],
)
def test_another_reading_is_told(text, told):
    assert second_reading(parse(text, "UTC").expression, SINCE) == told


def in_numbers(text: str) -> str:
    text = text.lower()
    for words, first in ((MONTHS, 1), (WEEKDAYS, 0)):
        for number, word in enumerate(words, first):
            text = text.replace(word, str(number))
    return text


@given(drawn=expressions(), since=st.dates(date(1975, 1, 1), date(2095, 1, 1)))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_but_for_its_known_ways_croniter_reads_the_same(drawn, since):
    text, meaning = drawn
    _, _, day, _, weekday = text.split()
    # A range of one value; a star that is not alone in a day field, or # and L, beside the other field; # and L
    # beside plain weekdays; thirty days and L.
    assume(not re.search(r"\b0*(\d+)-0*\1\b", in_numbers(text)))
    assume(day == "*" or weekday == "*" or not ("*" in day + weekday or meaning.nth))
    assume(not (meaning.weekdays and meaning.nth))
    assume(len(meaning.days) < 30 or not meaning.last_day)
    try:
        expression = parse(text, "UTC").expression
    except CronNeverFires:
        return

    assert second_reading(expression, since) is None

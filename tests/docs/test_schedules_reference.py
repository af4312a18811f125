"""What the reference says of schedules: all parameters and calls that there are, and a template that can be stored."""

from __future__ import annotations

import inspect
import json
import re

import pytest

from docs.generated import DOCS
from pgbroker import schedule
from pgbroker.schedules import operate
from tests.docs.walkthrough import blocks
from tests.support.jobs import TYPE, queue_id, type_id

PAGE = DOCS / "reference" / "python.md"
SECTION = PAGE.read_text().partition("\n## Schedules\n")[2].partition("\n## ")[0]


def known(text: str) -> str:
    return re.sub(r'"shop\.\w+"', f'"{TYPE}"', text).replace('"imports"', '"default"')


def test_every_parameter_of_a_schedule_is_on_the_page():
    rows = re.findall(r"^\| (`.*?) \|", SECTION.partition("### ")[0], re.M)

    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    assert listed == set(inspect.signature(schedule).parameters)


def test_every_verb_is_on_the_page_with_parameters_that_it_has():
    calls = re.findall(r"`(\w+)\(([^`]*)\)`", SECTION.partition("### Look")[2].partition("```")[0])

    for name, typed in calls:
        names = {each.partition("=")[0].strip() for each in typed.split(",")}
        assert names <= set(inspect.signature(getattr(operate, name)).parameters), name
    verbs = {name for name in operate.__all__ if inspect.isfunction(getattr(operate, name))}
    assert {name for name, _ in calls} == verbs


@pytest.mark.django_db
def test_the_template_and_the_definition_of_the_page_can_be_stored():
    queue_id(), type_id()
    names: dict[str, object] = {}
    (template,) = (json.loads(known(each.body)) for each in blocks(PAGE) if each.language == "json")
    (code,) = (known(each.body) for each in blocks(PAGE) if "operate.Definition(" in each.body)
    exec(compile(code, PAGE.name, "exec"), names)  # noqa: S102 - our own page
    definition = operate.Definition(name="by-hand", expression="0 2 * * *", time_zone="UTC", **template)

    assert operate.check(definition) == []
    names["add_nightly_import"]("orders")  # type: ignore[operator]

    made = operate.run_now("import-orders")
    assert (made.state, made.error) == ("created", None)
    assert made.run_group_id is not None

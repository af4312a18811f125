"""The reference says what the code says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from django.db import connection

from docs import generated, states_picture
from pgbroker import errors, telemetry
from pgbroker.context import JobContext
from pgbroker.errors import PgBrokerError
from pgbroker.options import Options
from pgbroker.policy import why_not_running
from pgbroker.states import AttemptState, GroupState, Status

REFERENCE = generated.DOCS / "reference"


def names(page: str, heading: str | None = None) -> list[str]:
    """List the code words in the first cells of a page's tables, below a heading or everywhere."""
    text = (REFERENCE / page).read_text()
    if heading is not None:
        text = re.split(r"^## ", text.partition(f"{heading}\n")[2], maxsplit=1, flags=re.M)[0]
    return [
        word for cell in re.findall(r"^\|([^|]*)\|", text, re.M) for word in re.findall(r"`([\w.]+)", cell)
    ]


def numbered(page: str) -> Iterator[tuple[int, str]]:
    for number, word in re.findall(r"^\| (\d+) \| `(\w+)` \|", (REFERENCE / page).read_text(), re.M):
        yield int(number), word


@pytest.mark.django_db
@pytest.mark.parametrize("page", generated.pages(), ids=lambda page: page.stem)
def test_what_the_code_knows_is_on_the_page_as_it_is_now(page: Path) -> None:
    assert page.read_text() == generated.filled(page), "run: python docs/generated.py"


def test_the_picture_of_the_states_is_drawn_from_the_transitions() -> None:
    assert (REFERENCE / "states.svg").read_text() == states_picture.draw(), "run: python docs/generated.py"


def test_every_part_that_can_be_generated_stands_on_a_page() -> None:
    used = [part["name"] for page in generated.pages() for part in generated.PART.finditer(page.read_text())]

    assert sorted(used) == sorted(generated.PARTS)


def test_the_numbers_of_states_are_those_of_the_code() -> None:
    known = [(int(one), one.label) for one in (*Status, *AttemptState, *GroupState)]

    assert list(numbered("states.md")) == known


def test_the_keys_of_log_lines_are_those_of_the_code() -> None:
    assert names("events.md", "## Keys") == list(telemetry.KEYS)


def test_the_options_of_a_call_are_those_of_the_code() -> None:
    listed = names("python.md", "`.options()` takes:")

    assert set(listed) == {field.name for field in fields(Options)}
    assert len(set(listed)) == len(listed)


def test_what_a_handler_is_given_exists() -> None:
    listed = [name for name in names("python.md", "a `JobContext`.") if name[0].islower()]

    assert len(listed) > 8
    assert [name for name in listed if not hasattr(JobContext, name)] == []


def test_the_reasons_are_those_that_an_explanation_can_give() -> None:
    given = re.findall(r'Explanation\(\s*"(\w+)"', inspect.getsource(why_not_running))

    assert len(given) > 15
    assert sorted(names("reasons.md", "# Reasons")) == sorted(set(given))


def test_codes_without_a_class_have_none() -> None:
    with_class = {
        each.code
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, PgBrokerError)
    }

    assert not with_class & set(names("errors.md", "## Codes without a class"))


def test_every_code_that_a_worker_writes_is_listed() -> None:
    sources = [*(generated.DOCS.parent / "pgbroker" / "runtime").rglob("*.py")]
    written = {
        code for path in sources for code in re.findall(r'\b(?:error_)?code="(\w+)"', path.read_text())
    }

    assert written
    assert written <= set(re.findall(r"`(\w+)`", (REFERENCE / "errors.md").read_text()))


@pytest.mark.django_db
def test_the_tables_are_those_of_the_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "select relname, relrowsecurity and relforcerowsecurity from pg_class "
            "where relnamespace = 'pgbroker'::regnamespace and relkind in ('r', 'p') and not relispartition"
        )
        known = dict(cursor.fetchall())
    text = (REFERENCE / "tables.md").read_text()

    assert set(names("tables.md")) == set(known)
    assert set(re.findall(r"^\| `(\w+)` \|.*\| yes \|$", text, re.M)) == {
        name for name, secured in known.items() if secured
    }

"""The options of a call in SQL and in Python: the same names, the same values, refused for the same reasons."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import fields
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pgbroker import DeadLetter, job, sql
from pgbroker.errors import InvalidOption
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.models import JobPayload
from pgbroker.options import LONGEST_TAG, MOST_TAGS, ON_CONFLICT, SCOPES, Options
from pgbroker.registry import JobTask, types
from tests.support.jobs import TYPE, type_id

pytestmark = pytest.mark.django_db
GOOD = {"job_type": TYPE}


@pytest.fixture(autouse=True)
def declared() -> None:
    type_id()


@job(name="tests.options.noop")
def noop() -> None:
    """Do nothing."""


# ------------------------------------------------------------------ the same names

# Where SQL says it otherwise than Python: an instant and a duration are two keys, and what only the worker reads
# stands in `options`.
IN_SQL = {
    "run_after": {"available_at", "delay_seconds"},
    "deadline": {"deadline_at", "deadline_seconds"},
    "window": {"window_seconds"},
    "queue_name": {"queue"},
    "backoff": {"options.backoff"},
    "timeout": {"options.timeout"},
    "on_exhausted": {"options.on_exhausted"},
    "tenant": {"tenant", "tenant_id"},  # refused there: the session says it
}
# What a call says without an option.
NO_OPTION = {
    "id", "job_type", "args", "args_body", "type_version", "options", "principal", "traceparent",
    "lane",  # until lanes do something
}  # fmt: skip
# Named otherwise in pgbroker.enqueue, or only there.
IN_ENQUEUE = {"kwargs": "args", "run_after": "available_at", "deadline": "deadline_at", "notify": None}


def keys_of_sql() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "select attname from pg_attribute join pg_class on pg_class.oid = attrelid "
            "where attrelid = 'pgbroker.enqueue_given_1'::regclass and attnum > 0"
        )
        keys = {name for (name,) in cursor.fetchall()}
        cursor.execute("select pgbroker.options_misfit_1('{\"?\": 1}')")
        (message,) = cursor.fetchone()
    return keys | {f"options.{name}" for name in re.search(r"Use (.+)\.", message)[1].split(", ")}


def test_every_option_of_a_call_has_its_key_in_sql_and_every_key_its_option():
    """An option that is added on one side only is found here."""
    using = {"run_after", "priority", "queue_name"}
    assert using < {each.name for each in fields(JobTask)}
    options = {each.name for each in fields(Options)} | using

    expected = {key for option in options for key in IN_SQL.get(option, {option})}

    assert keys_of_sql() - NO_OPTION == expected
    assert keys_of_sql() >= NO_OPTION


def test_the_function_for_one_job_takes_what_an_entry_takes():
    with connection.cursor() as cursor:
        cursor.execute("select proargnames from pg_proc where oid = 'pgbroker.enqueue'::regproc")
        (names,) = cursor.fetchone()
    keys = {IN_ENQUEUE.get(name, name) for name in names} - {None}

    assert keys <= keys_of_sql()
    # The client's own, and what the two instants say already.
    assert keys_of_sql() - keys == {
        "id", "args_body", "type_version", "principal", "traceparent", "lane", "delay_seconds", "deadline_seconds",
        "tenant", "tenant_id", "options.backoff", "options.timeout", "options.on_exhausted",
    }  # fmt: skip


@job(
    name="tests.options.everything", priority=3, backoff=5, timeout=9, tags=["a"], max_attempts=2,
    on_exhausted="tests.options.everything",
)  # fmt: skip
def everything(dead: DeadLetter) -> None:
    """Do nothing."""


def test_what_sql_looks_for_in_a_declaration_is_what_python_puts_there():
    functions = "".join(path.read_text() for path in (sql.FOLDER / "functions").glob("*.sql"))
    for_the_worker = {"backoff", "timeout"}

    looked_for = set(re.findall(r"defaults (?:->>?|\?) '(\w+)'", functions))

    assert looked_for | for_the_worker == set(types()["tests.options.everything"].defaults)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("mode", ON_CONFLICT)
def test_sql_takes_each_scope_and_mode_that_python_takes_and_no_other(scope, mode):
    window = {"window_seconds": 1} if scope == "window" else {}
    row = {**GOOD, "idempotency_key": "k", "idempotency_scope": scope, "on_conflict": mode, **window}

    good, no_scope, no_mode = enqueue_rows(
        [row, {**row, "idempotency_scope": "x"}, {**row, "on_conflict": "x"}]
    )

    assert good.outcome == "created"
    assert no_scope.detail == f"idempotency_scope 'x' is not {listed(SCOPES)}"
    assert no_mode.detail == f"on_conflict 'x' is not {listed(ON_CONFLICT)}"


def listed(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


# ------------------------------------------------------------------ the same values


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timeout": 0}, "options.timeout is 0. Give seconds above 0, at most 2592000."),
        ({"timeout": -1}, "options.timeout is -1."),
        ({"timeout": 2592000.1}, "options.timeout is 2592000.1."),
        ({"timeout": "5"}, 'options.timeout is "5".'),
        ({"timeout": True}, "options.timeout is true."),
        ({"timeout": []}, "options.timeout is []."),
        (
            {"backoff": 5},
            "options.backoff is of type number. Give an object of base, factor, cap and jitter.",
        ),
        ({"backoff": [1]}, "options.backoff is of type array."),
        (
            {"backoff": {"basis": 1}},
            'there is no key "basis" in options.backoff. Use base, cap, factor, jitter.',
        ),
        ({"backoff": {"base": -1}}, "options.backoff.base is -1. Give seconds, 0 or more."),
        ({"backoff": {"base": "1"}}, 'options.backoff.base is "1".'),
        ({"backoff": {"factor": 0.9}}, "options.backoff.factor is 0.9. Give a number, 1 or more."),
        ({"backoff": {"cap": 31622401}}, "options.backoff.cap is 31622401. Give seconds from 0 to 31622400."),
        ({"backoff": {"cap": None}}, "options.backoff.cap is null."),
        ({"backoff": {"jitter": 1}}, "options.backoff.jitter is 1. Give true or false."),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_value_that_no_worker_can_use_refuses_its_own_entry(options, says):
    first, refused, last = enqueue_rows([GOOD, {**GOOD, "options": options}, GOOD])

    assert (first.outcome, refused.outcome, last.outcome) == ("created", "invalid_option", "created")
    assert refused.detail.startswith(says)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"timeout": None}, {"backoff": None}, {"timeout": 0.5, "backoff": {}}, {"timeout": 2592000},
        {"backoff": {"base": 0, "factor": 1, "cap": 0, "jitter": False}}, {"backoff": {"base": 1e20}},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_value_that_a_worker_can_use_is_stored_as_it_is(options):
    (answer,) = enqueue_rows([{**GOOD, "options": options}])

    assert JobPayload.objects.get(pk=answer.job_id).options == options


# jsonb takes neither a NUL nor a surrogate: SQL never sees them.
TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=4)
NUMBERS = (
    st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0, 1])
)
ODD = st.none() | st.booleans() | TEXT | st.lists(st.integers(), max_size=1)
BACKOFFS = st.dictionaries(
    st.sampled_from(["base", "factor", "cap"]), st.integers(0, 10**8) | NUMBERS | ODD, max_size=3
) | st.dictionaries(st.sampled_from(["base", "bases", "jitter"]), st.booleans(), max_size=2)


def python_refuses(name: str, value: Any) -> bool:
    try:
        noop.options(**{name: value})
    except InvalidOption:
        return True
    return False


def sql_refuses(key: str, value: Any) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"select pgbroker.{key}_misfit_1(%s::jsonb)", [json.dumps(value)])
        return cursor.fetchone()[0] is not None


once = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@once
@given(backoff=BACKOFFS)
@example(backoff={"base": 1.7000000000000001e308})
@example(backoff={"factor": sys.float_info.max})
@example(backoff={"base": 2 * 10**308})
@example(backoff={"factor": 1.0, "cap": 31622400})
def test_sql_and_python_agree_on_what_is_a_backoff(backoff):
    assert sql_refuses("backoff", backoff) == python_refuses("backoff", backoff)


@once
@given(timeout=NUMBERS | st.booleans() | TEXT)
@example(timeout=2592000)
@example(timeout=1e-6)
@example(timeout=1e-7)
def test_sql_and_python_agree_on_what_is_a_timeout(timeout):
    assert sql_refuses("options", {"timeout": timeout}) == python_refuses("timeout", timeout)


@once
@given(tags=st.lists(TEXT | st.sampled_from(["a", "b "]) | st.integers(), max_size=4, unique=True))
@example(tags=["x" * LONGEST_TAG])
@example(tags=["x" * (LONGEST_TAG + 1)])
@example(tags=[str(place) for place in range(MOST_TAGS)])
@example(tags=[str(place) for place in range(MOST_TAGS + 1)])
@example(tags=["\x1f"])
@example(tags=["\x9f"])
@example(tags=["\xa0"])
def test_sql_and_python_agree_on_what_is_a_tag(tags):
    assert sql_refuses("tags", tags) == python_refuses("tags", tags)


@pytest.mark.parametrize("tags", ["a", b"a", {"a": 1}, 7, ["a", 7], ["\x00"], ["\ud800"]], ids=repr)
def test_tags_are_a_list_of_strings_where_they_are_written(tags):
    with pytest.raises(InvalidOption, match="tags"):
        noop.options(tags=tags)
    with pytest.raises(InvalidOption, match="tags"):
        job(name="tests.options.wrong", tags=tags)(noop.func)

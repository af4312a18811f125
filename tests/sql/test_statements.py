"""Every statement, by the same few tests: a new file is born tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.db import connection
from psycopg import _queries

from pgbroker import sql
from pgbroker.states import EVENT_LABELS, AttemptState, GroupState, OnFailure, Status

FILES = sorted(sql.FOLDER.glob("*.sql"))
LOOK_UPS = sql.FOLDER / "functions" / "look_ups_1.sql"
FUNCTIONS = sorted((sql.FOLDER / "functions").glob("*.sql"))
WORDS = [{int(one): one.label for one in words} for words in (Status, AttemptState, GroupState, OnFailure)]

# Where a case yields a level or a kind of edge.
# A share lock is taken at a commit alone, by whoever has made an edge, and for the length of a pass.
SHARED = {("edges_1", "for share"), ("resolve_1", "for share skip locked")}
NUMBERS_THAT_COUNT = {"reconcile_1", "references_1", "resolve_1"}

each_statement = pytest.mark.parametrize("statement", sql.all_statements(), ids=lambda one: one.name)
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
each_text = pytest.mark.parametrize("path", [*FILES, *FUNCTIONS], ids=lambda path: path.stem)


def header(path: Path) -> str:
    """Return the comment at the head of a file."""
    return re.match(r"(?:--.*\n)+", path.read_text())[0]


def code(path: Path) -> str:
    """Return a file without its comments of whole lines."""
    return re.sub(r"^\s*--.*\n", "", path.read_text(), flags=re.M)


@pytest.mark.django_db
@each_statement
def test_the_header_names_every_parameter_with_the_type_postgres_infers(statement):
    documented = re.findall(
        r"^--   (\w+)  +(\S+(?: \S+)*?)  ", header(sql.FOLDER / f"{statement.name}.sql"), re.M
    )
    text = re.sub(
        r"%\((\w+)\)s", lambda found: f"${statement.parameters.index(found[1]) + 1}", statement.text
    )

    with connection.cursor() as cursor:
        cursor.execute(f"prepare probe as {text}")
        cursor.execute("select parameter_types::text[] from pg_prepared_statements where name = 'probe'")
        (inferred,) = cursor.fetchone()
        cursor.execute("deallocate probe")
        cursor.execute("select array(select name::regtype::text from unnest(%s::text[]) as types (name))", [
            [kind for _, kind in documented]
        ])  # fmt: skip
        (kinds,) = cursor.fetchone()

    names = [name for name, _ in documented]
    assert dict(zip(names, kinds, strict=True)) == dict(zip(statement.parameters, inferred, strict=True))


@each_file
def test_the_header_says_scope_rows_and_locks_after_one_sentence(path):
    text = header(path)

    assert re.match(r"-- [A-Z][^\n]*(?:\n-- \S[^\n]*)?\.\n--\n", text), "one sentence, then a blank line"
    for word in ("Scope:", "Rows:", "Locks:"):
        assert len(re.findall(rf"^-- {word} ", text, re.M)) == 1, word


@each_file
def test_a_hot_statement_says_which_index_it_uses(path):
    text = header(path)

    assert ("Plan:   hot" in text) <= ("Index:" in text)


@each_statement
def test_a_kept_statement_is_short_enough_for_psycopg_to_read_it_once(statement):
    assert not statement.kept or len(statement.text) <= _queries.MAX_CACHED_STATEMENT_LENGTH


def test_what_is_written_for_people_is_not_sent():
    text = sql.load("settle").text

    assert text.startswith("with outcome as materialized (\nselect\nentry.*,")
    assert "/*" not in text
    assert "--" not in text


def test_what_a_trigger_on_jobs_calls_says_how_it_is_planned():
    """Claims and settles keep their plans, and a function within them would keep its own from an empty table."""
    functions = {
        name: settings
        for path in FUNCTIONS
        for name, settings in re.findall(
            r"^create function pgbroker\.(\w+)\([^)]*\) returns .*\n(language plpgsql [^$]*)",
            path.read_text(),
            re.M,
        )
    }
    triggers = (sql.FOLDER / "functions" / "job_events_1.sql").read_text()
    called = set(re.findall(r"\bpgbroker\.(\w+)\(", triggers)) - set(
        re.findall(r"(?:create|execute) function pgbroker\.(\w+)\(", triggers)
    )
    # Their text is put where they are called.
    called -= set(re.findall(r"^create function pgbroker\.(\w+)\(", LOOK_UPS.read_text(), re.M))

    assert "enqueue_exhausted_1" in called
    for name in called | {"job_after_update_all_1"}:
        assert re.search(r"set plan_cache_mode = force_(custom|generic)_plan", functions[name]), name


@each_statement
def test_a_statement_that_makes_edges_says_what_the_commit_does(statement):
    makes = r"pgbroker\.(enqueue_many|enqueue_linked_many|add_dependencies|(open|seal|cancel)_group)_1\("

    assert statement.deferred == bool(re.search(makes, statement.text))


@each_text
def test_a_status_number_carries_its_own_name(path):
    numbers = re.findall(r"\b(\d+) /\* ([a-z_ ]+) \*/", code(path))

    for number, name in numbers:
        known = {words.get(int(number)) for words in WORDS}
        assert name in known or EVENT_LABELS.get(int(number)) == name.replace(" ", "_"), (number, name)


@each_text
def test_no_status_number_stands_without_its_name(path):
    text = code(path)
    bare = re.findall(
        # A comparison, a list, or what a case yields for a status; 10 alone may divide live from ended.
        r"\b(?:next_)?(?:status|state)(?: \+ 0)? (?:=|<>|<|>|<=|>=) (\d+)\b(?! /\*)"
        r"|\b(?:status|state) in \((\d+)\b(?! /\*)",
        text,
    )

    assert [found for found in bare if found[0] != "10"] == []
    if path.stem not in NUMBERS_THAT_COUNT:
        assert not re.search(r"(?:then|else) \d+\b(?! /\*|\.\d)", text)


@each_text
def test_time_comes_from_the_statement_and_nothing_else(path):
    text = code(path)
    clocks = re.findall(
        r"\b(now\(|clock_timestamp|transaction_timestamp|current_timestamp|localtime\w*|timeofday)", text
    )

    assert set(clocks) <= ({"clock_timestamp"} if path.stem.startswith("uuid7") else set())


@each_text
def test_a_table_is_named_with_its_schema(path):
    text = code(path)
    tables = [
        "job", "job_payload", "job_state", "job_event", "job_counter", "job_type", "queue", "queue_priority",
        "pause", "idempotency", "execution", "worker", "leader", "queue_sample", "schedule", "schedule_run",
    ]  # fmt: skip
    bare = re.findall(rf"\b(?:from|join|into|update|using|on) (?:{'|'.join(tables)})\b(?!\.|\()", text)

    assert bare == []


@each_text
def test_rows_of_jobs_are_never_locked_for_update(path):
    """`for update` collides with the key-share lock that any open transaction may hold."""
    locks = re.findall(
        r"from pgbroker\.job\b[^;]*?\b(for (?:no key )?(?:update|share|key share)(?: of \w+)?(?: skip locked)?)",
        code(path),
    )

    for lock in locks:
        allowed = lock.startswith("for no key update") or lock.startswith("for update of held")
        assert allowed or (path.stem, lock) in SHARED, lock


@each_text
def test_keywords_are_lower_case(path):
    words = re.findall(
        r"\b(SELECT|FROM|WHERE|UPDATE|INSERT|DELETE|WITH|JOIN|AND|OR|NOT|NULL|CASE|SET)\b", code(path)
    )

    # As text that PostgreSQL prints, a bound of a partition is in upper case.
    assert [word for word in words if word != "FROM" or path.stem != "ensure_partitions_1"] == []


@each_statement
def test_a_statement_on_tenant_tables_declares_a_tenant_scope(statement):
    touched = re.search(
        r"pgbroker\.(job|job_payload|job_state|job_event|execution|idempotency|enqueue\w*|job_tag|"
        r"delete_queue_1|queue_reference_1|run_group|job_dependency|deferred_reference|resolve_\w+_1|reconcile_1|"
        r"unblock_1|\w+_group_1|add_dependencies_1|schedule|schedule_run|unresolved|dispatch_1|template_misfit_1|note_over_1)\b",
        statement.text,
    )

    assert (statement.scope != "none") == bool(touched) or statement.name == "ensure_partitions"

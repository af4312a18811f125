"""Values of every type in every field of an entry: whatever it holds, the call answers, and for each entry."""

from __future__ import annotations

import json
import time
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pgbroker.lifecycle.declare import DeclaredType, declare_types
from pgbroker.models import Job, JobPayload
from pgbroker.policy.backoff import Backoff
from tests.support.jobs import TYPE, guards_off, type_id

pytestmark = pytest.mark.django_db

FIELDS = (
    "id", "job_type", "queue", "args", "type_version", "options", "priority", "max_attempts", "available_at",
    "delay_seconds", "deadline_at", "deadline_seconds", "idempotency_key", "idempotency_scope", "window_seconds",
    "on_conflict", "principal", "correlation_id", "traceparent", "tags", "lane", "tenant", "tenant_id",
    "args_body",
)  # fmt: skip
CODES = {
    "created", "existing", "invalid_entry", "invalid_option", "invalid_argument", "unknown_job_type",
    "unknown_queue", "idempotency_conflict", "payload_too_large", "replaced", "not_replaceable",
}  # fmt: skip
GOOD = {"job_type": TYPE}


@pytest.fixture(autouse=True)
def declared() -> None:
    type_id()


class Raw(str):
    """JSON that Python would not write: a number with more digits than a double has."""


def enqueue(*entries: Any) -> list[tuple[int, Any, str, str | None]]:
    """Call the function with entries as they are, past all that Python checks."""
    text = ", ".join(entry if isinstance(entry, Raw) else json.dumps(entry) for entry in entries)
    with connection.cursor() as cursor:
        cursor.execute("select * from pgbroker.enqueue_many_1(%s::jsonb)", [f"[{text}]"])
        return cursor.fetchall()


def test_a_key_that_means_nothing_refuses_its_own_entry():
    """A misspelt priority must not be a priority left out."""
    wrong = {**GOOD, "prioritty": 5}
    first, refused, unreadable, last = enqueue(GOOD, wrong, {**GOOD, "priority": "x"}, GOOD)

    assert [first[2], last[2]] == ["created"] * 2
    assert refused[2:] == (
        "invalid_option",
        'there is no key "prioritty". Use args, args_body, available_at, correlation_id, deadline_at, '
        "deadline_seconds, delay_seconds, depends_on, group, id, idempotency_key, idempotency_scope, job_type, lane, "
        "max_attempts, name, on_conflict, on_failure, options, principal, priority, queue, tags, traceparent, "
        "type_version, window_seconds.",
    )
    assert unreadable[2] == "invalid_option"
    assert [each[2] for each in enqueue(wrong)] == ["invalid_option"]


# ------------------------------------------------------------------ one wrong value

NUMBERS = ("priority", "max_attempts", "type_version", "delay_seconds", "deadline_seconds", "window_seconds")
TEXTS = ("idempotency_key", "principal", "correlation_id", "traceparent", "lane")
WRONG = [
    *((field, wrong) for field in NUMBERS for wrong in ("x", "", True, [], {}, 1e30, -1e30, "1e400", "NaN")),
    *((field, 1.5) for field in ("priority", "max_attempts", "type_version")),
    *((field, wrong) for field in ("priority", "max_attempts", "type_version") for wrong in (2**31, -(2**63))),
    ("type_version", 0),
    ("type_version", -1),
    *(("id", wrong) for wrong in ("zz", "", 7, False, [], {}, "g" * 36, "-" * 36)),
    *(
        (field, wrong)
        for field in ("available_at", "deadline_at")
        for wrong in (
            "soon", "", 5, True, [], {}, "2027-02-29T00:00:00Z", "2027-13-01T00:00:00Z", "infinity",
            "9999999-01-01T00:00:00Z", "0000-01-01T00:00:00Z", "2027-01-01T00:00:00+99:00",
        )
    ),
    *((field, wrong) for field in TEXTS for wrong in (7, -7.5, True, False, [], {}, ["a"], {"a": "b"})),
    *((field, wrong) for field in ("idempotency_scope", "on_conflict") for wrong in (7, True, [], {}, "x")),
    *(("tags", wrong) for wrong in ("x", 7, True, {}, [7], [None], [["a"]], [["a"], "b"], [{}], [[[[[[[1]]]]]]])),
    *(("options", wrong) for wrong in ("x", 7, True, [])),
    *(("args_body", wrong) for wrong in ("", 7, True, [], {}, "acme/x", "../x")),
    *(("args", wrong) for wrong in ("x", 7, True, [])),
    *((field, wrong) for field in ("tenant", "tenant_id") for wrong in ("acme", 7, [], {})),
]  # fmt: skip


@pytest.mark.parametrize(("field", "wrong"), WRONG, ids=lambda value: json.dumps(value)[:30])
def test_a_value_that_does_not_fit_is_refused_by_name_and_sinks_no_other_entry(field, wrong):
    first, refused, last = enqueue(GOOD, {**GOOD, field: wrong}, GOOD)

    assert (first[2], last[2]) == ("created", "created")
    assert refused[2] == ("invalid_argument" if field == "args" else "invalid_option")
    assert field.removesuffix("_id" if field == "tenant_id" else "") in refused[3]
    assert len(refused[3]) < 300
    assert Job.objects.count() == JobPayload.objects.count() == 2


@pytest.mark.parametrize(("field", "wrong"), [("job_type", 7), ("job_type", []), ("queue", {}), ("queue", 7)])
def test_a_name_that_is_no_string_is_nobodys_name(field, wrong):
    first, refused = enqueue(GOOD, {**GOOD, field: wrong})

    assert (first[2], refused[2]) == ("created", f"unknown_{field}")


@pytest.mark.parametrize("entry", [None, 7, "x", True, [], [GOOD], [[]]], ids=repr)
def test_an_entry_that_is_no_object_is_refused_in_its_place(entry):
    first, refused, last = enqueue(GOOD, entry, GOOD)

    assert [first[:1] + first[2:3], refused[:1] + refused[2:3], last[:1] + last[2:3]] == [
        (1, "created"),
        (2, "invalid_entry"),
        (3, "created"),
    ]
    assert "object" in refused[3]


@pytest.mark.parametrize("number", ["1e400", "-1e131000", "1e-400", "0.1e-16000"])
@pytest.mark.parametrize("field", NUMBERS)
def test_a_number_that_no_type_holds_is_refused(field, number):
    first, refused = enqueue(GOOD, Raw(f'{{"job_type": "{TYPE}", "{field}": {number}}}'))

    assert (first[2], refused[2]) == ("created", "invalid_option")
    assert field in refused[3]
    assert len(refused[3]) < 300


def test_a_refused_entry_takes_no_key_and_the_next_with_the_same_key_is_the_first():
    refused, made, again = enqueue(
        {**GOOD, "idempotency_key": "k", "priority": "x"},
        {**GOOD, "idempotency_key": "k"},
        {**GOOD, "idempotency_key": "k"},
    )

    assert [refused[2], made[2], again[2]] == ["invalid_option", "created", "existing"]
    assert made[1] == again[1] != refused[1]


def test_an_entry_is_read_the_same_whether_or_not_its_neighbour_can_be():
    entry = {
        **GOOD, "priority": "5", "available_at": "2099-01-01 12:00", "id": "00000000000070008000000000000001",
    }  # fmt: skip

    (alone,) = enqueue(entry)
    stored = Job.objects.values("id", "priority", "available_at").get()
    with guards_off():
        Job.objects.all().delete()
        JobPayload.objects.all().delete()
    beside, refused = enqueue(entry, {**GOOD, "priority": "x"})

    assert alone == beside
    assert refused[2] == "invalid_option"
    assert Job.objects.values("id", "priority", "available_at").get() == stored


def test_many_entries_that_cannot_be_read_are_each_answered():
    entries = [GOOD if place % 2 else {**GOOD, "priority": "x"} for place in range(200)]

    answers = enqueue(*entries)

    assert [answer[2] for answer in answers] == ["invalid_option", "created"] * 100


@pytest.mark.parametrize("name", ["priority", "max_attempts"])
@pytest.mark.parametrize("value", ["x", [], {}, True, None, 1e30])
def test_a_declared_default_that_cannot_be_read_is_as_good_as_none(name, value):
    declare_types([DeclaredType(TYPE, 2, (), {name: value})])

    (answer,) = enqueue(GOOD)

    assert answer[2] == "created"


# ------------------------------------------------------------------ too much

MANY = ", ".join(["1e131071"] * 9000)
ENVELOPE = {"v": 1, "args": [], "kwargs": {}}


SLOW = pytest.mark.slow  # a gigabyte takes its time


@pytest.mark.parametrize(
    ("fields", "code", "word"),
    [
        pytest.param(f'"args": {{"v": 1, "args": [{MANY}]}}', "payload_too_large", "64 MiB", id="args", marks=SLOW),
        pytest.param(
            f'"args": {{"v": 1, "args": [{MANY[:9998]}]}}', "payload_too_large", "64 MiB", id="args below 1 GiB"
        ),
        pytest.param(
            f'"args": {{"v": 1, "args": [{MANY[:9998]}]}}, "idempotency_key": "k"', "payload_too_large", "64 MiB",
            id="args, key",
        ),
        pytest.param(
            f'"options": {{"backoff": [{MANY}]}}, "idempotency_key": "k"', "invalid_option", "64 KiB",
            id="options, key", marks=SLOW,
        ),
        pytest.param('"options": {"timeout": 1e131071}', "invalid_option", "64 KiB", id="timeout"),
        pytest.param(f'"correlation_id": [{MANY}]', "invalid_option", "correlation_id", id="text", marks=SLOW),
        pytest.param(f'"tags": [{MANY}]', "invalid_option", "tags", id="tags"),
    ],
)  # fmt: skip
def test_a_few_bytes_that_are_a_gigabyte_of_text_are_refused_alone(fields, code, word):
    first, refused, last = enqueue(GOOD, Raw(f'{{"job_type": "{TYPE}", {fields}}}'), GOOD)

    assert (first[2], last[2]) == ("created", "created")
    assert refused[2] == code
    assert word in refused[3]
    assert len(refused[3]) < 300


def test_arguments_are_measured_as_text_and_not_by_what_they_take():
    large, small = ({**GOOD, "args": {**ENVELOPE, "args": ["x" * size]}} for size in (68_000_000, 100_000))

    assert [answer[2] for answer in enqueue(large, small)] == ["payload_too_large", "created"]


@pytest.mark.parametrize("field", ["principal", "correlation_id", "traceparent", "lane"])
@pytest.mark.parametrize("length", [0, 256])
def test_a_text_has_1_to_255_characters(field, length):
    fits, refused = enqueue({**GOOD, field: "é" * 255}, {**GOOD, field: "é" * length})

    assert (fits[2], refused[2]) == ("created", "invalid_option")
    assert refused[3] == f"{field} is empty or longer than 255 characters"


@pytest.mark.parametrize("tags", ["{a,b}", "{}", "{{a},{b}}", "[1:1]={a}"])
def test_tags_in_a_string_are_no_array(tags):
    first, refused = enqueue(GOOD, {**GOOD, "tags": tags})

    assert (first[2], refused[2]) == ("created", "invalid_option")
    assert refused[3] == "tags is of type string. Give an array of strings."


# ------------------------------------------------------------------ what a worker can read


@pytest.mark.parametrize(
    "args",
    [
        {}, {"number": "x"}, {"kwargs": {}}, {**ENVELOPE, "v": 2}, {**ENVELOPE, "v": "1"}, {**ENVELOPE, "v": 1.0},
        {**ENVELOPE, "v": True}, {**ENVELOPE, "v": None}, {**ENVELOPE, "args": {}}, {**ENVELOPE, "args": None},
        {**ENVELOPE, "kwargs": []}, {**ENVELOPE, "kwargs": None}, {**ENVELOPE, "number": "x"},
        {"v": 2, "sha256": "0" * 64, "bytes": 7},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_arguments_that_no_worker_reads_are_refused_with_the_form_they_take(args):
    first, refused = enqueue(GOOD, {**GOOD, "args": args})

    assert (first[2], refused[2]) == ("created", "invalid_argument")
    assert '{"v": 1, "args": [...], "kwargs": {...}}' in refused[3]


@pytest.mark.parametrize(
    "args", [{"v": 1}, {"v": 1, "args": [1]}, {"v": 1, "kwargs": {"v": 2}}], ids=json.dumps
)
def test_arguments_may_leave_out_what_is_empty(args):
    assert [answer[2] for answer in enqueue({**GOOD, "args": args})] == ["created"]


def test_only_a_stub_stands_for_a_body():
    named = {**GOOD, "args_body": "pgbroker/default/x"}
    stub, envelope, nothing = enqueue(
        {**named, "args": {"v": 2, "sha256": "0" * 64, "bytes": 7}}, {**named, "args": ENVELOPE}, named
    )

    assert [stub[2], envelope[2], nothing[2]] == ["created", "invalid_argument", "invalid_argument"]
    assert "stub" in envelope[3]


def test_an_unknown_key_in_options_refuses_its_own_entry():
    first, refused = enqueue(
        {**GOOD, "options": {"timeout": 5, "backoff": Backoff().as_json()}},
        {**GOOD, "options": {"time_out": 5}},
    )

    assert (first[2], refused[2:]) == (
        "created",
        ("invalid_option", 'there is no key "time_out" in options. Use backoff, on_exhausted, timeout.'),
    )


# ------------------------------------------------------------------ many entries


@pytest.mark.slow
def test_an_entry_with_countless_unknown_keys_is_not_looked_at_again():
    countless = {**GOOD, **dict.fromkeys(map(str, range(200_000)), 1), "priority": "x"}
    begun = time.monotonic()

    answers = enqueue(countless, {**GOOD, "priority": "x"}, GOOD)

    assert [answer[2] for answer in answers] == ["invalid_option", "invalid_option", "created"]
    assert "there is no key" in answers[0][3]
    assert time.monotonic() - begun < 5


@pytest.mark.slow
def test_one_id_that_exists_does_not_make_a_large_call_slow():
    (there,) = enqueue(GOOD)
    entries = [{**GOOD, "id": str(there[1])}, *[GOOD] * 20_000]
    begun = time.monotonic()

    answers = enqueue(*entries)

    assert answers[0][1:3] == (there[1], "existing")
    assert {answer[2] for answer in answers[1:]} == {"created"}
    assert [answer[0] for answer in answers] == list(range(1, 20_002))
    assert time.monotonic() - begun < 8


# ------------------------------------------------------------------ any value

NUL_FREE = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)
TELLING = st.sampled_from([
    "", "x", "5", "-5", "1e5", "1.5", "NaN", "infinity", "-infinity", "tomorrow", "2027-02-30",
    "2027-01-01T00:00:00+16:00", "2027-01-01T00:00:00Z", "{", "{}", "[", "[1]", "{a,b}", "null", "true",
    "9" * 400, "held", "window", "reject", "replace", TYPE, "default", "00000000-0000-7000-8000-000000000001",
    "'", "%", "\\",
])  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | NUL_FREE
    | TELLING
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NUL_FREE, inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.fixed_dictionaries(
    {}, optional={**dict.fromkeys(FIELDS, VALUES), "nobody knows": VALUES}
) | st.fixed_dictionaries(
    {"job_type": st.just(TYPE)}, optional=dict.fromkeys(set(FIELDS) - {"job_type", "queue"}, VALUES)
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # each example rolls back what it made
@given(entries=st.lists(ENTRIES | VALUES, max_size=4))
@example(entries=[{**GOOD, "priority": 1e30}])
def test_whatever_an_entry_holds_the_call_answers_for_each_in_order(entries):
    with transaction.atomic():
        answers = enqueue(GOOD, *entries, GOOD)

        assert [answer[0] for answer in answers] == list(range(1, len(entries) + 3))
        assert {answer[2] for answer in answers} <= CODES
        assert (answers[0][2], answers[-1][2]) == ("created", "created")
        for _, job_id, outcome, detail in answers:
            assert (outcome in ("created", "existing")) == (detail is None)
            if outcome in ("created", "replaced"):
                assert Job.objects.filter(pk=job_id).exists()
                assert JobPayload.objects.filter(pk=job_id).exists()
        # What was stored can be read.
        list(Job.objects.all())
        list(JobPayload.objects.all())
        transaction.set_rollback(True)


# ------------------------------------------------------------------ the call as a whole


def refused_call(sql: str, *parameters: object) -> tuple[str, str]:
    """Run a call that must be refused as a whole; returns its hint and its message."""
    with pytest.raises(DatabaseError) as caught, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql, parameters)
    assert caught.value.__cause__.sqlstate == "PB001"
    return caught.value.__cause__.diag.message_hint, caught.value.__cause__.diag.message_primary


@pytest.mark.parametrize("jobs", ["{}", "7", '"x"', "null", '{"job_type": "tests.ok"}'])
def test_a_call_without_an_array_is_refused_and_says_so(jobs):
    hint, message = refused_call("select * from pgbroker.enqueue_many_1(%s)", jobs)

    assert (hint, "array" in message) == ("invalid_argument", True)


@pytest.mark.parametrize(
    "call", [f"enqueue('{TYPE}')", f"""enqueue_many_1('[{{"job_type": "{TYPE}"}}]')"""], ids=["one", "many"]
)
def test_a_session_whose_tenant_is_no_tenant_id_is_told_so(call):
    with transaction.atomic(), connection.cursor() as cursor:
        # The driver's own cursor: Django's sets the tenant of the test with each statement.
        cursor.cursor.execute("select set_config('pgbroker.tenant_id', 'a b', true)")
        with pytest.raises(psycopg.Error) as caught:
            cursor.cursor.execute(f"select pgbroker.{call}")
        transaction.set_rollback(True)

    assert (caught.value.sqlstate, caught.value.diag.message_hint) == ("PB001", "invalid_tenant")


@pytest.mark.parametrize(
    ("argument", "hint", "word"),
    [
        ("priority => 2147483647", "invalid_option", "priority"),
        ("max_attempts => -1", "invalid_option", "max_attempts"),
        ("run_after => 'infinity'", "invalid_option", "available_at"),
        ("run_after => '0044-03-15 BC'", "invalid_option", "available_at"),
        ("run_after => '12000-01-01'", "invalid_option", "available_at"),
        ("deadline => '-infinity'", "invalid_option", "deadline_at"),
        ("options => '5'", "invalid_option", "options"),
        ("options => '[]'", "invalid_option", "options"),
        ("kwargs => '5'", "invalid_argument", "kwargs"),
        ("kwargs => null", "invalid_argument", "kwargs"),
        ("idempotency_key => ''", "invalid_option", "idempotency_key"),
        ("idempotency_scope => '{'", "invalid_option", "idempotency_scope"),
        ("on_conflict => ''", "invalid_option", "on_conflict"),
        ("queue => ''", "unknown_queue", "queue"),
        ("job_type => null", "unknown_job_type", "job type"),
    ],
)
def test_the_single_call_refuses_with_the_same_codes(argument, hint, word):
    named = argument if argument.startswith("job_type") else f"'{TYPE}', {argument}"

    code, message = refused_call(f"select pgbroker.enqueue({named})")

    assert (code, word in message) == (hint, True)
    assert Job.objects.count() == 0

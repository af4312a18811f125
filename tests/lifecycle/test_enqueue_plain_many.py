"""enqueue of many plain jobs: the short way stores what the long way would, all of it or nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgbroker import enqueue_many, job, payload, registry
from pgbroker.lifecycle.declare import DeclaredType, declare_types
from pgbroker.lifecycle.enqueue import Enqueued, enqueue_rows
from pgbroker.models import Job, JobEvent, JobPayload, QueuePriority
from pgbroker.tenancy import tenant_context
from tests.support.crash import statements_run
from tests.support.jobs import QUEUE, TYPE, queue_id, type_id
from tests.support.plain import ENVELOPE, plain, ways
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db


@job(name="tests.plain_many.add", queue_name="plain-many")
def add(a: int, b: int) -> None:
    """Do nothing."""


@job(name="tests.plain_many.keep", queue_name="plain-many")
def keep(text: str) -> None:
    """Do nothing."""


SHORT, BOTH = ["enqueue_plain_many"], ["enqueue_plain_many", "enqueue_many"]


@pytest.fixture(autouse=True)
def declared() -> None:
    type_id()


def the_long_way(rows: list[dict[str, Any]]) -> list[Enqueued]:
    """Enqueue rows with one among them that is not plain, and leave that one's answer out."""
    first, *answers = enqueue_rows([plain(args=ENVELOPE, delay_seconds=60), *rows])
    assert first.outcome == "created"
    return [answer._replace(ordinal=answer.ordinal - 1) for answer in answers]


def stored(answers: list[Enqueued]) -> list[dict[str, Any]]:
    """Return what is stored of jobs, in order, without what differs from call to call."""
    ids = [answer.job_id for answer in answers]
    jobs, payloads = Job.objects.in_bulk(ids), JobPayload.objects.in_bulk(ids)
    rows = []
    for answer in answers:
        row = {
            field.attname: getattr(each, field.attname)
            for each in (jobs[answer.job_id], payloads[answer.job_id])
            for field in each._meta.concrete_fields
        }
        assert row.pop("created_at") == answer.created_at
        row["ready_after"] = row.pop("ready_at") - answer.created_at
        del row["id"], row["job_id"]
        rows.append(row)
    return rows


def told(answers: list[Enqueued]) -> list[tuple[Any, ...]]:
    return [(answer.ordinal, answer.outcome, answer.detail) for answer in answers]


# ------------------------------------------------------------------ the same rows

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(-1e15, 1e15) | st.text(
        st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcé"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
CALLS = st.lists(
    st.tuples(st.lists(JSON, max_size=2), st.dictionaries(st.sampled_from("xyz"), JSON)), min_size=2
)
SAID = st.fixed_dictionaries(
    {"type_version": st.integers(1, 2**31 - 1), "max_attempts": st.integers(1, 10_000)},
    optional={
        name: st.none() | st.text(st.sampled_from("ab-é"), min_size=1, max_size=255)
        for name in ("principal", "correlation_id", "traceparent")
    },
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=CALLS, said=SAID, as_text=st.booleans())
def test_both_ways_store_the_same_and_answer_the_same(calls, said, as_text):
    envelopes = [{"v": 1, "args": one, "kwargs": two} for one, two in calls]
    args = [
        {"args": "absent", "args_text": payload._dump(each)} if as_text else {"args": each}
        for each in envelopes
    ]
    queue_id("narrow")

    with tenant_context("acme"):
        enqueue_rows([plain(queue="narrow")])  # its priority is known from here on
        answers, statements = ways([plain(**each, queue="narrow", **said) for each in args])
        twins = the_long_way([plain(**each, queue="narrow", **said) for each in args])
        left, right = stored(answers), stored(twins)

    printable = all(value is None or str(value).isascii() for value in said.values())
    assert statements == (SHORT if printable else ["enqueue_many"])
    assert told(answers) == told(twins)
    # The twins stand one place further on: behind the one that made their call go the long way.
    microsecond = timedelta(microseconds=1)
    assert left == [{**row, "ready_after": row["ready_after"] - microsecond} for row in right]
    assert {row["tenant_id"] for row in left} == {"acme"}


def test_jobs_are_ready_one_microsecond_after_the_other():
    answers, statements = ways([plain() for _ in range(3)])

    assert statements == SHORT
    assert [row["ready_after"] / timedelta(microseconds=1) for row in stored(answers)] == [1, 2, 3]
    assert [answer.ordinal for answer in answers] == [1, 2, 3]


# ------------------------------------------------------------------ what goes the long way at once


@pytest.mark.parametrize(
    "changes",
    [
        {"priority": 5},
        {"priority": False},
        {"priority": 0.0},
        {"type_version": 4},
        {"principal": "ada"},
        {"queue": "other"},
        {"delay_seconds": 60},
        {"idempotency_key": "k"},
        {"id": "absent"},
        {"args": "absent"},
        {"id": "no uuid"},
        {"lane": "l", "args": "absent"},
        {"args_text": '{"v":1,"args":[],"kwargs":{}}'},
        {"max_attempts": "absent", "principal": "ada"},
    ],
    ids=str,
)
def test_a_row_that_says_something_else_takes_all_of_them_the_long_way(changes):
    _, statements = ways([plain(), plain(), plain(**changes)])

    assert statements == ["enqueue_many"]


# ------------------------------------------------------------------ one that is not right

DOES_NOT_FIT = [
    ({"args": {"v": 2}}, "invalid_argument"),
    ({"args": {"v": 1.0, "args": [], "kwargs": {}}}, "invalid_argument"),
    ({"args": {"v": 1, "args": {}, "kwargs": {}}}, "invalid_argument"),
    ({"args": {"v": 1, "args": [], "kwargs": {}, "more": 1}}, "invalid_argument"),
    ({"args": [1]}, "invalid_argument"),
    ({"args": 5}, "invalid_argument"),
    ({"args": None}, "created"),
]


@pytest.mark.parametrize(("changes", "outcome"), DOES_NOT_FIT, ids=str)
def test_one_that_no_worker_could_read_is_refused_alone_as_on_the_long_way(changes, outcome):
    answers, statements = ways([plain(), plain(**changes), plain()])
    twins = the_long_way([plain(), plain(**changes), plain()])

    assert statements == BOTH
    assert told(answers) == told(twins)
    assert [answer.outcome for answer in answers] == ["created", outcome, "created"]
    made = [answer for answer in answers if answer.made]
    assert Job.objects.filter(pk__in=[answer.job_id for answer in made]).count() == len(made)
    assert Job.objects.count() == JobPayload.objects.count() == 2 * len(made) + 1


@pytest.mark.parametrize("changes", [change for change, _ in DOES_NOT_FIT], ids=str)
def test_alone_it_is_refused_too(changes):
    assert told(enqueue_rows([plain(**changes)])) == told(the_long_way([plain(**changes)]))


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"job_type": "nobody.knows"}, "unknown_job_type"),
        ({"queue": "nowhere"}, "unknown_queue"),
        ({"priority": 101}, "invalid_option"),
        ({"max_attempts": 0}, "invalid_option"),
        ({"type_version": 0}, "invalid_option"),
        ({"correlation_id": "x" * 256}, "invalid_option"),
        ({"principal": ""}, "invalid_option"),
        ({"traceparent": "x" * 256}, "invalid_option"),
    ],
    ids=str,
)
def test_what_breaks_a_rule_for_all_is_explained_for_each(changes, outcome):
    answers, statements = ways([plain(**changes), plain(**changes)])

    assert statements == BOTH
    assert [answer.outcome for answer in answers] == [outcome] * 2
    assert all(answer.detail for answer in answers)
    assert Job.objects.count() == JobPayload.objects.count() == 0


def test_a_priority_that_the_queue_has_not_seen_is_told_to_claims():
    assert ways([plain(priority=42), plain(priority=42)])[1] == BOTH
    assert QueuePriority.objects.filter(queue_id=queue_id(), priority=42).count() == 1
    assert ways([plain(priority=42), plain(priority=42)])[1] == SHORT


def test_a_name_that_another_type_took_over_means_that_one():
    heir = declare_types([DeclaredType("tests.heir", 1, (TYPE,), {})])["tests.heir"]

    answers, statements = ways([plain(), plain()])

    assert statements == BOTH
    assert set(Job.objects.values_list("job_type_id", flat=True)) == {heir}
    assert len(answers) == 2


def test_a_type_whose_declaration_has_tags_gives_them_to_plain_calls_too():
    declare_types([DeclaredType(TYPE, 2, (), {"tags": ["nightly"]})])

    _, statements = ways([plain(), plain()])

    assert statements == BOTH
    assert list(JobPayload.objects.values_list("tags", flat=True)) == [["nightly"]] * 2


# ------------------------------------------------------------------ an id that is taken


def test_a_repeated_call_with_the_same_ids_finds_its_jobs():
    rows = [plain() for _ in range(3)]
    first, _ = ways(rows)

    again, statements = ways([*rows, plain()])

    assert statements == BOTH
    assert [answer.outcome for answer in again] == ["existing"] * 3 + ["created"]
    assert [answer.job_id for answer in again[:3]] == [answer.job_id for answer in first]
    assert Job.objects.count() == 4


def test_of_two_that_have_one_id_the_first_is_made():
    row = plain()

    answers, statements = ways([row, plain(), {**row}, plain(id=row["id"], args={"v": 1})])

    assert statements == BOTH
    assert [answer.outcome for answer in answers] == ["created", "created", "existing", "invalid_option"]


def test_another_tenants_id_is_not_told_of_and_the_job_gets_a_new_one():
    rows = [plain(), plain()]
    with tenant_context("other"):
        enqueue_rows(rows[:1])

    answers, statements = ways(rows)

    assert statements == BOTH
    assert [answer.outcome for answer in answers] == ["created", "created"]
    assert [str(answer.job_id) == row["id"] for answer, row in zip(answers, rows, strict=True)] == [
        False,
        True,
    ]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.django_db(transaction=True)
def test_an_id_that_another_transaction_is_just_storing_is_waited_for(commits):
    rows = [plain() for _ in range(3)]
    with second_session(tenant="other") as storing:
        with storing.transaction(force_rollback=not commits):
            storing.execute(
                "select * from pgbroker.enqueue_many_1(jsonb_build_array(jsonb_build_object('id', %s::text, "
                "'job_type', %s::text)))",
                (rows[1]["id"], TYPE),
            )
            waiting = InThread(lambda: ways(rows)).start()
            wait_until_blocked(waiting, storing)
        answers, statements = waiting.result()

    assert statements == (BOTH if commits else SHORT)
    assert [answer.outcome for answer in answers] == ["created"] * 3
    assert (str(answers[1].job_id) == rows[1]["id"]) is not commits
    assert Job.objects.count() == JobPayload.objects.count() == 3


@pytest.mark.django_db(transaction=True)
def test_at_repeatable_read_an_id_that_was_stored_since_is_a_serialisation_error():
    """As on the long way: the transaction must be run again, since it cannot see whose the id is."""
    rows = [plain(), plain()]
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("set transaction isolation level repeatable read")
            cursor.execute("select count(*) from pgbroker.job")
        InThread(lambda: enqueue_rows(rows[:1])).start().result()
        with pytest.raises(OperationalError, match="could not serialize"):
            enqueue_rows(rows)
        transaction.set_rollback(True)


# ------------------------------------------------------------------ in the caller's transaction


def test_what_the_short_way_gave_up_leaves_the_callers_transaction_and_its_savepoints_alone():
    queue_id("before")
    with transaction.atomic():
        kept = enqueue_rows([plain(), plain()])
        with transaction.atomic():
            ways([plain(), plain(args={"v": 2})])
            transaction.set_rollback(True)
        with transaction.atomic():
            inner, statements = ways([plain(), plain(args={"v": 2})])
        after = enqueue_rows([plain(), plain()])

    assert statements == BOTH
    assert set(Job.objects.values_list("pk", flat=True)) == {
        answer.job_id for answer in [*kept, *inner, *after] if answer.made
    }


def test_the_history_has_what_was_stored_and_not_what_was_given_up(settings):
    settings.PGBROKER = {**settings.PGBROKER, "EVENTS": "all"}

    answers, statements = ways([plain(), plain(args={"v": 2}), plain()])

    assert statements == BOTH
    assert set(JobEvent.objects.values_list("job_id", flat=True)) == {
        answer.job_id for answer in answers if answer.made
    }
    ways([plain(), plain()])
    assert JobEvent.objects.count() == 4


# ------------------------------------------------------------------ from Python


def test_calls_of_one_task_take_one_statement_and_each_has_its_arguments():
    registry.synchronise(using="default")
    enqueue_many([add.bind(0, 0)])  # the queue has had a job of this priority
    with statements_run() as statements:
        outcomes = enqueue_many([add.bind(n, b=-n) for n in range(5)])

    assert [name for name in statements if name != "notify"] == SHORT
    assert {outcome.outcome for outcome in outcomes} == {"created"}
    stored_args = JobPayload.objects.in_bulk([outcome.job_id for outcome in outcomes])
    assert [stored_args[outcome.job_id].args for outcome in outcomes] == [
        {"v": 1, "args": [n], "kwargs": {"b": -n}} for n in range(5)
    ]
    assert all(isinstance(outcome.job_id, UUID) for outcome in outcomes)


def test_a_call_is_cut_where_its_arguments_weigh_too_much_for_one_statement(monkeypatch):
    """The server reads no array of JSON beyond 256 MB; each statement has to stay well below."""
    monkeypatch.setattr("pgbroker.bulk.CHARACTERS_PER_STATEMENT", 1_000)

    with statements_run() as statements:
        outcomes = enqueue_many(
            [keep.bind(str(number) * size) for number, size in enumerate((300, 300, 300, 2_000, 9, 9))]
        )

    assert statements.count("enqueue_plain_many") == 2
    assert statements.count("enqueue_plain") == 1
    stored = {each.pk: each.args["args"][0] for each in JobPayload.objects.all()}
    assert [stored[each.job_id][0] for each in outcomes] == ["0", "1", "2", "3", "4", "5"]


# ------------------------------------------------------------------ rows that somebody wrote in SQL


@pytest.mark.parametrize("function", ["enqueue_plain_1", "enqueue_plain_many_1"])
def test_arguments_from_a_table_are_measured_as_they_are_and_not_as_they_are_compressed(function):
    """A claim that has to write out more than a gigabyte never ends well, and every claim of the queue has to."""
    enqueue_rows([plain()])
    given = (
        "gen_random_uuid(), {}, args"
        if function == "enqueue_plain_1"
        else "array[gen_random_uuid()], {}, jsonb_build_array(args)"
    )
    with connection.cursor() as cursor:
        cursor.execute("create temporary table large (args jsonb) on commit drop")
        cursor.execute(
            "insert into large select jsonb_build_object('v', 1, 'kwargs', '{}'::jsonb, 'args', "
            "(select jsonb_agg(1e131071::numeric) from generate_series(1, %s)))",
            [9_000],
        )
        cursor.execute("select pg_column_size(args) < 6000 from large")
        assert cursor.fetchone() == (True,)

        call = f"pgbroker.{function}({given.format('%s, %s')}, 1, 0, 5, null, null, null)"
        cursor.execute(f"select {call} from large", [TYPE, QUEUE])
        assert cursor.fetchone() == (None,)

    assert Job.objects.count() == 1


def test_ids_that_are_no_list_of_ids_are_left_to_the_long_way():
    enqueue_rows([plain()])
    with connection.cursor() as cursor:
        for function, ids in (
            ("enqueue_plain_1", "null::uuid"),
            ("enqueue_plain_many_1", "array[null]::uuid[]"),
            ("enqueue_plain_many_1", "'[-5:-5]={NULL}'::uuid[]"),
            ("enqueue_plain_many_1", "array[array[gen_random_uuid()]]"),
        ):
            arguments = '{"v": 1}' if function == "enqueue_plain_1" else '[{"v": 1}]'
            cursor.execute(
                f"select pgbroker.{function}({ids}, %s, %s, %s::jsonb, 1, 0, 5, null, null, null)",
                [TYPE, QUEUE, arguments],
            )
            assert cursor.fetchone() == (None,)


@pytest.mark.parametrize("more", [{}, {"delay_seconds": 60}], ids=["short", "long"])
def test_arguments_that_somebody_stored_for_an_id_are_not_those_of_its_job(more):
    row = plain(**more)
    with tenant_context("evil"), connection.cursor() as cursor:
        cursor.execute(
            "insert into pgbroker.job_payload (job_id, tenant_id, args) values (%s, 'evil', '{}')",
            [row["id"]],
        )

    with pytest.raises(IntegrityError), transaction.atomic(), tenant_context("good"):
        enqueue_rows([row])

    assert not Job.objects.exists()

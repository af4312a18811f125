"""Tags: what may be one, where they are stored, and that a list by tag is exact, in order and by its index."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, connection, transaction

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.declare import DeclaredType, declare_types
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.lifecycle.retry import retry_many
from pgbroker.models import JobPayload, JobTag
from pgbroker.reports import count_ended, list_jobs
from pgbroker.states import Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import (
    OTHER_TYPE,
    TYPE,
    claim_one,
    enqueue_one,
    queue_id,
    type_id,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def declared() -> None:
    type_id()


def findable() -> dict[UUID, set[str]]:
    """Tell by which tags each job is found."""
    found: dict[UUID, set[str]] = {}
    with scope_all():
        for tag, job_id in JobTag.objects.values_list("tag", "job_id"):
            found.setdefault(job_id, set()).add(tag)
    return found


def tagged(tag: str, **filters) -> list[UUID]:
    return [each.id for each in list_jobs(tag=tag, using="default", **{"limit": 50, **filters})]


# ------------------------------------------------------------------ what is stored


def test_tags_are_stored_with_the_job_once_each_in_their_order_and_by_each_it_is_found():
    job_id = enqueue_one(tags=["b", "customer:7", "b", "a"])

    assert JobPayload.objects.get(pk=job_id).tags == ["b", "customer:7", "a"]
    assert findable() == {job_id: {"a", "b", "customer:7"}}
    assert claim_one().tags == ["b", "customer:7", "a"]


@pytest.mark.parametrize("tags", [None, []])
def test_a_job_without_tags_has_none_anywhere(tags):
    job_id = enqueue_one(tags=tags)

    assert JobPayload.objects.get(pk=job_id).tags is None
    assert findable() == {}
    assert claim_one().tags is None


def test_the_tags_of_the_declaration_are_those_of_a_call_that_gives_none():
    declare_types([DeclaredType(TYPE, 2, (), {"tags": ["nightly", "billing"]})])

    default, own, none = enqueue_rows(
        [{"job_type": TYPE}, {"job_type": TYPE, "tags": ["own"]}, {"job_type": TYPE, "tags": []}]
    )

    assert findable() == {default.job_id: {"nightly", "billing"}, own.job_id: {"own"}}
    assert JobPayload.objects.get(pk=none.job_id).tags is None


@pytest.mark.parametrize("wrong", [[7], "x", {}, ["a"] * 21, ["\x7f"], None, [None]])
def test_declared_tags_that_are_none_are_as_good_as_none(wrong):
    declare_types([DeclaredType(TYPE, 2, (), {"tags": wrong})])

    enqueue_one()

    assert findable() == {}


def test_only_the_jobs_that_a_call_makes_get_its_tags():
    """Not the holder of a key, not a job that has the id already, of ours or of another tenant."""
    held = enqueue_one(idempotency_key="k")
    there = enqueue_one()
    with tenant_context("bolt"):
        theirs = enqueue_one()
    fresh = str(uuid4())
    row = {"job_type": TYPE, "tags": ["new"]}

    answers = enqueue_rows(
        [
            {**row, "idempotency_key": "k"},
            {**row, "id": str(there)},
            {**row, "id": str(theirs)},
            {**row, "priority": 101},
            {**row, "id": fresh},
            {**row, "id": fresh, "tags": ["later"]},
        ]
    )

    assert [answer.outcome for answer in answers] == [
        "existing", "existing", "created", "invalid_option", "created", "existing",
    ]  # fmt: skip
    assert (answers[0].job_id, answers[1].job_id) == (held, there)
    assert findable() == {answers[2].job_id: {"new"}, UUID(fresh): {"new"}}


def test_a_job_that_replaces_another_has_its_own_tags():
    row = {"job_type": TYPE, "idempotency_key": "k", "on_conflict": "replace"}
    first, second = enqueue_rows([{**row, "tags": ["a"]}, {**row, "tags": ["b"]}])

    assert findable() == {first.job_id: {"a"}, second.job_id: {"b"}}


def test_a_thousand_tagged_jobs_of_one_call_are_all_found():
    answers = enqueue_rows(
        [{"job_type": TYPE, "tags": ["all", f"third:{place % 3}"]} for place in range(1000)]
    )

    assert len(tagged("all", limit=2000)) == 1000
    assert set(tagged("third:1", limit=2000)) == {answer.job_id for answer in answers[1::3]}


@pytest.mark.parametrize(
    ("tags", "word"),
    [
        (["x"] * 21, "tags has 21 elements. Give at most 20."),
        ([""], "empty or longer than 100"),
        (["a", "x" * 101], "empty or longer than 100"),
        (["a\nb"], '"a\\nb"'),
        (["\x7f"], "control character"),
        (["\x85"], "control character"),
        ([" a"], "space at an end"),
        (["a "], "space at an end"),
        ([7], "not a string"),
        ("a", "of type string"),
    ],
    ids=repr,
)
def test_what_is_no_tag_refuses_its_own_entry(tags, word):
    first, refused, last = enqueue_rows([{"job_type": TYPE, "tags": each} for each in (["a"], tags, ["b"])])

    assert (first.outcome, refused.outcome, last.outcome) == ("created", "invalid_option", "created")
    assert refused.detail.startswith("tags ")
    assert word in refused.detail


def test_the_longest_and_the_most_tags_fit():
    tags = [*(f"{place:02d}é{'x' * 97}" for place in range(19)), "a b ü 漢 \N{WOMAN}"]
    job_id = enqueue_one(tags=tags)

    assert findable() == {job_id: set(tags)}
    assert tagged(tags[-1]) == [job_id]


def test_sql_gives_tags_as_an_array_of_text():
    with connection.cursor() as cursor:
        cursor.execute(f"select pgbroker.enqueue('{TYPE}', tags => array['a', 'b', 'a'])")
        (job_id,) = cursor.fetchone()
        cursor.execute(
            "select outcome from pgbroker.enqueue_many_1(%s)",
            [json.dumps([{"job_type": TYPE, "tags": ["c"]}])],
        )

    assert findable()[job_id] == {"a", "b"}
    assert len(findable()) == 2


def test_a_tag_stays_with_its_job_and_never_changes():
    job_id = enqueue_one(tags=["a"])

    for statement in ("delete from pgbroker.job_tag", "update pgbroker.job_tag set tag = 'b'"):
        with (
            pytest.raises(DatabaseError, match="pgbroker: "),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
    cancel_many([job_id])
    with connection.cursor() as cursor:
        cursor.execute("delete from pgbroker.job where id = %s", [job_id])
        cursor.execute("delete from pgbroker.job_tag where job_id = %s", [job_id])
        assert cursor.rowcount == 1


# ------------------------------------------------------------------ the list


def test_a_list_by_tag_is_newest_first_page_by_page_and_of_this_tenant():
    with tenant_context("acme"):
        ours = [enqueue_one(tags=["x"]) for _ in range(5)]
        enqueue_one(tags=["y"]), enqueue_one()
    with tenant_context("bolt"):
        theirs = enqueue_one(tags=["x"])
    newest_first = sorted(ours, reverse=True)

    with tenant_context("acme"):
        assert tagged("x") == newest_first
        assert tagged("x", limit=2) == newest_first[:2]
        assert tagged("x", limit=2, after=newest_first[1]) == newest_first[2:4]
        assert tagged("z") == tagged("X") == tagged("x ") == []
    with scope_all():
        assert tagged("x") == sorted([*ours, theirs], reverse=True)
        assert tagged("x", limit=3) == sorted([*ours, theirs], reverse=True)[:3]


def test_a_list_of_all_tenants_merges_those_that_have_the_tag():
    jobs = []
    for place in range(12):
        with tenant_context(f"t{place % 6}"):
            jobs.append(enqueue_one(tags=["x"] if place % 6 != 4 else ["y"]))

    with scope_all():
        assert tagged("x") == sorted(
            (each for place, each in enumerate(jobs) if place % 6 != 4), reverse=True
        )
        assert tagged("y") == sorted((jobs[4], jobs[10]), reverse=True)


def test_a_list_by_tag_keeps_the_other_filters():
    other_queue, other_type = queue_id("other"), type_id(OTHER_TYPE)
    plain = enqueue_one(tags=["x"])
    in_queue = enqueue_one(tags=["x"], queue="other")
    of_type = enqueue_one(tags=["x"], job_type=OTHER_TYPE)
    cancelled = enqueue_one(tags=["x"])
    cancel_many([cancelled])

    assert tagged("x", queue_id=other_queue) == [in_queue]
    assert tagged("x", type_id=other_type) == [of_type]
    assert tagged("x", status=Status.CANCELLED) == [cancelled]
    assert set(tagged("x", status=Status.READY)) == {plain, in_queue, of_type}


def test_a_line_of_the_list_is_the_same_with_and_without_the_tag():
    job_id = enqueue_one(tags=["x"])
    cancel_many([job_id], reason="because")

    (plain,) = list_jobs(limit=5, using="default")
    (by_tag,) = list_jobs(tag="x", limit=5, using="default")

    assert plain == by_tag
    assert by_tag.error_code == "cancelled"


def test_ended_jobs_are_counted_and_retried_by_tag():
    wanted = [enqueue_one(tags=["x", "y"]) for _ in range(3)]
    others = [enqueue_one(tags=["y"]), enqueue_one()]
    cancel_many([*wanted, *others])

    assert count_ended(status=Status.CANCELLED, tag="x", using="default") == 3
    assert count_ended(status=Status.CANCELLED, tag="nobody", using="default") == 0
    assert [each.outcome for each in retry_many(wanted[:1])] == ["retried"]
    assert count_ended(status=Status.CANCELLED, tag="x", using="default") == 2

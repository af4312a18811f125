"""Values of every shape in what an entry says of groups and prerequisites: the call answers, and for each entry."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, connection, transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pgbroker.models import JobDependency
from tests.support.jobs import TYPE, status, type_id
from tests.support.links import WAITING, count_all, edges, job, links, open_group, refusal

pytestmark = pytest.mark.django_db

EXISTING = UUID("00000000-0000-7000-8000-00000000000a")
CODES = {
    "created", "invalid_option", "invalid_entry", "group_not_found", "group_sealed", "dependency_not_found",
    "ambiguous_dependency", "self_dependency", "cyclic_dependency", "duplicate_dependency", "duplicate_job_name",
    "too_many_dependencies", "dependency_too_deep", "prerequisite_refused",
}  # fmt: skip
# What the reader of a reference looks for is likelier than anything else; so is what it looks up.
WORDS = st.sampled_from(
    [
        "job", "group", "on_failure", "within_seconds", "cancel", "block", "ignore", "g", "one", str(EXISTING),
        str(EXISTING).upper(), EXISTING.hex, "", "a/b", "a~1b", "~0", "%s", "'", '"', "\\", "null", "Grüße", "\ud7ff",
        "x" * 255,
                "x" * 256,
    ]
)  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS
    | st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=8)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=8,
)
REFERENCE = WORDS | ANYTHING | st.fixed_dictionaries(
    {}, optional={"job": WORDS, "group": WORDS, "on_failure": WORDS | ANYTHING, "within_seconds": SCALARS}
)  # fmt: skip
ENTRY = st.fixed_dictionaries(
    {"job_type": st.just(TYPE)},
    optional={
        "depends_on": st.lists(REFERENCE, max_size=4) | ANYTHING,
        "group": WORDS | ANYTHING,
        "name": WORDS | ANYTHING,
        "on_failure": WORDS | ANYTHING,
        "id": st.sampled_from([str(UUID(int=number)) for number in (11, 12)]),
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(entries=st.lists(ENTRY, min_size=1, max_size=4))
@example([{"job_type": TYPE, "depends_on": ["within_seconds", "job", "group"]}])
@example([{"job_type": TYPE, "depends_on": [{"group": "g", "within_seconds": 1e-300}]}])
@example(
    [{"job_type": TYPE, "depends_on": [{"job": str(EXISTING), "on_failure": None, "within_seconds": None}]}]
)
@example([{"job_type": TYPE, "group": "g", "name": "one", "depends_on": ["one", "one"]}])
def test_whatever_is_said_the_call_answers_for_each_entry_and_a_refused_one_leaves_nothing(entries):
    type_id()
    with transaction.atomic():
        open_group("g")
        links({"id": str(EXISTING), "group": "g", "name": "one"})
        before = count_all()
        with connection.cursor() as cursor:
            cursor.execute("select * from pgbroker.enqueue_many_1(%s::jsonb)", [json.dumps(entries)])
            answers = cursor.fetchall()

        assert [ordinal for ordinal, *_ in answers] == list(range(1, len(entries) + 1))
        assert {outcome for _, _, outcome, _ in answers} <= CODES | {"existing"}
        made = {job_id for _, job_id, outcome, _ in answers if outcome == "created"}
        after = count_all()
        assert (after["job"], after["job_payload"]) == (
            before["job"] + len(made),
            before["job_payload"] + len(made),
        )
        assert set(JobDependency.objects.values_list("dependent_id", flat=True)) <= made
        assert all(detail for *_, outcome, detail in answers if outcome not in ("created", "existing"))
        transaction.set_rollback(True)


NAMES = [
    "a/b", "a", "~", "~1", "a~1", "%", "%s", "'; drop table x; --", '"', "\\", "\t", "\N{GRINNING FACE}", "\u202e",
    "e\u0301", "\u00e9", " ",
]  # fmt: skip


def test_names_are_compared_byte_by_byte_whatever_is_in_them():
    for name in NAMES:
        open_group(name)
    answers = links(*({"group": group, "name": name} for group in NAMES for name in NAMES))
    assert {answer.outcome for answer in answers} == {"created"}

    asked = links(*({"depends_on": [{"group": group, "job": name}]} for group in NAMES for name in NAMES))
    in_call = links(
        *({"group": group, "name": f"{name}!"} for group in NAMES for name in NAMES),
        *({"depends_on": [{"group": group, "job": f"{name}!"}]} for group in NAMES for name in NAMES),
    )

    size = len(NAMES) ** 2
    assert [list(edges(each.job_id)) for each in asked] == [[each.job_id] for each in answers]
    assert [list(edges(each.job_id)) for each in in_call[size:]] == [[each.job_id] for each in in_call[:size]]


def test_eleven_thousand_references_are_refused_in_a_moment_whatever_they_are():
    first = job()

    for reference in (None, [], {}, 5, "x", str(uuid4()), str(first), {"group": "g", "within_seconds": 5}):
        code, _ = refusal(*[reference] * 11_000)
        assert code in ("too_many_dependencies", "invalid_option", "dependency_not_found")
    code, _ = refusal([[[[[None]]]]] * 2)
    assert code == "invalid_option"


def test_a_call_of_many_entries_with_one_bad_reference_each_stores_the_others():
    rows: list[dict[str, Any]] = [{"depends_on": ["none"]} if number % 2 else {} for number in range(1_000)]

    answers = links(*rows)

    assert [answer.outcome for answer in answers] == ["created", "dependency_not_found"] * 500


@pytest.mark.parametrize("field", ["depends_on", "group", "name"])
def test_a_null_character_is_no_text_for_the_database_and_stores_nothing(field):
    links()
    before = count_all()
    value = ["a\x00b"] if field == "depends_on" else "a\x00b"

    with pytest.raises(DatabaseError), transaction.atomic():
        links({}, {"group": "g", field: value})

    assert count_all() == before


def test_references_in_any_spelling_of_an_id_mean_the_same_job():
    first = job()

    for spelling in (str(first), str(first).upper(), first.hex, first.hex.upper()):
        dependent = job(spelling)
        assert (status(dependent), list(edges(dependent))) == (WAITING, [first])
    for no_id in (f"{{{first}}}", f" {first}", f"urn:uuid:{first}"):
        assert refusal(no_id)[0] == "dependency_not_found"

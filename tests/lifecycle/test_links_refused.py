"""What an entry may not wait for: each refusal with its code, and a refused call leaves nothing behind."""

from __future__ import annotations

import re
from uuid import UUID, uuid4

import pytest

from pgbroker.models import JobDependency, JobPayload
from pgbroker.tenancy import tenant_context
from tests.support.links import (
    count_all,
    edges,
    job,
    levels,
    links,
    open_group,
    refusal,
    sealed_group,
)

pytestmark = pytest.mark.django_db


# ------------------------------------------------------------------ what is refused


def test_a_group_that_is_not_there_and_one_that_is_sealed_take_nobody_in():
    sealed_group("shut", {"name": "one"})

    assert refusal(group="none") == ("group_not_found", "there is no run group 'none'")
    assert refusal(group="shut") == (
        "group_sealed",
        "run group 'shut' is sealed: nothing is added to it any more",
    )


def test_another_tenants_job_and_group_are_missing_in_the_same_words_as_what_is_not_there():
    missing = uuid4()
    with tenant_context("bolt"):
        theirs = job()
        open_group("theirs")
        links({"group": "theirs", "name": "one"})

    with tenant_context("acme"):
        for reference, unknown in (
            (theirs, missing),
            ({"job": str(theirs)}, {"job": str(missing)}),
            ({"group": "theirs"}, {"group": "absent"}),
            ({"group": "theirs", "job": "one"}, {"group": "absent", "job": "one"}),
            ("theirs", "absent"),
        ):
            code, words = refusal(reference)
            other_code, other_words = refusal(unknown)
            assert code == other_code == "dependency_not_found"
            assert words.replace(str(theirs), str(missing)).replace("theirs", "absent") == other_words
        theirs_code, theirs_words = refusal(group="theirs")
        assert (theirs_code, theirs_words) == ("group_not_found", "there is no run group 'theirs'")


@pytest.mark.parametrize(
    "reference",
    [
        {"job": "extract"}, {"group": "none", "job": "extract"}, "extract", "job", "group", "within_seconds",
        "on_failure",
    ],
    ids=str,
)  # fmt: skip
def test_what_is_missing_is_named_in_the_refusal(reference):
    code, words = refusal(reference)

    assert code == "dependency_not_found"
    assert words.startswith("there is no ")
    assert f'"{reference if isinstance(reference, str) else "extract"}"' in words
    assert "null" not in words
    assert not words.endswith(" ")


@pytest.mark.parametrize("where", ["in the table", "in the same call"])
def test_a_name_alone_that_is_a_job_and_a_group_is_ambiguous(where):
    open_group("g")
    open_group("load")
    job_of_that_name = {"group": "g", "name": "load"}
    dependent = {"group": "g", "depends_on": ["load"]}

    *_, answer = (
        links(job_of_that_name, dependent)
        if where == "in the same call"
        else (
            *links(job_of_that_name),
            *links(dependent),
        )
    )

    assert answer.outcome == "ambiguous_dependency"
    assert '"load" is a job of the group and a run group' in answer.detail
    (clear,) = links({"group": "g", "depends_on": [{"group": "g", "job": "load"}]})
    assert clear.outcome == "created"


def test_a_job_does_not_wait_for_itself():
    own = str(uuid4())
    open_group("g")

    assert refusal(own, id=own) == ("self_dependency", "the job depends on itself")
    code, _ = refusal("me", group="g", name="me")
    assert code == "self_dependency"
    code, words = refusal({"group": "g"}, group="g")
    assert (code, words) == ("cyclic_dependency", "a member of a group waits for its own group")


def test_a_cycle_inside_of_a_call_sinks_its_jobs_and_those_below_but_no_others():
    a, b, c, free = (str(uuid4()) for _ in range(4))

    answers = links(
        {"id": a, "depends_on": [b]},
        {"id": b, "depends_on": [a]},
        {"id": c, "depends_on": [a]},
        {"id": free},
    )

    assert [answer.outcome for answer in answers] == [*["cyclic_dependency"] * 3, "created"]
    assert count_all()["job"] == count_all()["job_payload"] == 1
    assert JobDependency.objects.count() == 0


def test_entries_of_one_key_that_close_a_cycle_by_way_of_each_other_are_refused():
    """The second entry of a key is the first one's job: what waits for it waits for that."""
    first, second, between = (str(uuid4()) for _ in range(3))
    before = count_all()

    answers = links(
        {"id": first, "idempotency_key": "k", "depends_on": [between]},
        {"id": second, "idempotency_key": "k"},
        {"id": between, "depends_on": [second]},
    )

    assert [each.outcome for each in answers] == ["cyclic_dependency", "created", "cyclic_dependency"]
    one_more = dict.fromkeys(("job", "job_payload", "idempotency"), 1)
    assert count_all() == {name: count + one_more.get(name, 0) for name, count in before.items()}


def test_a_prerequisite_is_named_once():
    first = job()
    open_group("g")
    in_call = str(uuid4())
    (named,) = links({"group": "g", "name": "one"})

    assert refusal(first, {"job": str(first)})[0] == "duplicate_dependency"
    assert refusal(str(first), str(first).upper())[0] == "duplicate_dependency"
    assert refusal({"group": "g", "job": "one"}, named.job_id)[0] == "duplicate_dependency"
    assert refusal("g", {"group": "g", "on_failure": "ignore"})[0] == "duplicate_dependency"
    *_, answer = links({"id": in_call}, {"depends_on": [in_call, in_call]})
    assert answer.outcome == "duplicate_dependency"
    assert (
        refusal({"group": "later", "within_seconds": 5}, {"group": "later", "within_seconds": 6})[0]
        == "duplicate_dependency"
    )


def test_a_name_is_taken_once_in_a_group():
    open_group("g")
    open_group("other")

    first, second, elsewhere = links(
        {"group": "g", "name": "one"}, {"group": "g", "name": "one"}, {"group": "other", "name": "one"}
    )

    assert [each.outcome for each in (first, second, elsewhere)] == [
        "created",
        "duplicate_job_name",
        "created",
    ]
    assert refusal(group="g", name="one") == ("duplicate_job_name", "run group 'g' has a job 'one'")


@pytest.mark.parametrize("how", ["cannot be enqueued", "is in no group that is open", "waits for nobody"])
def test_what_depends_on_a_refused_entry_of_the_same_call_is_refused_with_it(how):
    top, middle, bottom, apart = (str(uuid4()) for _ in range(4))
    wrong = {
        "cannot be enqueued": {"priority": 1000},
        "is in no group that is open": {"group": "none"},
        "waits for nobody": {"depends_on": [str(uuid4())]},
    }[how]

    answers = links(
        {"id": bottom, "depends_on": [middle]},
        {"id": middle, "depends_on": [top]},
        {"id": top, **wrong},
        {"id": apart},
    )

    outcomes = [answer.outcome for answer in answers]
    assert outcomes[:2] == ["prerequisite_refused"] * 2
    assert answers[2].refused
    assert outcomes[3] == "created"
    assert JobPayload.objects.count() == 1


def test_what_depends_on_an_entry_refused_for_its_key_is_refused_and_lets_go_of_its_own():
    links({"idempotency_key": "taken", "priority": 1})
    top, middle, bottom = (str(uuid4()) for _ in range(3))
    before = count_all()

    answers = links(
        {"id": top, "idempotency_key": "taken"},
        {"id": middle, "idempotency_key": "mine", "depends_on": [top]},
        {"id": bottom, "depends_on": [middle]},
    )

    assert [each.outcome for each in answers] == [
        "idempotency_conflict", "prerequisite_refused", "prerequisite_refused",
    ]  # fmt: skip
    assert count_all() == before


def test_what_depends_on_an_entry_whose_id_another_job_has_is_refused_with_it():
    taken = str(job(args={"v": 1, "args": [1], "kwargs": {}}))
    bottom, apart = str(uuid4()), str(uuid4())

    answers = links({"id": taken}, {"id": bottom, "depends_on": [taken]}, {"id": apart})

    assert [each.outcome for each in answers] == ["invalid_option", "prerequisite_refused", "created"]
    assert count_all()["job"] == count_all()["job_payload"] == 2


# ------------------------------------------------------------------ form


@pytest.mark.parametrize(
    "depends_on",
    [
        5, "x", True, {}, {"job": "x"}, [None], [5], [True], [[]], [["a", "b"]], [{}], [""], ["x" * 256],
        [{"job": None}], [{"job": 5}], [{"job": ["x"]}], [{"job": ""}], [{"job": "x" * 256}], [{"group": {}}],
        [{"group": None, "job": "x"}], [{"group": ""}], [{"group": "x" * 256}], [{"jobs": "x"}],
        [{"job": "x", "extra": None}], [{"job": "8cff4279-46c9-455f-937a-5ca94fece40a", "on_failure": "explode"}],
        [{"group": "g", "on_failure": 5}], [{"group": "g", "on_failure": []}],
        [{"job": "8cff4279-46c9-455f-937a-5ca94fece40a", "within_seconds": 5}],
        [{"name": ""}], [{"name": 5}], [{"name": None}], [{"name": "x", "group": "g"}], [{"name": "x", "job": "y"}],
        [{"name": "x", "within_seconds": 5}],
        [{"group": "g", "within_seconds": None}],
        [{"group": "g", "within_seconds": "5"}], [{"group": "g", "within_seconds": 0}],
        [{"group": "g", "within_seconds": -1}], [{"group": "g", "within_seconds": 1e300}],
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_reference_is_refused_as_such(depends_on):
    links()
    before = count_all()

    good, answer = links({}, {"depends_on": depends_on})

    assert (good.outcome, answer.outcome) == ("created", "invalid_option")
    assert re.search(r"depends_on|on_failure|within_seconds|reference", answer.detail)
    assert count_all() == {**before, "job": before["job"] + 1, "job_payload": before["job_payload"] + 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": ""}, {"group": "x" * 256}, {"group": 5}, {"group": []}, {"name": "x"}, {"group": "g", "name": ""},
        {"group": "g", "name": "x" * 256}, {"group": "g", "name": {}}, {"on_failure": "x"}, {"on_failure": 5},
        {"on_failure": ""},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_group_name_or_policy_is_refused_as_such(wrong):
    open_group("g")

    code, words = refusal(**wrong)

    assert code == "invalid_option"
    assert any(word in words for word in wrong)


def test_ten_thousand_prerequisites_are_taken_and_one_more_is_not():
    open_group("g")
    answers = links(*({"group": "g", "name": str(number)} for number in range(10_001)))
    names = [{"group": "g", "job": str(number)} for number in range(10_001)]

    assert refusal(*names) == ("too_many_dependencies", "depends_on has 10001 elements. Give at most 10000.")
    dependent = job(*names[:10_000])

    assert len(edges(dependent)) == 10_000
    assert answers[0].job_id in edges(dependent)


def test_a_chain_of_ten_thousand_links_is_taken_and_one_more_is_not():
    chain = [job()]
    chain.append(job(chain[0]))
    with_deep_edges(chain[1], 9_999)

    deep = job(chain[1])
    assert levels(deep) == [10_000]
    assert refusal(deep) == ("dependency_too_deep", "the chain is longer than 10000 jobs")
    inside = str(uuid4())
    *_, answer = links({"id": inside, "depends_on": [str(chain[1])]}, {"depends_on": [inside]})
    assert answer.outcome == "dependency_too_deep"


def with_deep_edges(dependent: UUID, level: int) -> None:
    JobDependency.objects.filter(dependent_id=dependent).update(level=level)

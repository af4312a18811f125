"""Calls of one `enqueue_many` that wait for each other: in any order, over several statements, refused together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from psycopg.errors import DeadlockDetected
from psycopg.types.json import Jsonb

from pgbroker import Edge, enqueue_many, job, run_group
from pgbroker.errors import CyclicDependency, InvalidOption, PrerequisiteRefused, UnknownQueue
from pgbroker.models import Job, JobDependency, JobPayload, JobType
from pgbroker.states import OnFailure, Status
from pgbroker.testing import guards_off, run_jobs
from tests.support.jobs import status
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db


@job(name="tests.list.step")
def step(number: int = 0) -> int:
    return number


@job(name="tests.list.late")
def late() -> None:
    """Not declared yet, where a test says so."""


@pytest.fixture
def small_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgbroker.bulk.ROWS_PER_STATEMENT", 3)


def edges(job_id: object) -> set[UUID]:
    """List what a job waits for, or waited for."""
    found = JobDependency.objects.filter(dependent_id=UUID(str(job_id)))
    return set(found.values_list("prerequisite_id", flat=True))


def stored() -> tuple[int, int, int]:
    return Job.objects.count(), JobPayload.objects.count(), JobDependency.objects.count()


def waits_for(made: list[Any], place: int) -> list[int]:
    """List the places of those outcomes that the job of another one waits for."""
    ids = [outcome.job_id for outcome in made]
    return sorted(ids.index(prerequisite) for prerequisite in edges(ids[place]))


@pytest.mark.usefixtures("small_statements")
@pytest.mark.parametrize("reverse", [False, True], ids=["in order", "backwards"])
def test_calls_of_a_list_wait_for_each_other_over_several_statements(reverse: bool) -> None:
    first = step.bind(0)
    chain = [first]
    for number in range(1, 10):
        chain.append(step.options(depends_on=[chain[-1]]).bind(number))

    made = enqueue_many(chain[::-1] if reverse else chain)

    assert {outcome.outcome for outcome in made} == {"created"}
    by_number = made[::-1] if reverse else made
    assert [waits_for(by_number, place) for place in range(10)] == [[], *([place] for place in range(9))]
    assert [ran.result for ran in run_jobs()] == list(range(10))


def test_a_call_of_a_list_is_that_very_call() -> None:
    same = [step.bind(1), step.bind(1)]

    made = enqueue_many([*same, step.options(depends_on=[same[1]]).bind(2)])

    assert waits_for(made, 2) == [1]


def test_a_list_of_calls_may_be_a_generator() -> None:
    def calls() -> Iterator[Any]:
        last = step.bind(0)
        yield last
        for number in range(1, 5):
            last = step.options(depends_on=[last]).bind(number)
            yield last

    made = enqueue_many(calls())

    assert [waits_for(made, place) for place in range(5)] == [[], [0], [1], [2], [3]]


def test_an_edge_to_a_call_may_say_what_becomes_of_the_other() -> None:
    first = step.bind(0)

    made = enqueue_many([step.options(depends_on=[Edge(first, "ignore")]).bind(), first])

    (edge,) = JobDependency.objects.all()
    assert (edge.dependent_id, edge.prerequisite_id) == (made[0].job_id, made[1].job_id)
    assert edge.on_failure == OnFailure.IGNORE


def test_calls_that_wait_for_the_same_share_what_is_worked_out() -> None:
    hub = step.bind(0)
    spoke = step.options(depends_on=[hub], on_failure="block")

    made = enqueue_many([spoke.bind(1), hub, spoke.bind(2), spoke.bind(3)])

    assert [waits_for(made, place) for place in range(4)] == [[1], [], [1], [1]]


def test_a_call_that_is_not_in_the_list_is_no_prerequisite() -> None:
    elsewhere = step.bind(0)
    waiting = step.options(depends_on=[elsewhere])

    refused, after, made = enqueue_many(
        [call := waiting.bind(1), step.options(depends_on=[call]).bind(2), step.bind(3)]
    )
    with pytest.raises(InvalidOption, match="not enqueued together"):
        waiting.enqueue(4)

    assert isinstance(refused.error, InvalidOption)
    assert isinstance(after.error, PrerequisiteRefused)
    assert (made.outcome, Job.objects.count()) == ("created", 1)


@pytest.mark.parametrize("rows", [3, 2500], ids=["several statements", "one statement"])
def test_with_a_refused_call_those_that_wait_for_it_are_refused(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr("pgbroker.bulk.ROWS_PER_STATEMENT", rows)
    calls = [step.using(queue_name="no-such-queue").bind(0)]
    for number in range(1, 8):
        calls.append(step.options(depends_on=[calls[-1]]).bind(number))
    beside = [step.bind(8), step.bind(9)]

    made = enqueue_many([*calls[::2], *beside, *calls[1::2]])

    by_call = dict(zip([*range(0, 8, 2), 8, 9, *range(1, 8, 2)], made, strict=True))
    assert isinstance(by_call[0].error, UnknownQueue)
    assert {type(by_call[number].error) for number in range(1, 8)} == {PrerequisiteRefused}
    assert {by_call[number].job_id for number in range(1, 8)} == {None}
    assert [by_call[number].outcome for number in (8, 9)] == ["created", "created"]
    assert (Job.objects.count(), JobDependency.objects.count()) == (2, 0)


def test_a_call_refused_before_any_statement_refuses_those_that_wait_for_it() -> None:
    wrong = step.bind("x")  # type: ignore[arg-type]
    after = step.options(depends_on=[wrong]).bind(1)

    made = enqueue_many([step.options(depends_on=[after]).bind(2), after, wrong, step.bind(3)])

    assert [outcome.outcome for outcome in made] == [
        "prerequisite_refused",
        "prerequisite_refused",
        "invalid_argument",
        "created",
    ]


@pytest.mark.usefixtures("small_statements")
def test_names_in_a_list_hold_over_several_statements() -> None:
    with run_group("import", seal=False) as group:
        made = group.enqueue_many(
            [
                step.options(name="last", depends_on=[("import", "middle")]).bind(9),
                *(step.bind(number) for number in range(4)),
                step.options(name="middle", depends_on=["first"]).bind(8),
                *(step.bind(number) for number in range(4)),
                step.options(name="first").bind(7),
            ]
        )

    assert {outcome.outcome for outcome in made} == {"created"}
    assert (waits_for(made, 0), waits_for(made, 5)) == ([5], [10])


def test_a_list_is_cut_by_the_weight_of_its_references_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgbroker.bulk.CHARACTERS_PER_STATEMENT", 1000)
    first = [step.bind(number) for number in range(12)]
    waits = step.options(depends_on=first)

    made = enqueue_many([*first, *(waits.bind(number) for number in range(6))])

    assert len(edges(made[-1].job_id)) == 12
    statements = Counter(Job.objects.filter(status=Status.WAITING).values_list("created_at", flat=True))
    assert (statements.total(), max(statements.values())) == (6, 2)


def test_names_with_a_slash_are_told_apart() -> None:
    with run_group("a", seal=False), run_group("a/b", seal=False):
        pass
    calls = [step.options(group="a", name="b/c"), step.options(group="a/b", name="c")]

    made = enqueue_many([each.bind() for each in calls] + [step.options(depends_on=[("a", "b/c")]).bind()])

    assert waits_for(made, 2) == [0]


@pytest.mark.parametrize("rows", [3, 2500], ids=["several statements", "one statement"])
def test_calls_that_wait_for_each_other_in_a_circle_are_refused_and_no_others(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr("pgbroker.bulk.ROWS_PER_STATEMENT", rows)
    with run_group("import", seal=False) as group:
        a = step.options(name="a", depends_on=["c"]).bind()
        made = group.enqueue_many(
            [
                a,
                step.options(name="b", depends_on=["a"]).bind(),
                *(step.bind(number) for number in range(4)),
                step.options(name="c", depends_on=["b"]).bind(),
                step.options(depends_on=[a]).bind(),
            ]
        )

    assert [outcome.outcome for outcome in made] == [
        *["cyclic_dependency"] * 2,
        *["created"] * 4,
        *["cyclic_dependency"] * 2,
    ]
    assert isinstance(made[0].error, CyclicDependency)
    assert Job.objects.count() == 4


def test_a_member_that_closes_a_circle_through_other_groups_is_refused_and_no_other() -> None:
    with run_group("a", seal=False) as a, run_group("b", seal=False) as b:
        after_a = b.enqueue(step, depends_on=[a])
    first = step.bind(1)
    closing = step.options(depends_on=[first, after_a]).bind(2)
    jobs, payloads, links = stored()

    made = a.enqueue_many([first, closing, step.options(depends_on=[closing]).bind(3), step.bind(4)])
    with pytest.raises(CyclicDependency):
        a.enqueue(step, depends_on=[b])

    assert [outcome.outcome for outcome in made] == [
        "created",
        "cyclic_dependency",
        "prerequisite_refused",
        "created",
    ]
    assert isinstance(made[1].error, CyclicDependency)
    assert stored() == (jobs + 2, payloads + 2, links)
    # What closes none is stored as ever.
    assert a.enqueue_many([first, step.options(depends_on=[first]).bind(5)])[1].outcome == "created"


def test_calls_that_replace_each_other_may_be_waited_for() -> None:
    newest = step.options(idempotency_key="k", idempotency_scope="live", on_conflict="replace")
    holder = step.options(idempotency_key="held").enqueue(9)
    held = step.options(idempotency_key="held").bind(9)
    first, second = newest.bind(1), newest.bind(2)

    made = enqueue_many(
        [
            step.options(depends_on=[Edge(second, "block"), held]).bind(3),
            first,
            second,
            held,
            step.options(depends_on=[Edge(first, "ignore")]).bind(4),
        ]
    )

    assert [outcome.outcome for outcome in made] == ["created", "created", "replaced", "existing", "created"]
    assert edges(made[0].job_id) == {made[2].job_id, UUID(holder.id)}
    assert (status(made[0].job_id), status(made[1].job_id)) == (Status.WAITING, Status.CANCELLED)


def test_a_call_that_is_refused_with_another_one_replaces_nothing() -> None:
    held = step.options(idempotency_key="held", on_conflict="reject")
    newest = step.options(idempotency_key="k", idempotency_scope="live", on_conflict="replace")
    held.enqueue(1)
    waiting = newest.enqueue(1)
    first = held.bind(1)

    made = enqueue_many([newest.options(depends_on=[first]).bind(2), first, step.bind(3)])

    assert [outcome.outcome for outcome in made] == [
        "prerequisite_refused",
        "idempotency_conflict",
        "created",
    ]
    assert status(UUID(waiting.id)) == Status.READY


@pytest.mark.parametrize("rows", [1, 2500], ids=["several statements", "one statement"])
def test_the_edge_goes_to_the_job_that_holds_the_key(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr("pgbroker.bulk.ROWS_PER_STATEMENT", rows)
    keyed = step.options(idempotency_key="one")
    holder = keyed.enqueue(1)
    first = keyed.bind(1)

    made = enqueue_many(
        [
            step.options(depends_on=[first]).bind(2),
            first,
            step.options(depends_on=[Edge(first, "ignore")]).bind(3),
        ]
    )

    assert [outcome.outcome for outcome in made] == ["created", "existing", "created"]
    assert edges(made[0].job_id) == edges(made[2].job_id) == {UUID(holder.id)}


def test_a_call_that_gets_the_job_of_its_key_adds_no_edge_to_it() -> None:
    first = step.enqueue(9)
    holder = step.options(idempotency_key="one").enqueue(1)

    again = step.options(idempotency_key="one", depends_on=[first]).enqueue(1)

    assert again.id == holder.id
    assert (edges(holder.id), status(UUID(holder.id))) == (set(), Status.READY)


@pytest.mark.usefixtures("small_statements")
def test_keys_are_taken_in_order_but_for_what_must_come_first() -> None:
    first = step.options(idempotency_key="z").bind(0)
    calls = [
        step.options(idempotency_key=key, depends_on=[first]).bind(number)
        for number, key in enumerate("dcba", 1)
    ]

    made = enqueue_many([*calls, first])

    assert {outcome.outcome for outcome in made} == {"created"}
    by_statement: dict[object, set[str]] = {}
    for each in Job.objects.order_by("created_at").select_related("payload"):
        by_statement.setdefault(each.created_at, set()).add(each.payload.idempotency_key)
    assert list(by_statement.values()) == [{"z", "a", "b"}, {"c", "d"}]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("rows", [2, 2500], ids=["several statements", "one statement"])
def test_what_only_lacked_its_declaration_is_declared_and_those_that_wait_for_it_are_stored(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr("pgbroker.bulk.ROWS_PER_STATEMENT", rows)
    enqueue_many([late.bind(), step.bind()])
    with guards_off():
        JobType.objects.filter(name=late.key).delete()
    first = late.bind()
    second = step.options(depends_on=[first]).bind(1)
    wrong = step.using(queue_name="no-such-queue").bind(2)
    third = step.options(depends_on=[second]).bind(3)
    sunk = step.options(depends_on=[second, wrong]).bind(4)

    made = enqueue_many([first, second, wrong, third, sunk])

    assert [outcome.outcome for outcome in made] == [
        "created",
        "created",
        "unknown_queue",
        "created",
        "prerequisite_refused",
    ]
    assert (waits_for(made, 1), waits_for(made, 3)) == ([0], [1])


@pytest.mark.django_db(transaction=True)
def test_a_list_that_met_a_deadlock_is_stored_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgbroker.bulk.ROWS_PER_STATEMENT", 1)
    step.enqueue()  # declares the type
    with second_session("default") as other:

        def enqueue(key: str) -> None:
            call = {
                "job_type": "tests.list.step",
                "idempotency_key": key,
                "args": {"v": 1, "args": [1], "kwargs": {}},
            }
            other.execute("select pgbroker.enqueue_many_1(%s)", [Jsonb([call])])

        for attempt in range(5):
            first, second = f"{attempt} a", f"{attempt} b"
            with suppress(DeadlockDetected), other.transaction():
                enqueue(second)
                calls = [step.options(idempotency_key=key).bind(1) for key in (first, second)]
                ours = InThread(partial(enqueue_many, calls))
                ours.start()
                wait_until_blocked(ours, other)
                # The server ends the one that looks first, which has waited longer: ours, unless this machine was too
                # slow to get here within a second. This one has its key then.
                enqueue(first)
                break
            ours.result()

    assert [outcome.outcome for outcome in ours.result()] == ["existing", "existing"]

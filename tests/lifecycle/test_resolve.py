"""resolve: what the end of a job does to those that wait for it, level after level."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.expire import expire
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.resolve import resolve
from pgbroker.models import JobEvent, JobState
from pgbroker.tenancy import tenant_context
from tests.support.jobs import age, events, failed, queue_id, row, settle_one, status
from tests.support.links import (
    BLOCKED,
    CANCELLED,
    COMPLETED,
    DEAD,
    FAILED,
    READY,
    SCHEDULED,
    WAITING,
    claim,
    edges,
    end,
    job,
    left,
    links,
    passes,
    run,
    statuses,
    why,
)

pytestmark = pytest.mark.django_db


def chain(length: int, **options) -> list[UUID]:
    """Jobs that each wait for the one before."""
    made = [job()]
    for _ in range(length - 1):
        made.append(job(made[-1], **options))
    return made


def promote_all(*job_ids: UUID) -> None:
    age(*job_ids, only=["available_at"], days=1)
    promote([queue_id()], limit=100)


# ------------------------------------------------------------------ an end sets free


def test_a_diamond_runs_in_order():
    top = job()
    left_one, right_one = job(top), job(top)
    bottom = job(left_one, right_one)

    run(top)
    assert statuses(left_one, right_one, bottom) == [READY, READY, WAITING]
    run(left_one, right_one)
    assert status(bottom) == READY
    run(bottom)

    assert events(bottom) == [COMPLETED]


def test_two_prerequisites_that_end_in_one_batch_free_their_dependent_once():
    first, second = job(), job()
    dependent = job(first, second)

    run(first, second)

    assert status(dependent) == READY
    assert edges(dependent) == {first: (COMPLETED, True), second: (COMPLETED, True)}
    assert left() == 0


def test_those_that_become_ready_together_each_have_their_own_instant():
    """A claim that remembers where it stopped must tell them apart."""
    top = job()
    dependents = [job(top) for _ in range(5)]

    run(top)

    instants = [row(each).ready_at for each in dependents]
    assert instants == sorted(set(instants))


@pytest.mark.parametrize("how", [SCHEDULED, "retry"])
def test_b064_a_prerequisite_that_comes_back_has_not_completed(how):
    parent = job(max_attempts=4)
    dependent = job(parent)

    for _ in range(3):
        if how == SCHEDULED:
            run(parent, how=SCHEDULED)
        else:
            fail_once(parent)
        assert statuses(parent, dependent) == [SCHEDULED, WAITING]
        assert edges(dependent) == {parent: (0, False)}
        promote_all(parent)
    run(parent)

    assert status(dependent) == READY
    run(dependent)
    assert events(dependent) == [COMPLETED]


def fail_once(job_id: UUID) -> None:
    (lease,) = claim(job_id)
    assert settle_one(failed(lease)).status == SCHEDULED


# ------------------------------------------------------------------ a bad end

BAD_ENDS = [FAILED, DEAD, CANCELLED]


@pytest.mark.parametrize("policy", ["cancel", "block", "ignore"])
@pytest.mark.parametrize("end_of", BAD_ENDS, ids=lambda each: each.label)
def test_a_bad_end_does_to_a_dependent_what_its_edge_says(end_of, policy):
    parent = job()
    dependent = job(parent, on_failure=policy)

    if end_of == CANCELLED:
        cancel_many([parent])
    else:
        run(parent, how=end_of)

    expected = {"cancel": CANCELLED, "block": BLOCKED, "ignore": READY}[policy]
    assert status(dependent) == expected
    assert edges(dependent) == {parent: (end_of, policy == "ignore")}
    assert why(dependent) == (None if policy == "ignore" else ("prerequisite_failed", parent))


def test_a_deadline_that_passes_before_a_job_runs_decides_for_its_dependents():
    """B071: it ends without an execution, and the dependents follow their policy."""
    late = job(deadline_seconds=3600)
    cancelled, blocked = job(late), job(late, on_failure="block")
    waiting = job(cancelled, deadline_seconds=3600)
    age(late, only=["deadline_at"], days=1)

    assert [each.job_id for each in expire(limit=10)] == [late]
    passes()

    assert statuses(late, cancelled, blocked, waiting) == [FAILED, CANCELLED, BLOCKED, CANCELLED]
    assert why(waiting) == ("prerequisite_failed", late)
    assert why(late) == ("deadline_exceeded", None)


def test_a_waiting_job_whose_deadline_passes_takes_its_dependents_along():
    parent = job()
    waiting = job(parent, deadline_seconds=3600)
    below = job(waiting)
    age(waiting, only=["deadline_at"], days=1)

    expire(limit=10)
    passes()

    assert statuses(parent, waiting, below) == [READY, FAILED, CANCELLED]
    assert why(below) == ("prerequisite_failed", waiting)


def test_a_failure_falls_through_a_chain_and_names_the_first_to_go_wrong():
    made = chain(6)

    run(made[0], how=FAILED)
    passes()

    assert statuses(*made) == [FAILED, *[CANCELLED] * 5]
    assert {why(each) for each in made[1:]} == {("prerequisite_failed", made[0])}
    assert [events(each) for each in made[1:]] == [[CANCELLED]] * 5
    said = JobState.objects.get(job=made[5]).reason
    assert str(made[4]) in said
    assert str(made[0]) in said


def test_a_policy_on_the_way_stops_what_falls():
    top = job()
    blocked = job(top, on_failure="block")
    below_blocked = job(blocked)
    cancelled = job(top)
    ignoring = job(cancelled, on_failure="ignore")
    below_ignoring = job(ignoring)

    run(top, how=FAILED)
    passes()

    assert statuses(blocked, below_blocked) == [BLOCKED, WAITING]
    assert statuses(cancelled, ignoring, below_ignoring) == [CANCELLED, READY, WAITING]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_of_several_policies_the_strictest_counts_in_any_order_of_ends(order):
    """ignore gives way to block, and block to cancel."""
    parents = [job(), job(), job()]
    policies = ("cancel", "block", "ignore")
    dependent = job(
        *({"job": str(each), "on_failure": policy} for each, policy in zip(parents, policies, strict=True))
    )

    for place in order:
        end(parents[place], status=FAILED)

    assert status(dependent) == CANCELLED
    assert why(dependent) == ("prerequisite_failed", parents[0])


def test_what_falls_through_many_ways_falls_once():
    """Ten layers of four, each waiting for all of the layer before."""
    layers = [[job()]]
    for _ in range(9):
        layers.append([job(*layers[-1]) for _ in range(4)])

    run(layers[0][0], how=DEAD)
    passes()

    below = [each for layer in layers[1:] for each in layer]
    assert statuses(*below) == [CANCELLED] * 36
    assert {why(each) for each in below} == {("prerequisite_failed", layers[0][0])}
    assert [events(each) for each in below] == [[CANCELLED]] * 36


def test_more_dependents_than_one_statement_takes_are_left_to_passes():
    top = job()
    answers = links(*({"depends_on": [str(top)]} for _ in range(1_300)))

    run(top)

    freed = statuses(*(answer.job_id for answer in answers)).count(READY)
    assert freed == 500
    assert left() > 0
    assert passes() <= 6
    assert set(statuses(*(answer.job_id for answer in answers))) == {READY}


def test_a_pass_takes_no_more_than_it_is_told_and_says_when_nothing_is_left():
    top = job()
    answers = links(*({"depends_on": [str(top)]} for _ in range(700)))
    run(top)

    assert resolve(limit=50).looked_at >= 50
    freed = statuses(*(answer.job_id for answer in answers)).count(READY)
    assert 550 <= freed <= 600
    passes()
    assert resolve(limit=50) == (0, False)


def test_a_chain_that_is_longer_than_one_statement_takes_falls_by_passes():
    ids = [str(UUID(int=number + 1)) for number in range(1_200)]
    links(*({"id": each, "depends_on": [before]} for before, each in itertools.pairwise(ids)), {"id": ids[0]})

    run(UUID(ids[0]), how=FAILED)
    passes()

    assert set(statuses(*map(UUID, ids[1:]))) == {CANCELLED}
    assert JobEvent.objects.filter(event=CANCELLED).count() == 1_199
    assert why(UUID(ids[-1])) == ("prerequisite_failed", UUID(ids[0]))


def test_dependents_of_one_tenant_follow_their_own():
    with tenant_context("acme"):
        parent = job()
        dependent = job(parent)
    with tenant_context("bolt"):
        other = job(job())

    run(parent)

    assert statuses(dependent, other) == [READY, WAITING]

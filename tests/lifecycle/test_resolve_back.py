"""resolve, after a retry: what was cancelled or blocked because of a job comes back with it."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import connection

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.expire import expire
from pgbroker.lifecycle.resolve import resolve
from pgbroker.lifecycle.retry import retry_many
from pgbroker.models import JobState
from pgbroker.states import Status
from tests.support.jobs import age, events, row, status
from tests.support.links import (
    BLOCKED,
    CANCELLED,
    COMPLETED,
    DEAD,
    FAILED,
    READY,
    SCHEDULED,
    WAITING,
    edges,
    end,
    job,
    left,
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


def test_a_chain_comes_back_when_its_head_is_retried():
    made = chain(5)
    run(made[0], how=FAILED)
    passes()

    (answer,) = retry_many([made[0]])
    passes()

    assert answer.outcome == "retried"
    assert statuses(*made) == [READY, *[WAITING] * 4]
    assert [why(each) for each in made] == [None] * 5
    for each in made:
        assert row(each).finished_at is None
        run(each)
    assert statuses(*made) == [COMPLETED] * 5
    assert [events(each) for each in made[1:]] == [[CANCELLED, COMPLETED]] * 4


def test_a_diamond_comes_back():
    top = job()
    sides = job(top), job(top)
    bottom = job(*sides)
    run(top, how=DEAD)
    passes()
    assert statuses(*sides, bottom) == [CANCELLED] * 3

    retry_many([top])
    passes()
    run(top)
    run(*sides)

    assert status(bottom) == READY


def test_a_job_with_two_failed_prerequisites_comes_back_with_the_last_of_them():
    first, second = job(), job()
    dependent = job(first, second)
    below = job(dependent)
    end(first, second, status=FAILED)
    passes()

    retry_many([first])
    passes()
    assert statuses(dependent, below) == [CANCELLED] * 2
    assert why(dependent) == ("prerequisite_failed", second), "the first lives"

    retry_many([second])
    passes()
    assert statuses(dependent, below) == [WAITING] * 2
    run(first, second)
    assert status(dependent) == READY


def test_a_blocked_job_with_two_failed_prerequisites_tells_of_the_one_that_still_blocks():
    first, second = job(), job()
    dependent = job(first, second, on_failure="block")
    end(first, second, status=FAILED)

    retry_many([first])
    passes()

    assert status(dependent) == BLOCKED
    assert why(dependent) == ("prerequisite_failed", second)
    assert str(first) not in JobState.objects.get(job=dependent).reason


def test_a_blocked_job_waits_again_and_runs_after_the_retry():
    parent = job()
    blocked = job(parent, on_failure="block")
    below = job(blocked)
    run(parent, how=FAILED)

    retry_many([parent])
    passes()
    assert statuses(blocked, below) == [WAITING] * 2
    run(parent)
    run(blocked)

    assert status(below) == READY


def test_a_job_that_somebody_cancelled_does_not_come_back():
    parent = job()
    blocked, waiting = job(parent, on_failure="block"), job(parent)
    cancel_many([waiting], reason="not wanted")
    run(parent, how=FAILED)
    cancel_many([blocked], reason="not wanted")
    assert [why(each) for each in (blocked, waiting)] == [("cancelled", None)] * 2

    retry_many([parent])
    passes()
    run(parent)

    assert statuses(blocked, waiting) == [CANCELLED] * 2


def test_what_ended_for_its_own_reasons_does_not_come_back_with_its_prerequisite():
    parent = job()
    late = job(parent, on_failure="block", deadline_seconds=3600)
    run(parent, how=FAILED)
    age(late, only=["deadline_at"], days=1)
    expire(limit=10)
    assert why(late) == ("deadline_exceeded", None)

    retry_many([parent])
    passes()

    assert status(late) == FAILED


@pytest.mark.parametrize("newer_ends", [None, CANCELLED], ids=str)
def test_a_job_whose_key_a_newer_one_took_comes_back_only_if_that_has_let_go(newer_ends):
    parent = job()
    dependent = job(parent, idempotency_key="k")
    run(parent, how=FAILED)
    assert status(dependent) == CANCELLED
    newer = job(idempotency_key="k", priority=5)
    if newer_ends:
        end(newer, status=newer_ends)

    retry_many([parent])
    passes()
    run(parent)

    assert status(dependent) == (CANCELLED if newer_ends is None else READY)
    holder = newer if newer_ends is None else dependent
    with connection.cursor() as cursor:
        cursor.execute("select job_id from pgbroker.idempotency where key = 'k'")
        assert cursor.fetchall() == [(holder,)]


def test_a_failed_prerequisite_bars_the_retry_of_its_dependent_alone():
    parent = job()
    dependent = job(parent)
    run(parent, how=FAILED)

    (answer,) = retry_many([dependent])

    assert (answer.outcome, answer.holder_id) == ("prerequisite_failed", parent)
    assert status(dependent) == CANCELLED


def test_both_retried_together_wait_for_each_other_and_never_flip():
    parent, other = job(), job()
    dependent = job(parent, other)
    below = job(dependent)
    end(parent, other, status=FAILED)
    passes()
    before = events(dependent), events(below)

    answers = retry_many([parent, other, dependent, below])
    assert {answer.outcome for answer in answers} == {"retried"}
    assert statuses(parent, other, dependent, below) == [READY, READY, WAITING, WAITING]
    # One of them completes before a pass has come by.
    run(parent)
    assert statuses(dependent, below) == [WAITING] * 2
    passes()
    run(other)
    run(dependent)

    assert status(below) == READY
    assert events(dependent) == [*before[0], COMPLETED]
    assert events(below) == before[1]


def test_a_job_retried_with_a_prerequisite_that_is_refused_does_not_wait_for_ever():
    parent = job(idempotency_key="k")
    dependent = job(parent)
    below = job(dependent)
    run(parent, how=FAILED)
    passes()
    job(idempotency_key="k", priority=5)

    answers = {answer.job_id: answer.outcome for answer in retry_many([parent, dependent, below])}
    passes()

    assert answers[parent] == "key_held_by_newer_job"
    assert statuses(parent, dependent, below) == [FAILED, CANCELLED, CANCELLED]
    assert why(dependent) == why(below) == ("prerequisite_failed", parent)


def test_a_prerequisite_that_fails_again_after_its_retry_takes_its_dependents_along_again():
    made = chain(3)
    run(made[0], how=FAILED)
    passes()
    retry_many([made[0]])
    passes()

    run(made[0], how=FAILED)
    passes()

    assert statuses(*made) == [FAILED, CANCELLED, CANCELLED]
    assert events(made[2]) == [CANCELLED, CANCELLED]


def test_a_prerequisite_that_fails_again_before_a_pass_came_by_leaves_its_dependents_cancelled():
    made = chain(3)
    run(made[0], how=FAILED)
    passes()
    retry_many([made[0]])

    run(made[0], how=FAILED)
    passes()

    assert statuses(*made) == [FAILED, CANCELLED, CANCELLED]
    assert events(made[2]) == [CANCELLED]


def test_an_edge_that_was_ignored_stays_satisfied():
    parent = job()
    dependent = job(parent, on_failure="ignore")
    run(parent, how=FAILED)

    retry_many([parent])
    passes()

    assert status(dependent) == READY
    assert edges(dependent) == {parent: (FAILED, True)}


def test_a_job_that_was_to_run_later_comes_back_to_that():
    parent = job()
    later = job(parent, delay_seconds=3600)
    run(parent, how=FAILED)
    assert status(later) == CANCELLED

    retry_many([parent])
    passes()
    run(parent)

    assert status(later) == SCHEDULED
    assert row(later).available_at is not None


def test_nothing_is_left_to_do_after_all_of_it():
    made = chain(4)
    run(made[0], how=FAILED)
    passes()
    retry_many([made[0]])
    passes()

    assert (left(), resolve(limit=500).looked_at) == (0, 0)
    assert Status(row(made[3]).status) == WAITING

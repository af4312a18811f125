"""unblock: blocked -> ready, waiting, scheduled; what blocked it counts as met, and how that ended is kept."""

from __future__ import annotations

from uuid import uuid4

import pytest

from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.unblock import unblock_many
from pgbroker.tenancy import tenant_context
from tests.support.jobs import row, status
from tests.support.links import (
    BLOCKED,
    CANCELLED,
    COMPLETED,
    FAILED,
    READY,
    SCHEDULED,
    WAITING,
    deadlines_pass,
    deferred,
    edges,
    end,
    job,
    passes,
    run,
    statuses,
    why,
)

pytestmark = pytest.mark.django_db


def blocked(**options) -> tuple:
    """A failed job and one that it blocks."""
    parent = job()
    dependent = job(parent, on_failure="block", **options)
    run(parent, how=FAILED)
    assert status(dependent) == BLOCKED
    return parent, dependent


def test_a_blocked_job_is_ready_and_its_edge_keeps_how_the_prerequisite_ended():
    parent, dependent = blocked()

    (answer,) = unblock_many([dependent])

    assert (answer.job_id, answer.outcome, answer.status) == (dependent, "unblocked", READY)
    assert edges(dependent) == {parent: (FAILED, True)}
    assert why(dependent) is None
    run(dependent)
    assert status(dependent) == COMPLETED


def test_it_goes_on_waiting_for_what_lives():
    parent, other = job(), job()
    dependent = job(parent, other, on_failure="block")
    run(parent, how=FAILED)

    (answer,) = unblock_many([dependent])

    assert (answer.outcome, answer.status) == ("unblocked", WAITING)
    run(other)
    assert status(dependent) == READY


def test_a_job_that_is_to_run_later_is_scheduled():
    _, dependent = blocked(delay_seconds=3600)

    (answer,) = unblock_many([dependent])

    assert answer.status == SCHEDULED
    assert row(dependent).available_at is not None


def test_those_behind_it_go_on():
    _, dependent = blocked()
    below = job(dependent)

    unblock_many([dependent])
    run(dependent)

    assert status(below) == READY


def test_what_is_not_blocked_stays_as_it_is_and_what_is_not_there_has_no_answer():
    parent = job()
    waiting, cancelled = job(parent), job(parent)
    end(cancelled, status=CANCELLED)
    with tenant_context("bolt"):
        _, theirs = blocked()

    answers = unblock_many([parent, waiting, cancelled, theirs, uuid4()])

    assert {answer.job_id: answer.outcome for answer in answers} == dict.fromkeys(
        (parent, waiting, cancelled), "unchanged"
    )
    assert statuses(parent, waiting, cancelled, theirs) == [READY, WAITING, CANCELLED, BLOCKED]


def test_a_prerequisite_that_has_just_been_retried_is_waited_for():
    """No pass has come by yet, and the edge still tells of the former end."""
    parent, dependent = blocked()
    retry_many([parent])

    (answer,) = unblock_many([dependent])

    assert answer.status == WAITING
    passes()
    assert status(dependent) == WAITING
    run(parent)
    assert status(dependent) == READY


def test_an_unblocked_job_does_not_wait_again_when_its_prerequisite_is_retried():
    parent, dependent = blocked()
    unblock_many([dependent])

    retry_many([parent])
    passes()

    assert status(dependent) == READY


@pytest.mark.parametrize("how", ["alone", "behind a prerequisite"])
def test_one_whose_reference_came_to_nothing_is_ready(how):
    parents = [job()] if how == "behind a prerequisite" else []
    dependent = job({"group": "later", "within_seconds": 5}, *parents, on_failure="block")
    for parent in parents:
        end(parent, status=FAILED)
    deadlines_pass(dependent)
    deferred()
    assert (status(dependent), why(dependent)) == (BLOCKED, ("reference_expired", None))

    (answer,) = unblock_many([dependent])

    assert (answer.outcome, answer.status) == ("unblocked", READY)
    assert why(dependent) is None

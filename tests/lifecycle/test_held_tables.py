"""A table that somebody holds for a moment, as CREATE INDEX does, loses nothing that is to be made: it comes late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from psycopg import errors

from pgbroker import db
from pgbroker.lifecycle.settle import settle
from pgbroker.models import RunGroup
from pgbroker.schedules.tick import tick
from pgbroker.states import Status
from pgbroker.tenancy import scope_all
from tests.support.jobs import OTHER_TYPE, claim_one, completed, enqueue_one, failed, status, type_id
from tests.support.links import sealed_group
from tests.support.schedules import entry, jobs, make, states
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def impatient() -> Iterator[db.Session]:
    """A session that waits for no lock for long, as those of workers and schedulers."""
    type_id(), type_id(OTHER_TYPE)
    session = db.Session("default", purpose="held", lock_timeout="100ms")
    yield session
    session.drop()


@contextmanager
def held(table: str = "job_payload") -> Iterator[None]:
    """Keep everybody from writing to a table."""
    with second_session() as somebody, somebody.transaction():
        somebody.execute(f"lock table pgbroker.{table} in share mode")
        yield


def test_the_callback_of_a_group_is_made_by_the_settle_that_comes_again(impatient):
    group_id, _ = sealed_group("g", {}, on_completed={"job_type": OTHER_TYPE})
    lease = claim_one()

    with held(), pytest.raises(errors.LockNotAvailable):
        settle([completed(lease)], using=impatient)
    assert status(lease.job_id) == Status.RUNNING
    settle([completed(lease)], using=impatient)

    with scope_all():
        group = RunGroup.objects.get(pk=group_id)
    assert group.callback_error is None
    assert status(group.completed_job_id) == Status.READY


def test_on_exhausted_is_made_by_the_settle_that_comes_again(impatient):
    enqueue_one(max_attempts=1, options={"on_exhausted": OTHER_TYPE})
    lease = claim_one()

    with held(), pytest.raises(errors.LockNotAvailable):
        settle([failed(lease)], using=impatient)
    assert status(lease.job_id) == Status.RUNNING
    settle([failed(lease)], using=impatient)

    assert status(lease.job_id) == Status.DEAD_LETTER
    assert sorted(Status(job.status) for job in jobs()) == [Status.READY, Status.DEAD_LETTER]


@pytest.mark.parametrize(
    "template",
    [[entry()], [entry(name="one"), entry(name="two", depends_on=["one"])]],
    ids=["a job", "a workflow"],
)
def test_a_tick_is_created_by_the_pass_that_comes_again(template, impatient):
    schedule = make(template={"jobs": template})

    with held(), pytest.raises(errors.LockNotAvailable):
        tick(using=impatient)
    assert states(schedule) == []
    tick(using=impatient)

    assert states(schedule) == ["created"]
    assert len(jobs()) == len(template)


@pytest.mark.parametrize(
    ("code", "passing"),
    [
        *((code, True) for code in ("40P01", "40001", "55P03", "53100", "57P01", "58030")),
        *((code, False) for code in ("23505", "22P02", "PB001", "P0001", "42P01")),
    ],
)
def test_what_is_wrong_with_the_job_is_told_from_what_passes(code, passing, impatient):
    found = impatient.connection.execute("select pgbroker.is_passing_1(%s)", (code,)).fetchone()

    assert found == (passing,)

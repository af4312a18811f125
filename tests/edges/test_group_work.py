"""What a handler does with its group and its prerequisites, and how tests run jobs that wait."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from django.test import TestCase

from pgbroker import JobContext, get_group, get_job, job, run_group, tenant_context
from pgbroker.context import Stop
from pgbroker.errors import AttemptCancelled, GroupNotFound, GroupSealed
from pgbroker.lifecycle.promote import promote
from pgbroker.models import Job
from pgbroker.registry import lookup
from pgbroker.states import GroupState, Status
from pgbroker.testing import inline_jobs, run_jobs
from tests.support.jobs import age, claim_many, completed, queue_id, reap_all, settle_one

pytestmark = pytest.mark.django_db

seen: list[Any] = []
broken: set[int] = set()


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()
    broken.clear()


@job(name="tests.members.step", max_attempts=1)
def step(number: int = 0) -> int:
    if number in broken:
        raise LookupError(f"{number} is broken")
    seen.append(number)
    return number


@job(name="tests.members.total", takes_context=True)
def total(context: JobContext) -> int:
    return sum(each.result for each in context.prerequisites)


@job(name="tests.members.outline", takes_context=True)
def outline(context: JobContext) -> None:
    seen.extend(context.prerequisites)


@job(name="tests.members.aoutline", takes_context=True)
async def aoutline(context: JobContext) -> None:
    async for each in context.prerequisites:
        seen.append(each)
        seen.extend([member.result async for member in each.members])


@job(name="tests.members.grafts", takes_context=True)
def grafts(context: JobContext, number: int, waits: bool = False) -> str:
    options = {"depends_on": ["first"]} if waits else {}
    with tenant_context("somebody-else"):
        return str(context.graft(step.options(name=f"grafted {number}", **options), number).id)


@job(name="tests.members.agrafts", takes_context=True)
async def agrafts(context: JobContext, number: int) -> None:
    await context.agraft(step, number)


# ------------------------------------------------------------------ graft


def test_a_running_job_adds_members_to_its_group() -> None:
    with run_group("g", seal=False) as group:
        group.enqueue(step, 1, name="first")
        group.enqueue(grafts, 2, waits=True)
        group.enqueue(agrafts, 3)

    ran = run_jobs(reraise=True)

    assert sorted(map(str, seen)) == ["1", "2", "3"]
    assert group.progress().total == 5
    grafted = Job.objects.get(name="grafted 2")
    assert str(grafted.pk) == next(each.result for each in ran if each.job_type == grafts.key)
    assert group.seal() == GroupState.COMPLETED


def test_a_job_outside_of_a_group_or_in_a_sealed_one_adds_nothing() -> None:
    with run_group("g") as group:
        group.enqueue(grafts, 1)
    outside = grafts.enqueue(2)

    errors = {ran.job_id: ran.error for ran in run_jobs()}

    assert isinstance(errors.pop(UUID(outside.id)), GroupNotFound)
    assert {type(error) for error in errors.values()} == {GroupSealed}


@pytest.mark.parametrize("taken_back", ["to be run again", "running elsewhere", "settled"])
def test_an_attempt_that_lost_its_lease_adds_nothing(taken_back: str) -> None:
    with run_group("g", seal=False) as group:
        group.enqueue(grafts, 1)
    (lease,) = claim_many()
    context = JobContext(lease, lookup(grafts.key), Stop())
    assert context.graft(step, 1)
    if taken_back == "settled":
        settle_one(completed(lease))
    else:
        age(lease.job_id, hours=1)
        reap_all()
        if taken_back == "running elsewhere":
            age(lease.job_id, hours=1)
            promote([queue_id()], limit=10)
            assert lease.job_id in {each.job_id for each in claim_many()}

    with pytest.raises(AttemptCancelled, match=f"lost its lease on job {lease.job_id}"):
        context.graft(step, 2)

    assert group.progress().total == 2


def test_a_job_of_another_tenant_adds_to_its_own_group() -> None:
    with run_group("g", seal=False):
        pass
    with tenant_context("acme"), run_group("g", seal=False) as theirs:
        theirs.enqueue(grafts, 1)

    run_jobs(reraise=True)

    assert get_group("g").progress().total == 0
    with tenant_context("acme"):
        assert theirs.progress().total == 2


# ------------------------------------------------------------------ results of prerequisites


def test_a_handler_reads_what_its_prerequisites_returned() -> None:
    with run_group("g") as group:
        made = [group.enqueue(step, number, name=f"part {number}") for number in range(3)]
        whole = group.enqueue(total, depends_on=made)

    run_jobs(reraise=True)

    assert get_job(whole).result == 3


def test_prerequisites_say_which_they_are_and_how_they_ended() -> None:
    broken.add(2)
    with run_group("g", tolerate=1) as group:
        group.enqueue(step, 1, name="one")
        bad = group.enqueue(step, 2)
    single = step.enqueue(3)
    outline.options(depends_on=[group, single, bad], on_failure="ignore").enqueue()

    run_jobs(reraise=False)

    found = {each.id: each for each in seen if not isinstance(each, int)}
    assert (found[group.id].is_group, found[group.id].group, found[group.id].name) == (True, "g", None)
    assert (found[group.id].status, found[group.id].result) == (GroupState.COMPLETED, None)
    assert {(each.name, each.status, each.result) for each in found[group.id].members} == {
        ("one", Status.COMPLETED, 1),
        (None, Status.DEAD_LETTER, None),
    }
    one = found[UUID(single.id)]
    assert (one.is_group, one.group, one.status, one.result) == (False, None, Status.COMPLETED, 3)
    assert list(one.members) == []
    assert (found[UUID(bad.id)].group, found[UUID(bad.id)].status) == ("g", Status.DEAD_LETTER)


def test_prerequisites_are_read_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgbroker.prerequisites.PAGE", 2)
    with run_group("g") as group:
        made = [outcome.job_id for outcome in group.enqueue_many([step.bind(number) for number in range(6)])]
    whole = total.options(depends_on=made).enqueue()
    outline.options(depends_on=[group]).enqueue()

    run_jobs(reraise=True)

    assert get_job(whole).result == 15
    (of_group,) = [each for each in seen if not isinstance(each, int)]
    assert sorted(each.result for each in of_group.members) == list(range(6))


@pytest.mark.django_db(transaction=True)
def test_async_handlers_read_them_with_async_for() -> None:
    with run_group("g") as group:
        group.enqueue_many([step.bind(1), step.bind(2)])
    aoutline.options(depends_on=[group]).enqueue()

    run_jobs(reraise=True)

    results = [each for each in seen if isinstance(each, int)]
    assert (sorted(results[:2]), sorted(results[2:])) == ([1, 2], [1, 2])


def test_a_job_without_prerequisites_has_none() -> None:
    outline.enqueue()

    run_jobs(reraise=True)

    assert seen == []


# ------------------------------------------------------------------ the testing kit


class TestInATestCase(TestCase):
    def test_members_and_what_waits_for_them_have_run_when_the_block_has_ended(self) -> None:
        with inline_jobs() as ran:
            with run_group("g") as group:
                first = group.enqueue(step, 1)
                group.enqueue(step, 2, depends_on=[first])
                assert seen == []
            step.options(depends_on=[group]).enqueue(3)

        assert seen == [1, 2, 3]
        assert [each.status for each in ran] == [Status.COMPLETED] * 3

    def test_what_a_seal_frees_has_run_when_it_returns(self) -> None:
        with inline_jobs():
            with run_group("g", seal=False) as group:
                pass
            step.options(depends_on=[group]).enqueue(1)
            assert seen == []

            group.seal()

            assert seen == [1]


def test_a_chain_far_deeper_than_one_statement_follows_runs_to_its_end() -> None:
    calls = [step.bind(0)]
    for number in range(1, 30):
        calls.append(step.options(depends_on=[calls[-1]]).bind(number))
    with run_group("g") as group:
        group.enqueue_many(calls)
    broken.add(3)

    run_jobs()

    assert group.progress().counts == {Status.COMPLETED: 3, Status.DEAD_LETTER: 1, Status.CANCELLED: 26}

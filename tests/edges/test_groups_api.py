"""Run groups as a project uses them: open, fill and seal; callbacks, progress, cancel, retry; graft and results."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction
from django.test import override_settings

from pgbroker import (
    DeferredRef,
    GroupRef,
    RunGroup,
    get_group,
    get_job,
    job,
    retry,
    run_group,
    tenant_context,
)
from pgbroker.compat import BaseTaskBackend
from pgbroker.errors import (
    CyclicDependency,
    DependencyNotFound,
    DuplicateJobName,
    EnqueueRefused,
    GroupExists,
    GroupNotFound,
    GroupSealed,
    InvalidArgument,
    InvalidOption,
    PayloadTooLarge,
    SelfDependency,
)
from pgbroker.models import Job, JobDependency, JobType, Queue
from pgbroker.models import RunGroup as Stored
from pgbroker.states import GroupState, Status
from pgbroker.tenancy import scope_all
from pgbroker.testing import guards_off, run_jobs
from tests.support.jobs import reason, status
from tests.support.links import links, passes, statuses
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db

seen: list[object] = []
broken: set[int] = set()


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()
    broken.clear()


@job(name="tests.groups.step", max_attempts=1)
def step(number: int = 0) -> int:
    if number in broken:
        raise LookupError(f"{number} is broken")
    seen.append(number)
    return number


@job(name="tests.groups.greet")
def greet(name: str, depends_on: int = 0) -> str:
    return name


@job(name="tests.groups.done", queue_name="group-callbacks")
def done(word: str) -> None:
    seen.append(word)


def state(name: str) -> GroupState:
    return GroupState(Stored.objects.get(name=name).state)


# ------------------------------------------------------------------ open, fill, seal


def test_a_group_is_opened_filled_and_sealed_and_ends_with_its_last_member() -> None:
    with run_group("nightly") as group:
        extract = group.enqueue(step, 1)
        load = group.enqueue(step, number=2, depends_on=[extract], name="load")
        assert state("nightly") == GroupState.OPEN
    assert state("nightly") == GroupState.SEALED
    assert Job.objects.get(pk=load.id).name == "load"

    after = step.options(depends_on=[group]).enqueue(3)
    run_jobs()

    assert seen == [1, 2, 3]
    assert (state("nightly"), status(UUID(after.id))) == (GroupState.COMPLETED, Status.COMPLETED)


@pytest.mark.django_db(transaction=True)
def test_nothing_of_a_group_is_seen_before_its_block_has_ended() -> None:
    with second_session() as other:
        count = "select (select count(*) from pgbroker.job) + (select count(*) from pgbroker.run_group)"
        with run_group("nightly") as group:
            group.enqueue(step)
            group.enqueue_many([step.bind(1)])
            assert other.execute(count).fetchone() == (0,)
        assert other.execute(count).fetchone() == (3,)


def fill_half(*numbers: Any) -> None:
    with run_group("nightly") as group:
        for number in numbers:
            group.enqueue(step, number)


def test_a_block_that_raises_leaves_nothing_behind_and_the_callers_transaction_alone() -> None:
    with transaction.atomic():
        before = step.enqueue(1)
        with pytest.raises(InvalidArgument):
            fill_half(2, "x")
        after = step.enqueue(3)

    assert set(Job.objects.values_list("pk", flat=True)) == {UUID(before.id), UUID(after.id)}
    assert not Stored.objects.exists()
    with run_group("nightly"):
        pass


@pytest.mark.django_db(transaction=True)
def test_a_block_that_is_to_be_rolled_back_leaves_nothing_behind_and_raises_nothing() -> None:
    with run_group("nightly") as group:
        group.enqueue(step, 1)
        transaction.set_rollback(True)

    assert (Stored.objects.count(), Job.objects.count()) == (0, 0)


def test_a_refusal_inside_of_the_block_may_be_caught() -> None:
    with run_group("nightly") as group:
        group.enqueue(step, 1, name="one")
        with pytest.raises(DuplicateJobName):
            group.enqueue(step, 2, name="one")
        with pytest.raises(DependencyNotFound):
            group.enqueue(step, 2, depends_on=["two"])

    assert group.progress().total == 1


def test_a_name_is_used_once() -> None:
    with run_group("nightly") as group:
        pass
    with pytest.raises(GroupExists, match="'nightly'"), run_group("nightly"):
        raise AssertionError("unreachable")

    assert get_group("nightly") == group
    assert Stored.objects.count() == 1


def test_an_empty_group_completes_when_it_is_sealed() -> None:
    with run_group("empty", on_completed=done.bind("completed")):
        pass

    assert state("empty") == GroupState.COMPLETED
    run_jobs()
    assert seen == ["completed"]


def test_a_group_that_stays_open_takes_jobs_until_it_is_sealed() -> None:
    with run_group("open", seal=False) as group:
        group.enqueue(step, 1)
    run_jobs()
    assert state("open") == GroupState.OPEN

    get_group("open").enqueue(step, 2)
    step.options(group="open").enqueue(3)
    assert group.seal() == GroupState.SEALED
    assert group.seal() == GroupState.SEALED
    for late in (partial(group.enqueue, step, 4), step.options(group=group).enqueue):
        with pytest.raises(GroupSealed):
            late()
    assert {outcome.outcome for outcome in group.enqueue_many([step.bind(4)])} == {"group_sealed"}
    run_jobs()

    assert (seen, group.seal()) == ([1, 2, 3], GroupState.COMPLETED)


def test_many_members_go_in_with_one_call() -> None:
    with run_group("many") as group:
        first = step.bind(0)
        made = group.enqueue_many(
            [first, *(step.options(depends_on=[first]).bind(number) for number in range(1, 5)), greet.bind(7)]  # type: ignore[arg-type]
        )

    assert [outcome.outcome for outcome in made] == ["created"] * 5 + ["invalid_argument"]
    assert set(Job.objects.values_list("run_group_id", flat=True)) == {group.id}
    assert JobDependency.objects.count() == 4


def test_a_task_may_be_bound_before() -> None:
    with run_group("g") as group:
        group.enqueue(greet.bind(name="Ann", depends_on=3), name="ann")

    assert Job.objects.get().name == "ann"
    assert get_job(Job.objects.get().pk).call["kwargs"] == {"name": "Ann", "depends_on": 3}


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda group: group.enqueue(greet, name="Ann"), "name is an option .* parameter of greet"),
        (lambda group: group.enqueue(greet, "Ann", depends_on=[]), "depends_on is an option"),
        (lambda group: group.enqueue(step.bind(1), 2), "bound to its arguments"),
        (lambda group: group.enqueue(step.func, 2), "task is a function"),
        (lambda group: group.enqueue(step.options(group="other"), 2), "group is 'other'"),
        (lambda group: group.enqueue(step, depends_on=[step.bind()]), "not enqueued together"),
    ],
    ids=["parameter", "parameter with a list", "bound twice", "function", "another group", "a call"],
)
def test_what_cannot_be_meant_is_refused(call: Callable[[RunGroup], object], word: str) -> None:
    with run_group("g", seal=False) as group, pytest.raises(InvalidOption, match=word):
        call(group)

    assert not Job.objects.exists()


def test_a_list_for_a_group_takes_no_call_of_another_one() -> None:
    with run_group("g") as group:
        refused, made = group.enqueue_many(
            [step.options(group="other").bind(), step.options(name="x").bind()]
        )

    assert (refused.outcome, made.outcome) == ("invalid_option", "created")


def test_a_task_that_goes_elsewhere_is_refused() -> None:
    with run_group("g", seal=False) as group:
        pass
    immediate = BaseTaskBackend.__module__.replace(".base", ".immediate.ImmediateBackend")
    tasks = {"default": {"BACKEND": immediate, "QUEUES": []}}

    with override_settings(TASKS=tasks), pytest.raises(InvalidOption, match="ImmediateBackend"):
        group.enqueue(step, 1)

    assert (seen, Job.objects.count()) == ([], 0)


@pytest.mark.django_db(transaction=True)
def test_a_seal_waits_for_whoever_is_adding() -> None:
    with run_group("open", seal=False) as group:
        group.enqueue(step, 1)
    run_jobs()
    entry = '[{"job_type": "tests.groups.step", "group": "open"}]'

    with second_session("default") as other:
        with other.transaction():
            other.execute("select pgbroker.enqueue_many_1(%s)", [entry])
            sealing = InThread(group.seal)
            sealing.start()
            wait_until_blocked(sealing, other)
        assert sealing.result() == GroupState.SEALED

    run_jobs()
    assert (group.progress().total, state("open")) == (2, GroupState.COMPLETED)


# ------------------------------------------------------------------ what a group waits for


def test_members_of_a_group_wait_for_what_the_group_waits_for() -> None:
    first = step.enqueue(1)
    with run_group("one") as one:
        one.enqueue(step, 2)
    with run_group("two", depends_on=[first, one]) as two:
        member = two.enqueue(step, 3)

    assert status(UUID(member.id)) == Status.WAITING
    run_jobs()
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    ("policy", "end", "members"),
    [
        ("cancel", GroupState.FAILED, Status.CANCELLED),
        ("block", GroupState.SEALED, Status.BLOCKED),
        ("ignore", GroupState.COMPLETED, Status.COMPLETED),
    ],
)
def test_a_group_whose_prerequisite_fails_does_as_it_says(
    policy: str, end: GroupState, members: Status
) -> None:
    broken.add(1)
    first = step.enqueue(1)
    with run_group("after", depends_on=[first], on_failure=policy) as group:
        member = group.enqueue(step, 2)

    run_jobs()

    assert (state("after"), status(UUID(member.id))) == (end, members)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"depends_on": [uuid4()]}, DependencyNotFound),
        ({"depends_on": [GroupRef("no")]}, DependencyNotFound),
        ({"depends_on": [DeferredRef("later", within=5)]}, InvalidOption),
        ({"depends_on": [step.bind()]}, InvalidOption),
        ({"depends_on": "import"}, InvalidOption),
        ({"on_failure": "explode"}, InvalidOption),
        ({"tolerate": -1}, InvalidOption),
        ({"tolerate": 1.5}, InvalidOption),
        ({"tolerate": True}, InvalidOption),
        ({"tolerate": "5"}, InvalidOption),
        ({"tolerate": "101%"}, InvalidOption),
        ({"on_completed": 7}, InvalidOption),
        ({"on_completed": step.bind("x")}, InvalidArgument),  # type: ignore[arg-type]
        ({"on_failed": greet.bind("x" * 300_000)}, PayloadTooLarge),
        ({"on_failed": step.options(tenant="acme").bind()}, InvalidOption),
        ({"on_failed": step.options(depends_on=[step.bind()]).bind()}, InvalidOption),
        ({"on_failed": step.using(queue_name="no-such-queue").bind()}, EnqueueRefused),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value.__name__,
)
def test_a_group_that_cannot_be_is_refused_and_leaves_nothing_behind(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error), run_group("g", **options):
        raise AssertionError("unreachable")

    assert (Stored.objects.count(), JobDependency.objects.count()) == (0, 0)


@pytest.mark.parametrize("name", ["", 7, None, "x" * 256, "a\x00"], ids=repr)
def test_a_group_has_a_name(name: Any) -> None:
    with pytest.raises(InvalidOption, match="name"):
        run_group(name)
    with pytest.raises(InvalidOption, match="name"):
        get_group(name)


def test_groups_do_not_wait_for_each_other_in_a_circle() -> None:
    with run_group("a", seal=False) as a, run_group("b", depends_on=[a], seal=False) as b:
        with pytest.raises(CyclicDependency):
            a.enqueue(step, depends_on=[b])
        with pytest.raises(CyclicDependency):
            a.enqueue(step, depends_on=[a])
        with pytest.raises(SelfDependency):
            a.enqueue(step, depends_on=["me"], name="me")

    assert not Job.objects.exists()


# ------------------------------------------------------------------ policies and callbacks


@pytest.mark.parametrize(
    ("tolerate", "end"),
    [
        (0, GroupState.FAILED),
        (1, GroupState.COMPLETED),
        ("20%", GroupState.COMPLETED),
        ("19.9%", GroupState.FAILED),
    ],
)
def test_a_group_tolerates_so_many(tolerate: Any, end: GroupState) -> None:
    broken.add(1)
    with run_group("g", tolerate=tolerate) as group:
        group.enqueue_many([step.bind(number) for number in range(5)])

    run_jobs()

    progress = group.progress()
    assert (progress.state, progress.tolerate) == (end, tolerate)
    assert (progress.failed, progress.completed, progress.percent) == (1, 4, 100.0)


def test_a_callback_is_enqueued_once_for_each_end() -> None:
    broken.add(1)
    with run_group("g", on_completed=done.bind("well"), on_failed=done.bind(word="badly")) as group:
        first = group.enqueue(step, 1)
        group.enqueue(step, 2)

    run_jobs()
    assert (seen, state("g")) == ([2, "badly"], GroupState.FAILED)
    retry(first)
    run_jobs()
    broken.clear()
    retry(first)
    run_jobs()

    assert (seen, state("g")) == ([2, "badly", 1, "well"], GroupState.COMPLETED)
    assert group.progress().completed_job_id is not None
    callback = Job.objects.get(pk=group.progress().failed_job_id)
    assert (callback.queue.name, callback.run_group_id) == ("group-callbacks", None)


@job(name="tests.groups.alone")
def alone() -> None:
    seen.append("alone")


def test_a_callback_without_arguments_may_be_the_task_itself() -> None:
    with run_group("g", on_completed=alone):
        pass
    run_jobs()

    assert seen == ["alone"]


@pytest.mark.django_db(transaction=True)
def test_a_callback_that_no_worker_has_declared_yet_is_declared_by_its_group() -> None:
    with guards_off():
        JobType.objects.filter(name=done.key).delete()
        Queue.objects.filter(name="group-callbacks").delete()

    with transaction.atomic(), run_group("g", on_completed=done.bind("well")):
        pass
    run_jobs()

    assert seen == ["well"]


# ------------------------------------------------------------------ look and act


def test_the_progress_of_a_group_counts_its_members_by_status() -> None:
    with run_group("g", seal=False) as group:
        assert (group.progress().percent, group.progress().total) == (0.0, 0)
        first = group.enqueue(step, 1)
        group.enqueue(step, 2, depends_on=[first])
        group.enqueue(step.using(run_after=timedelta(hours=1)), 3)
    run_jobs(limit=1)

    progress = group.progress()

    assert progress.counts == {Status.SCHEDULED: 1, Status.READY: 1, Status.COMPLETED: 1}
    assert (progress.name, progress.total, progress.ended, progress.failed) == ("g", 3, 1, 0)
    assert round(progress.percent, 1) == 33.3
    assert (progress.state, progress.is_over, progress.tolerate) == (GroupState.OPEN, False, 0)
    assert progress.sealed_at is None is progress.finished_at
    with pytest.raises(AttributeError):
        progress.total = 7  # type: ignore[misc]


def test_cancelling_a_group_cancels_its_members_and_what_depends_on_it() -> None:
    with run_group("g", seal=False, on_failed=done.bind("failed")) as group:
        made = [group.enqueue(step, number) for number in range(3)]
    after = step.options(depends_on=[group]).enqueue(9)

    answer = group.cancel(reason="the customer has gone", by="ann")
    run_jobs()

    assert (answer.cancelled, answer.requested, GroupState(answer.state)) == (3, 0, GroupState.CANCELLED)
    assert {status(UUID(each.id)) for each in [*made, after]} == {Status.CANCELLED}
    assert get_job(made[0]).reason == "the customer has gone"
    assert seen == []
    with pytest.raises(GroupSealed):
        group.enqueue(step, 4)


def test_a_large_group_is_cancelled_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgbroker.group_control.PAGE", 2)
    with run_group("g") as group:
        group.enqueue_many([step.bind(number) for number in range(5)])

    assert group.cancel().cancelled == 5
    assert state("g") == GroupState.CANCELLED


def test_only_what_failed_is_retried_and_what_waited_for_it_comes_back() -> None:
    broken.update({1, 2})
    with run_group("g", on_completed=done.bind("well")) as group:
        first = group.enqueue(step, 1)
        group.enqueue(step, 2)
        group.enqueue(step, 3)
        after = group.enqueue(step, 4, depends_on=[first])
        group.enqueue(step, 5, depends_on=[after])
    outside = step.options(depends_on=[group]).enqueue(6)
    run_jobs()
    assert (seen, state("g")) == ([3], GroupState.FAILED)
    assert (reason(UUID(after.id)), reason(UUID(outside.id))) == ("prerequisite_failed",) * 2

    broken.clear()
    assert group.retry_failed() == 2
    run_jobs()

    assert (sorted(map(str, seen)), state("g")) == (
        ["1", "2", "3", "4", "5", "6", "well"],
        GroupState.COMPLETED,
    )
    assert group.retry_failed() == 0


@pytest.mark.django_db(transaction=True)
def test_of_two_operators_who_retry_at_once_one_retries_each_member() -> None:
    broken.update({1, 2})
    with run_group("g", on_completed=done.bind("well"), on_failed=done.bind("badly")) as group:
        group.enqueue_many([step.bind(number) for number in range(4)])
    run_jobs()
    broken.clear()

    with transaction.atomic():
        assert group.retry_failed() == 2
        other = InThread(group.retry_failed).start()
        wait_until_blocked(other)
    assert other.result() == 0
    run_jobs()

    assert (sorted(map(str, seen)), state("g")) == (
        ["0", "1", "2", "3", "badly", "well"],
        GroupState.COMPLETED,
    )


def test_what_was_cancelled_because_of_another_job_is_left_to_that_one() -> None:
    broken.add(1)
    with run_group("g") as group:
        first = group.enqueue(step, 1)
        after = group.enqueue(step, 2, depends_on=[first])
    run_jobs()
    assert status(UUID(after.id)) == Status.CANCELLED

    broken.clear()
    assert group.retry_failed(cancelled=True) == 1
    run_jobs()

    assert (seen, state("g")) == ([1, 2], GroupState.COMPLETED)


def test_cancelled_members_are_retried_when_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgbroker.group_control.PAGE", 2)
    with run_group("g") as group:
        group.enqueue_many([step.bind(number) for number in range(5)])
    group.cancel()

    assert group.retry_failed() == 0
    assert group.retry_failed(cancelled=True, attempts=2) == 5
    run_jobs()

    assert state("g") == GroupState.COMPLETED


def test_members_that_wait_for_each_other_are_all_retried_whatever_the_order_of_their_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A chain against the order of ids, longer than rounds would bring back page by page.
    ids = [str(each) for each in sorted((uuid4() for _ in range(30)), reverse=True)]
    with run_group("g") as group:
        links(
            *(
                {"group": "g", "id": id, "depends_on": [above] if above else []}
                for above, id in zip([None, *ids], ids, strict=False)
            )
        )
    group.cancel()
    monkeypatch.setattr("pgbroker.group_control.PAGE", 1)

    assert group.retry_failed(cancelled=True) == 30
    passes()

    assert statuses(*map(UUID, ids)) == [Status.READY] + [Status.WAITING] * 29


def test_a_group_of_another_tenant_is_not_there() -> None:
    with run_group("g", seal=False) as group:
        group.enqueue(step, 1)

    with tenant_context("acme"), pytest.raises(GroupNotFound, match="there is no run group 'g'"):
        get_group("g")
    theirs = RunGroup(group.id, "g", tenant_id="acme", using="default")
    for act in (theirs.progress, theirs.seal, theirs.cancel, partial(theirs.enqueue, step, 2)):
        with pytest.raises(GroupNotFound, match="there is no run group 'g'"):
            act()
    assert theirs.retry_failed() == 0

    assert (state("g"), Job.objects.count()) == (GroupState.OPEN, 1)


def test_a_handle_works_in_the_tenant_of_its_group() -> None:
    with tenant_context("acme"), run_group("g", seal=False) as theirs:
        pass
    with run_group("g", seal=False) as ours:
        theirs.enqueue(step, 1)
        theirs.enqueue_many([step.bind(2)])
        with tenant_context("acme"):
            ours.enqueue(step, 3)

    assert (theirs.progress().total, ours.progress().total) == (2, 1)
    assert (theirs.seal(), theirs.cancel().cancelled) == (GroupState.SEALED, 2)
    assert theirs.retry_failed(cancelled=True) == 2
    with scope_all():
        assert sorted(Job.objects.values_list("tenant_id", flat=True)) == ["acme", "acme", "default"]


def test_a_group_that_is_not_there_is_said_so() -> None:
    with pytest.raises(GroupNotFound, match="there is no run group 'never'"):
        get_group("never")


# ------------------------------------------------------------------ from async code


@pytest.mark.django_db(transaction=True)
def test_async_code_does_the_same() -> None:
    async def work() -> tuple[Any, ...]:
        first = step.bind(0)
        async with run_group("g", seal=False) as group:
            await group.aenqueue(step, 1, name="one")
            await group.aenqueue_many([first, step.options(depends_on=[first, "one"]).bind(2)])
        opened = await group.aprogress()
        sealed = await group.aseal()
        await sync_to_async(run_jobs)()
        await sync_to_async(broken.update)({7})
        async with run_group("h") as other:
            await other.aenqueue(step, 7)
        await sync_to_async(run_jobs)()
        retried = await other.aretry_failed()
        cancelled = await other.acancel()
        return opened.total, sealed, (await group.aprogress()).state, retried, cancelled.cancelled

    assert async_to_sync(work)() == (3, GroupState.SEALED, GroupState.COMPLETED, 1, 1)
    assert sorted(map(int, map(str, seen))) == [0, 1, 2]


@pytest.mark.django_db(transaction=True)
def test_an_async_block_that_raises_leaves_nothing_behind() -> None:
    async def work() -> None:
        async with run_group("g") as group:
            await group.aenqueue(step, 1)
            raise KeyError("x")

    with pytest.raises(KeyError):
        async_to_sync(work)()

    assert (Stored.objects.count(), Job.objects.count()) == (0, 0)


def test_a_callback_that_does_not_fit_is_named_with_what_is_wrong_with_it() -> None:
    with pytest.raises(InvalidArgument, match=r"argument 'on_completed\.\w+' is missing"):
        run_group("new", on_completed=done)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match='from "0%" to "100%"'):
        run_group("new", tolerate="150%")

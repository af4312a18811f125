"""What people say about what they do, and whatever else they write: refused where it cannot be kept, in a few words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from pgbroker import cancel, get_job, job, pause, run_group
from pgbroker.errors import InvalidOption, JobNotFound
from pgbroker.groups import RunGroup
from pgbroker.models import JobState, Pause
from pgbroker.states import Status
from tests.support.jobs import enqueue_one, queue_id, status
from tests.support.links import count_all

pytestmark = pytest.mark.django_db

UNFIT = ["a\x00b", "\ud800", "x" * 2001, 5, None, {}]


@job(name="tests.remarks.step")
def step() -> None: ...


def group() -> RunGroup:
    with run_group("g") as made:
        made.enqueue(step)
    return made


def acts() -> dict[str, Callable[..., Any]]:
    queue_id()
    return {
        "job": partial(cancel, enqueue_one()),
        "group": group().cancel,
        "pause": partial(pause, queue="default"),
    }


@pytest.mark.parametrize("unfit", UNFIT, ids=lambda value: repr(value)[:10])
def test_what_cannot_be_kept_is_refused_where_it_is_said_and_nothing_is_done(unfit: Any) -> None:
    known = acts()
    before = count_all()
    for act in known.values():
        for field in ("reason", "by"):
            with pytest.raises(InvalidOption, match=field) as caught:
                act(**{field: unfit})
            assert len(str(caught.value)) < 200

    assert count_all() == before
    assert not Pause.objects.exists()


def test_whatever_else_is_said_is_kept() -> None:
    said = "\n\u202e'; drop table job; -- %s \U0001f600".ljust(2000, "x")

    for act in acts().values():
        act(reason=said, by=said)

    assert set(JobState.objects.values_list("reason", "by")) == {(said, said)}
    assert list(Pause.objects.values_list("reason", "by")) == [(said, said)]


@pytest.mark.parametrize(
    "command",
    [
        ("broker_jobs", "cancel", "ID"),
        ("broker_queues", "pause", "--queue", "default"),
        ("broker_groups", "cancel", "g", "--yes"),
    ],
    ids=lambda command: command[0],
)
def test_a_command_refuses_it_as_wrong_usage(command: tuple[str, ...]) -> None:
    group()
    job_id = enqueue_one()
    typed = [str(job_id) if each == "ID" else each for each in command]

    # What a terminal sends that is no UTF-8.
    with pytest.raises(CommandError, match="--reason has a NUL or a lone surrogate") as caught:
        call_command(*typed, "--reason", "\udcff")

    assert caught.value.returncode == 2
    assert status(job_id) == Status.READY


def test_whether_cancelled_members_count_is_yes_or_no() -> None:
    made = group()
    made.cancel()

    for unfit in ("", "yes", 1, None, []):
        with pytest.raises(InvalidOption, match=r"cancelled is .*Give True or False"):
            made.retry_failed(cancelled=unfit)


def test_an_error_does_not_repeat_ten_thousand_characters() -> None:
    long = "x" * 10_000
    for act in (
        partial(run_group, "g", tolerate=long),
        partial(run_group, "g", on_failure=long),
        partial(step.options, on_failure=long),
        partial(get_job, long),
    ):
        with pytest.raises((InvalidOption, JobNotFound)) as caught:
            act()
        assert len(str(caught.value)) < 700

"""A name that means nothing: each error names it, what may have been meant, and what to do."""

from __future__ import annotations

from io import StringIO
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command

from pgbroker import control, get_group, job, registry, run_group
from pgbroker.errors import GroupNotFound, InvalidOption, UnknownJobType
from tests.support.jobs import queue_id

pytestmark = pytest.mark.django_db

NOBODY = UUID(int=7)


@job(name="tests.unknown.reckon")
def reckon() -> None: ...


def refused(*typed: object) -> CommandError:
    with pytest.raises(CommandError) as caught:
        call_command(*map(str, typed), stdout=StringIO(), stderr=StringIO())
    return caught.value


QUEUE = "there is no queue 'repots'. Did you mean 'reports'?", "broker_queues create repots"
TYPE = (
    "there is no job type 'tests.unknown.recon'. Did you mean 'tests.unknown.reckon'?",
    "Declare it with @job",
)
JOB = f"there is no job {NOBODY}.", "broker_jobs list"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("broker_jobs list --queue repots", QUEUE),
        ("broker_jobs redrive --queue repots --yes", QUEUE),
        ("broker_queues pause --queue repots", QUEUE),
        ("broker_queues resume --queue repots", QUEUE),
        ("broker_queues delete repots", QUEUE),
        ("broker_queues set repots --lease-seconds 90", QUEUE),
        ("broker_jobs list --type tests.unknown.recon", TYPE),
        ("broker_jobs redrive --type tests.unknown.recon --yes", TYPE),
        ("broker_queues pause --type tests.unknown.recon", TYPE),
        ("broker_queues resume --type tests.unknown.recon", TYPE),
        (f"broker_jobs show {NOBODY}", JOB),
        (f"broker_jobs explain {NOBODY}", JOB),
    ],
)
def test_a_command_names_what_it_does_not_know_and_the_cure(typed, told):
    registry.synchronise(using="default")
    queue_id("reports")

    error = refused(*typed.split())

    assert error.returncode == 1
    for each in told:
        assert each in str(error)


def test_of_several_jobs_each_that_is_not_there_has_its_cure():
    said = StringIO()

    with pytest.raises(CommandError):
        call_command("broker_jobs", "cancel", str(NOBODY), stdout=said)

    assert "look at id and tenant: broker_jobs list" in said.getvalue()


def test_python_names_the_type_that_may_have_been_meant():
    with pytest.raises(UnknownJobType, match=r"Did you mean 'tests\.unknown\.reckon'"):
        control.pause(job_type="tests.unknown.recon")
    with pytest.raises(UnknownJobType) as caught:
        control.pause(job_type="quite.another.thing.altogether")
    assert "Did you mean" not in str(caught.value)


def test_a_group_that_is_not_there_says_how_to_open_one():
    with pytest.raises(GroupNotFound) as caught:
        get_group("never")

    assert "no run group 'never'. Open it first, with run_group(name, seal=False)" in str(caught.value)


@pytest.mark.parametrize(("given", "share"), [(0.5, "50%"), (0.125, "12.5%"), (1.5, "5%"), (2.0, "5%")])
def test_a_share_that_was_given_as_a_number_says_how_one_is_written(given, share):
    with pytest.raises(InvalidOption) as caught, run_group("g", tolerate=given):
        pass

    assert str(caught.value) == (
        f'tolerate is {given!r}. Give a whole number of members, or a share as text: "{share}".'
    )

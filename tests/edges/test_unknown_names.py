"""A name that means nothing: each error names it, what may have been meant, and what to do."""

from __future__ import annotations

from io import StringIO
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command

from pgbroker import control, get_group, job, registry, run_group, schedule, tenant_context
from pgbroker.errors import GroupNotFound, InvalidOption, ScheduleNotFound, UnknownJobType
from pgbroker.schedules import look, operate
from pgbroker.schedules.declare import declarations
from tests.support.commands import refused
from tests.support.jobs import queue_id
from tests.support.schedules import make

pytestmark = pytest.mark.django_db

NOBODY = UUID(int=7)


@job(name="tests.unknown.reckon")
def reckon() -> None: ...


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


CURE = "Look at the tenant, and at what there is: broker_schedules list"


@pytest.mark.parametrize(
    "typed",
    [
        "show nigthly",
        "next nigthly",
        "run-now nigthly",
        "pause nigthly",
        "resume nigthly",
        "disable nigthly",
        "enable nigthly",
        "delete nigthly --yes",
        "delete nigthly --dry-run",
        "backfill nigthly --from 2026-03-01",
    ],
)
def test_every_action_on_a_schedule_names_those_that_may_have_been_meant(typed):
    make("nightly")
    make("something-else")

    error = refused("broker_schedules", *typed.split())

    assert error.returncode == 1
    assert str(error) == (
        f"[schedule_not_found] there is no schedule 'nigthly'. Did you mean 'nightly'? {CURE}"
    )


@pytest.mark.parametrize("typed", ["show quite-another", f"show {NOBODY}", f"list --after {NOBODY}"])
def test_where_no_name_is_near_the_cure_stands_alone(typed):
    make("nightly")

    error = refused("broker_schedules", *typed.split())

    assert str(error) == f"[schedule_not_found] there is no schedule {typed.split()[-1]!r}. {CURE}"


def test_a_schedule_of_another_tenant_is_not_named_and_one_that_is_only_declared_is(monkeypatch):
    monkeypatch.setattr(declarations, "_known", {})
    schedule("nightly-report", reckon, cron="0 2 * * *", timezone="UTC")
    with tenant_context("acme"):
        make("nightly-repot")

    with pytest.raises(ScheduleNotFound) as caught:
        operate.get_schedule("nightly-repor")

    assert f"Did you mean 'nightly-report'? {CURE}" in str(caught.value)


def test_of_more_schedules_than_are_looked_at_those_are_named_that_begin_so(monkeypatch):
    monkeypatch.setattr(look, "NEAR_MAX", 2)
    for name in ("a1", "a2", "a3", "nightly"):
        make(name)

    with pytest.raises(ScheduleNotFound, match="Did you mean 'nightly'"):
        operate.get_schedule("nigthly")


@pytest.mark.parametrize(("given", "share"), [(0.5, "50%"), (0.125, "12.5%"), (1.5, "5%"), (2.0, "5%")])
def test_a_share_that_was_given_as_a_number_says_how_one_is_written(given, share):
    with pytest.raises(InvalidOption) as caught, run_group("g", tolerate=given):
        pass

    assert str(caught.value) == (
        f'tolerate is {given!r}. Give a whole number of members, or a share as text: "{share}".'
    )

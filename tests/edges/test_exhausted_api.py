"""on_exhausted as a project writes it: declared or given with a call, checked, and run with a `DeadLetter`."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.test import Client, override_settings

from pgbroker import DeadLetter, JobContext, enqueue_many, get_job, job, retry
from pgbroker.checks import _check_exhausted, check_job_types
from pgbroker.errors import InvalidOption, UnknownJobType
from pgbroker.exhausted import A_DEATH
from pgbroker.lifecycle.declare import DeclaredType, declare_types
from pgbroker.models import Job, JobType
from pgbroker.registry import types
from pgbroker.states import Status
from pgbroker.tenancy import tenant_context
from pgbroker.testing import guards_off, run_jobs

pytestmark = pytest.mark.django_db
seen: list[Any] = []


@job(name="tests.exhausted.alarm")
def alarm(dead: DeadLetter) -> None:
    seen.append(dead)


@job(name="tests.exhausted.plain", takes_context=True)
async def plain(context: JobContext, dead: dict[str, Any], note: str = "none") -> None:
    seen.append((context.tenant_id, dead["job_type"], note))


@job(name="tests.exhausted.fails", max_attempts=1, on_exhausted=alarm)
def fails(number: int) -> None:
    raise ValueError("it cannot be done")


@job(name="tests.exhausted.undeclared", max_attempts=1)
def undeclared(number: int) -> None:
    raise ValueError(number)


@job(name="tests.exhausted.nothing")
def nothing() -> None:
    """Take nothing."""


@pytest.fixture(autouse=True)
def declared() -> None:
    seen.clear()
    known = types()
    declare_types(
        [
            DeclaredType(key, 1, known[key].task.aliases, known[key].defaults)
            for key in sorted(known)
            if key.startswith("tests.exhausted.")
        ]
    )


def run_all() -> None:
    for _ in range(5):
        if not run_jobs():
            return


# ------------------------------------------------------------------ it runs


def test_the_handler_gets_the_dead_letter_in_its_own_types() -> None:
    dead = fails.enqueue(7)

    run_all()

    (letter,) = seen
    assert isinstance(letter, DeadLetter)
    assert (letter.job_id, letter.job_type, letter.queue) == (
        UUID(dead.id),
        "tests.exhausted.fails",
        "default",
    )
    assert (letter.attempts, letter.error_code) == (1, "builtins.ValueError")
    assert "it cannot be done" in (letter.error or "")
    assert isinstance(letter.died_at, datetime)
    assert letter.died_at == get_job(dead).finished_at
    assert get_job(letter.job_id).call["args"] == [7]


def test_a_call_may_name_another_job_by_its_name_and_it_runs_as_the_same_tenant() -> None:
    with tenant_context("acme"):
        fails.options(on_exhausted="tests.exhausted.plain").enqueue(1)
    run_all()

    assert seen == [("acme", "tests.exhausted.fails", "none")]


def test_each_call_of_many_has_its_own() -> None:
    outcomes = enqueue_many(
        [undeclared.bind(1), undeclared.options(on_exhausted=alarm).bind(2), undeclared.bind(3)]
    )
    run_all()

    assert [letter.job_id for letter in seen] == [outcomes[1].job_id]


def test_a_retried_job_that_dies_again_is_told_again() -> None:
    dead = fails.enqueue(7)
    run_all()
    retry(dead.id)
    run_all()

    assert [letter.attempts for letter in seen] == [1, 2]


def test_a_death_is_stored_as_the_sample_that_handlers_are_checked_with() -> None:
    """What is asked of a handler when it is declared is what the database sends."""
    fails.enqueue(7)
    run_jobs(limit=1)

    (made,) = Job.objects.filter(job_type__name="tests.exhausted.alarm")
    stored = get_job(made.pk).call
    assert stored.keys() == A_DEATH.keys()
    (argument,), (sample,) = stored["args"], A_DEATH["args"]
    assert {name: type(value) for name, value in argument.items()} == {
        name: type(value) for name, value in sample.items()
    }
    assert set(argument) == set(DeadLetter.__dataclass_fields__)


# ------------------------------------------------------------------ it is checked where it is written


def takes_two(one: DeadLetter, two: int) -> None: ...


def takes_a_number(number: int) -> None: ...


def takes_by_name(*, dead: DeadLetter) -> None: ...


@pytest.mark.parametrize("handler", [takes_two, takes_a_number, takes_by_name])
def test_a_handler_that_cannot_take_a_dead_letter_is_refused(handler: Any) -> None:
    target = job(name=f"tests.unfit.{handler.__name__}")(handler)

    for write in (
        lambda: job(name="tests.unfit.declared", on_exhausted=target)(lambda: None),
        lambda: nothing.options(on_exhausted=target),
        lambda: nothing.options(on_exhausted=target.key).enqueue(),
    ):
        with pytest.raises(InvalidOption, match="on_exhausted cannot be called") as refused:
            write()
        assert refused.value.cure == f"Give {handler.__name__} one parameter, a pgbroker.DeadLetter."
        assert f"of {handler.__name__} " in refused.value.trouble
        assert ". " not in refused.value.trouble


@pytest.mark.parametrize("wrong", [7, [], "a b", "", print], ids=repr)
def test_what_is_no_job_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="on_exhausted"):
        nothing.options(on_exhausted=wrong)
    with pytest.raises(InvalidOption, match="on_exhausted"):
        job(name="tests.unfit.wrong", on_exhausted=wrong)(lambda: None)


@pytest.mark.parametrize(
    "changed", [alarm.using(priority=9), alarm.options(tags=["a"])], ids=["using", "options"]
)
def test_options_of_a_call_are_none_of_the_job_to_come(changed: Any) -> None:
    """The database makes that job, from the declaration: what was given here would be lost without a word."""
    with pytest.raises(InvalidOption, match="with options of a call"):
        nothing.options(on_exhausted=changed)


def test_a_name_that_nobody_declares_is_refused_by_that_name() -> None:
    with pytest.raises(UnknownJobType) as refused:
        nothing.options(on_exhausted="tests.exhausted.nobody").enqueue()

    assert refused.value.name == "tests.exhausted.nobody"
    assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_job_that_only_code_knows_so_far_is_declared_by_the_call() -> None:
    """No worker has started since the deploy: as with the job's own type."""
    with guards_off():
        JobType.objects.filter(name="tests.exhausted.alarm").delete()

    undeclared.options(on_exhausted=alarm).enqueue(1)

    run_all()
    assert len(seen) == 1


def problems(named: str) -> list[Any]:
    """Check a type whose declaration names another one, as if the project had it."""
    there = types()["tests.exhausted.fails"]
    return list(_check_exhausted({"shop.charge": there._replace(task=replace(fails, on_exhausted=named))}))


def test_a_declared_name_that_the_project_does_not_know_is_a_warning() -> None:
    (found,) = problems("shop.no-such-type")

    assert found.id == "pgbroker.W013"
    assert "'shop.charge' names 'shop.no-such-type'" in found.msg


def test_a_declared_name_whose_handler_takes_none_is_an_error() -> None:
    (found,) = problems("tests.exhausted.nothing")

    assert found.id == "pgbroker.E012"
    assert "'shop.charge'" in found.msg
    assert "pgbroker.DeadLetter" in (found.hint or "")
    assert problems("tests.exhausted.alarm") == []
    assert [each for each in check_job_types(None) if each.id in ("pgbroker.E012", "pgbroker.W013")] == []


# ------------------------------------------------------------------ it is shown


def test_the_time_line_of_the_dead_job_tells_what_was_made(admin_client: Client) -> None:
    dead = fails.enqueue(7)
    run_jobs(limit=1)
    (made,) = Job.objects.filter(job_type__name="tests.exhausted.alarm")
    said = StringIO()

    call_command("broker_jobs", "show", dead.id, "--format", "json", stdout=said)
    page = admin_client.get(f"/admin/pgbroker/job/{dead.id}/change/").content.decode()

    (moment,) = [each for each in json.loads(said.getvalue())["timeline"] if "on_exhausted" in each["what"]]
    assert moment["detail"] == f"tests.exhausted.alarm {made.pk}"
    assert f"tests.exhausted.alarm {made.pk}" in page


def test_the_time_line_tells_why_none_was_made() -> None:
    declare_types([DeclaredType("tests.exhausted.undeclared", 1, (), {"on_exhausted": "tests.gone"})])
    dead = undeclared.enqueue(7)
    run_jobs(limit=1)
    said = StringIO()

    call_command("broker_jobs", "show", dead.id, stdout=said)

    assert get_job(dead).status == Status.DEAD_LETTER
    assert "→ on_exhausted  unknown_job_type there is no job type 'tests.gone'" in said.getvalue()


@override_settings(PGBROKER={"EVENTS": "all"})
def test_it_works_with_all_events() -> None:
    fails.enqueue(7)
    run_all()

    assert len(seen) == 1

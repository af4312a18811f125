"""A retry that is refused: Python, the commands and the admin name what is in the way and what clears it."""

from __future__ import annotations

import json
from io import StringIO
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from pgbroker import retry
from pgbroker.errors import PrerequisiteFailed
from pgbroker.obstacles import obstacle_at
from pgbroker.states import GroupState
from pgbroker.tenancy import tenant_context
from tests.support.groups import after, fail, member, open_group
from tests.support.jobs import TYPE, enqueue_one
from tests.support.links import deadlines_pass, deferred, group, passes, seal

pytestmark = pytest.mark.django_db

BAD_NAME = "<b>'two' words"


@pytest.fixture
def root(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def behind_a_job() -> tuple[UUID, UUID]:
    """A failed job, and one that was cancelled because of it."""
    first = enqueue_one()
    job = after(first)
    fail(first)
    passes()
    return first, job


def behind_a_group(name: str = "import") -> tuple[UUID, UUID]:
    """A failed group, and a job that was cancelled because of it."""
    made = open_group(name)
    bad, job = member(name), after({"group": name})
    seal(made)
    fail(bad)
    passes()
    assert group(made).state == GroupState.FAILED
    return made, job


def expired(name: str) -> UUID:
    """A job that was cancelled since a group of this name did not come in time."""
    job = after({"group": name, "within_seconds": 5})
    deadlines_pass(job)
    deferred()
    return job


def page_of(kind: str, pk: UUID) -> str:
    return reverse(f"admin:pgbroker_{kind}_change", args=[pk])


def pressed(client: Client, kind: str, pk: UUID) -> list[str]:
    """Press the button that retries; returns what is told, as HTML."""
    response = client.post(reverse(f"admin:pgbroker_{kind}_retry", args=[pk]), follow=True)
    told = [str(message) for message in response.context["messages"]]
    # Whatever was marked as safe stands there as it is, but for its first letter.
    assert all(message[1:] in response.text for message in told if "<a " in message)
    return told


def refusal(job: UUID) -> str:
    with pytest.raises(PrerequisiteFailed) as caught:
        retry(job)
    assert caught.value.code == "prerequisite_failed"
    return str(caught.value)


# ------------------------------------------------------------------ Python


def test_a_job_in_the_way_is_named_with_the_command_that_retries_it():
    first, job = behind_a_job()

    assert refusal(job) == (
        f"job {job} is not retried: its prerequisite, job {first} ({TYPE}), is failed. "
        f"Retry that first (broker_jobs retry {first}): what waited for it comes back by itself."
    )


def test_of_a_chain_the_cause_is_what_has_to_be_retried():
    first, second = behind_a_job()
    third = after(first, on_failure="block")
    last = after(second)
    passes()

    assert f"job {second} ({TYPE}), is cancelled because of job {first}" in refusal(last)
    assert f"(broker_jobs retry {first})" in refusal(last)
    assert third != last


def test_a_group_in_the_way_is_named_with_the_command_that_retries_it():
    _, job = behind_a_group(BAD_NAME)

    assert refusal(job) == (
        f"job {job} is not retried: its prerequisite, run group {BAD_NAME}, is failed. "
        """Retry that first (broker_groups retry '<b>'"'"'two'"'"' words'): what waited for it comes back by itself."""
    )


def test_what_is_not_there_is_to_be_opened():
    job, other = expired("tonight"), after({"group": "tonight", "job": "last", "within_seconds": 5})
    deadlines_pass(other)
    deferred()

    assert refusal(job) == (
        f"job {job} is not retried: it waits for run group tonight, which is not there. "
        "Open that first, with run_group(...), then retry the job; or enqueue the job anew without it."
    )
    assert "Enqueue that first, with .options(group=..., name=...), then" in refusal(other)


def test_nothing_is_told_of_another_tenants_prerequisite():
    with tenant_context("acme"):
        first, _ = behind_a_job()

    told = obstacle_at(first, using="default")

    assert (told.words, told.job_id) == (f"its prerequisite {first} is not there any more", None)


# ------------------------------------------------------------------ the commands


def test_the_command_is_told_whole():
    first, job = behind_a_job()
    said = StringIO()

    with pytest.raises(CommandError):
        call_command("broker_jobs", "retry", str(job), stdout=said)

    assert said.getvalue().rstrip().endswith(f"is failed: broker_jobs retry {first}")


def test_a_retry_of_a_group_names_what_is_in_the_way_of_its_members():
    made = open_group("import")
    names = [expired_member("import", f"late {number}") for number in range(2)]
    seal(made)
    passes()
    said = StringIO()

    with pytest.raises(CommandError, match="2 of 2 jobs left as they are"):
        call_command("broker_groups", "retry", "import", "--cancelled", stdout=said)
    with pytest.raises(CommandError):
        call_command(
            "broker_groups", "retry", "import", "--cancelled", "--format=json", stdout=(told := StringIO())
        )

    assert said.getvalue().splitlines()[1:] == [
        f"In the way: it waits for run group {name}, which is not there: open that first, with run_group(...)"
        for name in names
    ]
    assert len(json.loads(told.getvalue())["why"]) == 2


def expired_member(name: str, waits_for: str) -> str:
    job = member(name, depends_on=[{"group": waits_for, "within_seconds": 5}])
    deadlines_pass(job)
    deferred()
    return waits_for


# ------------------------------------------------------------------ the admin


def test_the_admin_links_to_the_job_in_the_way(root):
    first, job = behind_a_job()

    (told,) = pressed(root, "job", job)

    assert told == (
        f"1 job left alone: its prerequisite, job {first} ({TYPE}), is failed. "
        f'Retry <a href="{page_of("job", first)}">job {first}</a> first: what waited for it comes back by itself.'
    )


def test_the_admin_links_to_the_group_in_the_way_and_its_name_breaks_nothing(root):
    made, job = behind_a_group(BAD_NAME)

    (told,) = pressed(root, "job", job)

    assert f'<a href="{page_of("rungroup", made)}">run group &lt;b&gt;&#x27;two&#x27; words</a>' in told
    assert "<b>" not in told


def test_an_action_tells_each_obstacle_once_and_not_too_many(root, monkeypatch):
    monkeypatch.setattr("pgbroker.obstacle_links.NAMED_MAX", 2)
    first, job = behind_a_job()
    other = after(first)
    passes()
    jobs = [job, other, expired("a"), expired("b"), expired("c")]

    response = root.post(
        reverse("admin:pgbroker_job_changelist"),
        {"action": "retry_selected", "_selected_action": [str(each) for each in jobs]},
        follow=True,
    )

    told = [str(message) for message in response.context["messages"]]
    assert len(told) == 3
    assert told[0].startswith(f"2 jobs left alone: its prerequisite, job {first}")
    assert told[1].startswith("1 job left alone: it waits for run group ")
    assert told[1].endswith(", which is not there: open that first, with run_group(...).")
    assert told[2] == "2 jobs left alone because of others."


def test_a_group_whose_prerequisite_failed_links_to_that(root):
    bad = open_group("source")
    first = member("source")
    seal(bad)
    made = open_group("import", depends_on=[{"group": "source"}])
    seal(made)
    fail(first)
    passes()
    assert group(made).state == GroupState.FAILED

    (told,) = pressed(root, "rungroup", made)

    assert told == (
        "import is failed: its prerequisite, run group source, is failed. "
        f'Retry <a href="{page_of("rungroup", bad)}">run group source</a> first: '
        "what waited for it comes back by itself."
    )


def test_a_member_of_a_group_tells_what_is_in_its_way(root):
    made = open_group("import")
    expired_member("import", BAD_NAME), member("import")
    root.post(reverse("admin:pgbroker_rungroup_cancel", args=[made]), {"confirmed": "1"}, follow=True)
    assert group(made).state == GroupState.CANCELLED

    told = pressed(root, "rungroup", made)

    assert told[0].startswith("1 job of import live again.")
    assert told[1].startswith(
        "1 job of import left alone: it waits for run group &lt;b&gt;&#x27;two&#x27; words"
    )
    assert len(told) == 2

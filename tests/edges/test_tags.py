"""Tags where people meet them: on a declaration and a call, in the handler, on the command line and in the admin."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from pgbroker import JobContext, enqueue_many, get_job, job, redrive
from pgbroker.errors import InvalidOption
from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.declare import DeclaredType, declare_types
from pgbroker.registry import types
from pgbroker.states import Status
from pgbroker.tenancy import tenant_context
from pgbroker.testing import run_jobs
from tests.support.commands import run
from tests.support.jobs import enqueue_one, queue_id, status

pytestmark = pytest.mark.django_db
LIST = reverse("admin:pgbroker_job_changelist")
seen: list[tuple[str, ...]] = []


@job(name="tests.tags.plain", takes_context=True)
def plain(context: JobContext) -> None:
    seen.append(context.tags)


@job(name="tests.tags.nightly", tags=["nightly", "reports"], takes_context=True)
def nightly(context: JobContext) -> None:
    seen.append(context.tags)


# ------------------------------------------------------------------ code


def test_a_call_has_the_tags_it_gives_or_else_those_of_its_type() -> None:
    results = [
        plain.enqueue(),
        plain.options(tags=["a", "b", "a"]).enqueue(),
        nightly.enqueue(),
        nightly.options(tags={"own": 1}.keys()).enqueue(),
        nightly.options(tags=[]).enqueue(),
        nightly.options(tags=["x"]).options(tags=None).enqueue(),
    ]

    assert [get_job(each).tags for each in results] == [
        None, ["a", "b"], ["nightly", "reports"], ["own"], None, ["nightly", "reports"],
    ]  # fmt: skip


def test_a_handler_sees_the_tags_of_its_job() -> None:
    seen.clear()
    plain.enqueue()
    nightly.options(tags=["b", "a"]).enqueue()

    assert len(run_jobs()) == 2

    assert sorted(seen) == [(), ("b", "a")]


def test_sql_gives_a_job_the_tags_of_its_type_too() -> None:
    known = types()["tests.tags.nightly"]
    declare_types([DeclaredType(known.key, 1, (), known.defaults)])
    with connection.cursor() as cursor:
        cursor.execute("select pgbroker.enqueue('tests.tags.nightly')")
        (job_id,) = cursor.fetchone()

    assert get_job(job_id).tags == ["nightly", "reports"]


def test_one_call_of_many_with_a_wrong_tag_sinks_no_other() -> None:
    outcomes = enqueue_many([plain.options(tags=["a"]).bind(), plain.bind(), nightly.bind()])

    assert [each.outcome for each in outcomes] == ["created"] * 3
    with pytest.raises(InvalidOption, match="tags has 21 elements"):
        plain.options(tags=map(str, range(21)))


def test_a_redrive_by_tag_takes_only_jobs_that_have_it() -> None:
    wanted, other = enqueue_one(tags=["x"]), enqueue_one(tags=["y"])
    with tenant_context("acme"):
        theirs = enqueue_one(tags=["x"])
        cancel_many([theirs])
    cancel_many([wanted, other])

    assert redrive(status=Status.CANCELLED, tag="x") == 1
    assert [status(each) for each in (wanted, other, theirs)] == [
        Status.READY, Status.CANCELLED, Status.CANCELLED,
    ]  # fmt: skip
    with pytest.raises(InvalidOption, match="tag"):
        redrive(tag="a\n")


# ------------------------------------------------------------------ command line


def listed(*typed: object) -> list[str]:
    return [each["id"] for each in json.loads(run("broker_jobs", "list", "--format", "json", *typed))["jobs"]]


def test_jobs_are_listed_by_tag_of_all_tenants_or_of_one() -> None:
    first = enqueue_one(tags=["x", "y"])
    with tenant_context("acme"):
        second = enqueue_one(tags=["x"])
    enqueue_one()

    assert listed("--tag", "x") == sorted([str(first), str(second)], reverse=True)
    assert listed("--tag", "x", "--tenant", "acme") == [str(second)]
    assert listed("--tag", "x", "--status", "dead_letter") == listed("--tag", "nobody") == []


def test_pages_by_tag_show_every_job_once() -> None:
    made = {str(enqueue_one(tags=["x"])) for _ in range(5)}
    found: list[str] = []
    after: list[str] = []
    while True:
        page = json.loads(run("broker_jobs", "list", "--format", "json", "--tag", "x", "--limit", 2, *after))
        found += [each["id"] for each in page["jobs"]]
        if page["next"] is None:
            break
        after = ["--after", page["next"]]

    assert len(found) == 5
    assert set(found) == made


def test_a_job_is_shown_with_its_tags() -> None:
    job_id = enqueue_one(tags=["b", "a"])

    assert re.search(r"^tags +b, a$", run("broker_jobs", "show", job_id), re.M)
    assert json.loads(run("broker_jobs", "show", job_id, "--format", "json"))["tags"] == ["b", "a"]


def test_a_redrive_on_the_command_line_counts_and_takes_by_tag() -> None:
    wanted, other = enqueue_one(tags=["x"]), enqueue_one()
    cancel_many([wanted, other])
    narrowed = ("broker_jobs", "redrive", "--status", "cancelled", "--tag", "x")

    assert run(*narrowed, "--dry-run") == "1 job would be retried.\n"
    assert run(*narrowed, "--yes") == "1 job ready again.\n"
    assert (status(wanted), status(other)) == (Status.READY, Status.CANCELLED)


@pytest.mark.parametrize("tag", [" a", "x" * 101, "a\tb"])
def test_what_cannot_be_a_tag_is_told_before_any_look(tag: str) -> None:
    with pytest.raises(CommandError, match="--tag") as refused:
        run("broker_jobs", "list", "--tag", tag)

    assert refused.value.returncode == 2


# ------------------------------------------------------------------ admin


@pytest.fixture
def root(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def shown(response: Any) -> set[UUID]:
    return {each.pk for each in response.context["cl"].result_list}


def test_the_list_of_the_admin_shows_tags_and_finds_by_one(root: Client) -> None:
    one, both = enqueue_one(tags=["x"]), enqueue_one(tags=["<b>", "x"])
    enqueue_one()
    with tenant_context("acme"):
        enqueue_one(tags=["x"])

    assert shown(root.get(LIST, {"tag": "x"})) == {one, both}
    response = root.get(LIST, {"tag": "<b>"})
    assert shown(response) == {both}
    assert '<span class="pgb-tag">&lt;b&gt;</span>' in response.content.decode()
    assert 'value="&lt;b&gt;"' in response.content.decode()
    assert shown(root.get(LIST, {"tag": "nobody"})) == set()


def test_the_tag_is_kept_by_the_other_filters_and_they_by_it(root: Client) -> None:
    wanted = enqueue_one(tags=["x"], queue="mail")
    enqueue_one(tags=["x"]), enqueue_one(queue="mail")
    queue = queue_id("mail")

    page = root.get(LIST, {"tag": "x", "queue": queue})

    assert shown(page) == {wanted}
    text = page.content.decode()
    assert f'<input type="hidden" name="queue" value="{queue}">' in text
    assert re.search(r'href="\?tag=x&amp;[^"]*status=2|href="\?[^"]*status=2[^"]*&amp;tag=x', text)


def test_a_filter_by_tag_costs_no_query_more(root: Client) -> None:
    enqueue_one(tags=["x"])
    with CaptureQueriesContext(connection) as plain_list:
        root.get(LIST, {"status": "2"})
    with CaptureQueriesContext(connection) as by_tag:
        root.get(LIST, {"tag": "x"})

    assert len(by_tag) == len(plain_list)


def test_the_page_of_a_job_leads_to_all_that_share_a_tag(root: Client) -> None:
    job_id = enqueue_one(tags=["a&b c/d"])

    text = root.get(reverse("admin:pgbroker_job_change", args=[job_id])).content.decode()

    (link,) = re.findall(r'<a class="pgb-tag" href="([^"]+)">a&amp;b c/d</a>', text)
    assert shown(root.get(link.replace("&amp;", "&"))) == {job_id}


def test_the_redrive_of_a_list_by_tag_is_one_by_tag(root: Client) -> None:
    wanted, other = enqueue_one(tags=["x y"]), enqueue_one(tags=["y"])
    cancel_many([wanted, other])

    offered = root.get(LIST, {"tag": "x y", "status": str(int(Status.CANCELLED))}).context["redrive"]
    assert "of this filter" in offered.label
    asked = root.get(offered.url)
    assert "1 jobs match." in asked.content.decode()
    root.post(offered.url.partition("?")[0], {"status": "cancelled", "tag": "x y"})

    assert (status(wanted), status(other)) == (Status.READY, Status.CANCELLED)


def test_a_redrive_form_refuses_what_cannot_be_a_tag(root: Client) -> None:
    response = root.get(reverse("admin:pgbroker_job_redrive"), {"tag": "a\tb"})

    assert "control character" in response.content.decode()

"""The admin: what it shows at what cost, who may do what, and that buttons are verbs."""

from __future__ import annotations

import re
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.timezone import localtime

from pgbroker import control, reports
from pgbroker.lifecycle.release import release
from pgbroker.models import Job, Queue, Worker
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import tenant_context
from tests.factories import ExecutionFactory, JobFactory, WorkerFactory
from tests.support.jobs import (
    claim_many,
    claim_one,
    completed,
    ended,
    enqueue_one,
    failed,
    queue_id,
    row,
    settle_one,
    status,
    type_id,
)

pytestmark = pytest.mark.django_db

LIST = reverse("admin:pgbroker_job_changelist")
# What a page costs at most, session and user included. A page must not cost a query more per row.
LIST_QUERIES, JOB_QUERIES, QUEUES_QUERIES, QUEUE_QUERIES, WORKERS_QUERIES = 10, 8, 9, 9, 6


def staff(*permissions: str) -> Client:
    """Log in somebody of the staff with these permissions of pgbroker."""
    user = User.objects.create_user(f"staff-{uuid4()}", is_staff=True)
    found = Permission.objects.filter(content_type__app_label="pgbroker", codename__in=permissions)
    assert len(found) == len(permissions)
    user.user_permissions.set(found)
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def root(db: None) -> Client:
    """Somebody who may do everything."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.fixture
def viewer(db: None) -> Client:
    """Somebody who may only look."""
    return staff("view_job", "view_queue", "view_worker", "view_jobtype")


def page_of(job_id: UUID, what: str = "change") -> str:
    return reverse(f"admin:pgbroker_job_{what}", args=[job_id])


def act(client: Client, action: str, *ids: UUID, url: str = LIST, **more: str):
    return client.post(
        url, {"action": action, "_selected_action": [str(each) for each in ids], **more}, follow=True
    )


def told(response) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def queries(captured: CaptureQueriesContext) -> list[str]:
    """The statements without those that only carry the scope or delimit a transaction."""
    return [
        each["sql"]
        for each in captured.captured_queries
        if not re.match(r"SAVEPOINT|RELEASE|select set_config", each["sql"])
    ]


# ------------------------------------------------------------------ lists


def test_the_list_counts_no_rows_and_skips_none(root):
    for _ in range(3):
        enqueue_one()

    with CaptureQueriesContext(connection) as captured:
        response = root.get(LIST)

    asked = queries(captured)
    assert response.status_code == 200
    assert not [each for each in asked if re.search(r"count\(|offset", each, re.I)]
    assert len(asked) <= LIST_QUERIES, asked


def test_a_list_costs_the_same_with_more_rows(root):
    enqueue_one()
    with CaptureQueriesContext(connection) as few:
        root.get(LIST)
    for _ in range(20):
        enqueue_one()

    with CaptureQueriesContext(connection) as many:
        root.get(LIST)

    assert len(queries(many)) == len(queries(few))


def test_pages_by_key_show_every_job_once_newest_first(root, monkeypatch):
    monkeypatch.setattr("pgbroker.admin.JobAdmin.list_per_page", 2)
    made = [enqueue_one() for _ in range(5)]
    seen, url = [], LIST

    while url:
        response = root.get(url)
        changes = response.context["cl"]
        seen += [job.pk for job in changes.result_list]
        url = LIST + changes.next_page if changes.next_page else ""

    assert seen == sorted(made, reverse=True)


def test_filters_are_kept_from_page_to_page(root, monkeypatch):
    monkeypatch.setattr("pgbroker.admin.JobAdmin.list_per_page", 1)
    wanted = [enqueue_one(queue="mail") for _ in range(2)]
    enqueue_one()

    first = root.get(f"{LIST}?queue={queue_id('mail')}").context["cl"]
    second = root.get(LIST + first.next_page).context["cl"]

    assert {job.pk for each in (first, second) for job in each.result_list} == set(wanted)
    assert second.next_page is None


def test_a_filter_that_finds_too_little_in_time_looks_piece_by_piece(root, monkeypatch):
    monkeypatch.setattr("pgbroker.changelists.KeysetChangeList._look", lambda self: None)
    monkeypatch.setattr("pgbroker.changelists.WINDOW", 2)
    wanted = enqueue_one(queue="mail")
    for _ in range(5):
        enqueue_one()
    pages, found, url = 0, [], f"{LIST}?queue={queue_id('mail')}"

    while url:
        changes = root.get(url).context["cl"]
        found += [job.pk for job in changes.result_list]
        pages += 1
        url = LIST + changes.next_page if changes.next_page else ""

    assert found == [wanted]
    assert pages == 3


def test_a_list_that_takes_too_long_is_stopped_and_nothing_else_is(root, monkeypatch):
    enqueue_one()
    with connection.cursor() as cursor:
        cursor.execute("show statement_timeout")
        before = cursor.fetchone()

    with (
        pytest.raises(OperationalError),
        reports.limited_time(timedelta(milliseconds=20), using="default"),
        connection.cursor() as cursor,
    ):
        cursor.execute("select pg_sleep(5)")

    with connection.cursor() as cursor:
        cursor.execute("show statement_timeout")
        assert cursor.fetchone() == before
    assert len(root.get(f"{LIST}?status=2").context["cl"].result_list) == 1


@pytest.mark.parametrize(
    "given", ["status=10", "status=x", "queue=999", "type=-1", "p=nonsense", "p=3", "q=", "q=%00"]
)
def test_odd_filters_do_no_harm(root, given):
    enqueue_one()

    assert root.get(f"{LIST}?{given}").status_code == 200


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("status=ready", 1),
        ("status=dead_letter", 0),
        ("status=zzz", 0),
        ("queue=default", 1),
        ("queue=nope", 0),
    ],
)
def test_a_filter_may_be_given_by_name_and_one_that_is_not_there_finds_nothing(root, given, count):
    """All jobs would be taken for those that were asked for."""
    enqueue_one()

    assert len(root.get(f"{LIST}?{given}").context["cl"].result_list) == count


def test_a_search_finds_an_exact_id_or_key_and_nothing_else(root):
    by_key = enqueue_one(idempotency_key="7:2026-11")
    other = enqueue_one()

    def found(term: str) -> list[UUID]:
        return [job.pk for job in root.get(LIST, {"q": term}).context["cl"].result_list]

    assert found(str(other)) == [other]
    assert found("7:2026-11") == [by_key]
    assert found("7:2026") == []
    assert found(str(other)[:8]) == []


def test_another_tenants_job_is_not_there(root):
    with tenant_context("acme"):
        hidden = enqueue_one()

    listed = root.get(LIST).context["cl"].result_list
    page = root.get(page_of(hidden))
    act(root, "retry_selected", hidden)
    root.post(page_of(hidden, "cancel"), {"confirmed": "yes"})

    assert list(listed) == []
    assert page.status_code == 302
    assert status(hidden) == Status.READY


def test_the_tenant_of_the_context_is_shown(root):
    with tenant_context("acme"):
        job = enqueue_one()
        response = root.get(LIST)

    assert [each.pk for each in response.context["cl"].result_list] == [job]
    assert "Jobs of tenant acme" in response.content.decode()


def test_only_statuses_that_a_job_can_have_are_offered_as_filter(root):
    JobFactory(suspended=True)

    (by_status, *_) = root.get(LIST).context["cl"].filter_specs

    assert [name for _, name in by_status.lookup_choices] == [
        "scheduled", "waiting", "ready", "running", "blocked", "completed", "failed", "dead letter", "cancelled",
    ]  # fmt: skip
    assert "suspended" in root.get(LIST).content.decode()


def test_the_list_tells_in_short_when_a_job_was_made_and_ended(root):
    job = JobFactory(completed=True)

    text = root.get(LIST).content.decode()

    for at in (job.created_at, job.finished_at):
        here = localtime(at)
        assert f'<span class="pgb-when">{here:%Y-%m-%d}</span> {here:%H:%M:%S}</td>' in text


def test_the_list_tells_what_went_wrong_last(root):
    again = enqueue_one()
    settle_one(failed(claim_one()))
    fine = enqueue_one()
    cancelled = enqueue_one()
    control.cancel(cancelled)

    listed = root.get(LIST).context["cl"].result_list

    assert {job.pk: job.error_code for job in listed} == {
        again: "boom",
        fine: None,
        cancelled: reports.list_jobs(limit=1, using="default")[0].error_code,
    }
    assert "boom" in root.get(LIST).content.decode()


# ------------------------------------------------------------------ one job


def test_an_attempt_that_was_handed_back_is_told_as_not_counted(root):
    job = enqueue_one()
    release([(claim_one(), None)], code="shutdown")

    response = root.get(page_of(job))

    assert "attempt 1 handed back, attempt not counted" in response.content.decode()
    assert response.context["picture"].lanes[0].bar.label.startswith("attempt 1: handed back, not counted")


def test_a_job_page_tells_everything_at_a_fixed_cost(root):
    job = enqueue_one(args={"v": 1, "args": [], "kwargs": {"month": "<script>alert(1)</script>"}})
    settle_one(failed(claim_one(), traceback="Traceback: <b>here</b>", log_tail="a line"))

    with CaptureQueriesContext(connection) as captured:
        response = root.get(page_of(job))

    text = response.content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script>alert" not in text
    assert "Traceback: &lt;b&gt;here&lt;/b&gt;" in text
    assert "a line" in text
    assert "it broke" in text
    assert "attempt 1 failed" in text
    assert "<svg" in text
    assert len(queries(captured)) <= JOB_QUERIES, queries(captured)


def test_nothing_on_a_page_is_inline(root):
    job = enqueue_one()
    settle_one(failed(claim_one()))
    queue = reverse("admin:pgbroker_queue_change", args=[queue_id()])

    for url in (LIST, page_of(job), queue, reverse("admin:pgbroker_job_redrive"), page_of(job, "cancel")):
        text = root.get(url).content.decode()
        assert not re.search(
            r"\sstyle=|<style|\son\w+=\"|<script(?![^>]*\bsrc=)(?![^>]*application/json)", text
        ), url


@pytest.mark.parametrize("wrong", ["not-an-id", str(UUID(int=7))])
def test_a_job_that_is_not_there_leads_back(root, wrong):
    response = root.get(reverse("admin:pgbroker_job_change", args=[wrong]), follow=True)

    assert response.status_code == 200
    assert "exist" in told(response)[0]


@pytest.mark.parametrize("state", list(Status))
def test_every_status_has_a_page_and_the_buttons_that_do_something(root, state):
    job = JobFactory(**{state.label: True})

    text = root.get(page_of(job.pk)).content.decode()

    assert (page_of(job.pk, "retry") in text) == (
        state in {Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED}
    )
    assert (page_of(job.pk, "cancel") in text) == (state < 10)


# ------------------------------------------------------------------ what one may do


def test_a_retry_by_button_makes_the_job_ready_and_leaves_a_trace(root):
    job = JobFactory(dead_letter=True)

    response = root.post(page_of(job.pk, "retry"), follow=True)

    assert told(response) == ["1 job ready again."]
    assert (row(job.pk).status, row(job.pk).max_attempts) == (Status.READY, 6)
    assert LogEntry.objects.get().object_id == str(job.pk)


def test_a_redrive_by_button_grants_what_was_declared(root):
    job = JobFactory(dead_letter=True)

    root.post(page_of(job.pk, "retry"), {"attempts": "declared"})

    assert row(job.pk).max_attempts == 10


def test_an_action_retries_what_it_can_and_says_what_it_left(root):
    dead, live = JobFactory(dead_letter=True), JobFactory(ready=True)

    response = act(root, "retry_selected", dead.pk, live.pk)

    assert told(response) == [
        "1 job ready again.",
        "1 job left alone: not failed, dead-lettered or cancelled.",
    ]
    assert status(dead.pk) == Status.READY
    assert [entry.object_id for entry in LogEntry.objects.all()] == [str(dead.pk)]


def test_a_cancel_asks_first(root):
    job = enqueue_one()

    asked = act(root, "cancel_selected", job)

    assert status(job) == Status.READY
    assert "1 job will be cancelled" in asked.content.decode()
    assert LogEntry.objects.count() == 0


def test_a_confirmed_cancel_does_what_each_status_allows(root):
    live, over = enqueue_one(), JobFactory(completed=True)
    running = JobFactory(running=True)

    response = act(root, "cancel_selected", live, over.pk, running.pk, confirmed="yes", reason="wrong month")

    assert told(response) == [
        "1 job cancelled.",
        "1 job running and asked to stop.",
        "1 job left alone: ended already.",
    ]
    assert (status(live), status(over.pk), status(running.pk)) == (
        Status.CANCELLED,
        Status.COMPLETED,
        Status.RUNNING,
    )
    assert control.get_job(live).reason == "wrong month"
    assert {entry.object_id: entry.get_change_message() for entry in LogEntry.objects.all()} == {
        str(live): "Cancelled. wrong month",
        str(running.pk): "Asked to stop. wrong month",
    }


def test_a_cancel_by_button_asks_and_then_cancels(root):
    job = enqueue_one()

    asked = root.post(page_of(job, "cancel"))
    assert (asked.status_code, status(job)) == (200, Status.READY)
    root.post(page_of(job, "cancel"), {"confirmed": "yes", "reason": ""})

    assert status(job) == Status.CANCELLED


def test_a_redrive_says_how_many_and_takes_those_of_the_filter(root):
    dead = [JobFactory(dead_letter=True).pk for _ in range(3)]
    other = JobFactory(dead_letter=True, queue_id=queue_id("mail"))
    url = reverse("admin:pgbroker_job_redrive")

    offered = root.get(f"{LIST}?queue={queue_id()}").context["redrive"]
    asked = root.get(offered.url)
    assert offered.label == "Redrive dead letters of this filter…"
    assert asked.context["count"] == 3
    assert all(status(each) == Status.DEAD_LETTER for each in dead)
    response = root.post(url, {"status": "dead_letter", "queue": "default"}, follow=True)

    assert told(response) == ["3 jobs ready again."]
    assert all(status(each) == Status.READY for each in dead)
    assert status(other.pk) == Status.DEAD_LETTER
    assert LogEntry.objects.count() == 3


@pytest.mark.parametrize(
    ("chosen", "label", "count"),
    [
        ("", "Redrive dead letters…", 1),
        (f"status={Status.FAILED:d}", "Redrive failed jobs…", 2),
        (f"status={Status.COMPLETED:d}", "Redrive dead letters…", 1),
        ("queue=999&status=x", "Redrive dead letters…", 1),
    ],
)
def test_a_redrive_needs_no_row_ticked_and_says_what_it_takes(root, chosen, label, count):
    JobFactory(dead_letter=True)
    for _ in range(2):
        JobFactory(failed=True)

    response = root.get(f"{LIST}?{chosen}", follow=True)
    offered = response.context["redrive"]

    assert offered.label == label
    assert label in response.content.decode()
    assert root.get(offered.url).context["count"] == count
    assert "redrive" not in "".join(
        name for name, _ in response.context["action_form"].fields["action"].choices
    )


def test_who_may_only_look_can_do_nothing(viewer):
    dead, live = JobFactory(dead_letter=True), JobFactory(ready=True)
    queue = Queue.objects.get(name="default")
    before = [row(each.pk).__dict__ | {"_state": None} for each in (dead, live)]
    tried = [
        viewer.post(page_of(dead.pk, "retry")),
        viewer.post(page_of(live.pk, "cancel"), {"confirmed": "yes", "reason": ""}),
        viewer.get(reverse("admin:pgbroker_job_redrive")),
        viewer.post(reverse("admin:pgbroker_job_redrive"), {"status": "dead_letter"}),
        viewer.post(reverse("admin:pgbroker_queue_pause", args=[queue.pk]), {"duration": "", "reason": ""}),
        viewer.post(reverse("admin:pgbroker_queue_resume", args=[queue.pk])),
        viewer.post(reverse("admin:pgbroker_queue_change", args=[queue.pk]), {"lease_seconds": "99"}),
        viewer.post(reverse("admin:pgbroker_queue_add"), {"name": "new"}),
        viewer.post(page_of(dead.pk, "delete"), {"post": "yes"}),
        viewer.get(reverse("admin:pgbroker_job_add")),
    ]

    for action in ("retry_selected", "cancel_selected", "delete_selected"):
        act(viewer, action, dead.pk, live.pk, confirmed="yes", reason="", post="yes")
    for action in ("pause_selected", "resume_selected", "delete_selected"):
        act(viewer, action, queue.pk, url=reverse("admin:pgbroker_queue_changelist"))

    assert [response.status_code for response in tried] == [403] * len(tried)
    assert [row(each.pk).__dict__ | {"_state": None} for each in (dead, live)] == before
    assert not Queue.objects.filter(name="new").exists()
    assert Queue.objects.get(pk=queue.pk).lease_seconds is None
    assert LogEntry.objects.count() == 0
    for url in (page_of(dead.pk), page_of(live.pk)):
        text = viewer.get(url).content.decode()
        assert "/retry/" not in text
        assert "/cancel/" not in text
    assert "<option" not in viewer.get(LIST).content.decode()


@pytest.mark.parametrize(
    ("permission", "retried", "cancelled"), [("retry_job", True, False), ("cancel_job", False, True)]
)
def test_each_permission_allows_its_own_verb(permission, retried, cancelled):
    client = staff("view_job", permission)
    dead, live = JobFactory(dead_letter=True), JobFactory(ready=True)

    act(client, "retry_selected", dead.pk)
    act(client, "cancel_selected", live.pk, confirmed="yes", reason="")

    assert (status(dead.pk) == Status.READY) == retried
    assert (status(live.pk) == Status.CANCELLED) == cancelled


def test_nobody_adds_changes_or_deletes_a_job(root):
    job = enqueue_one()

    for url in (reverse("admin:pgbroker_job_add"), page_of(job, "delete")):
        assert root.post(url, {"post": "yes"}).status_code == 403
    root.post(page_of(job), {"status": "10", "priority": "5"})
    act(root, "delete_selected", job, post="yes")

    assert (row(job).status, row(job).priority) == (Status.READY, 0)


@pytest.mark.parametrize("what", ["retry", "cancel"])
def test_a_button_without_its_token_does_nothing(root, what):
    job = JobFactory(**({"dead_letter": True} if what == "retry" else {"ready": True}))
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="root"))

    assert strict.post(page_of(job.pk, what), {"confirmed": "yes", "reason": ""}).status_code == 403
    assert root.get(page_of(job.pk, "retry")).status_code == 405
    assert status(job.pk) == job.status


# ------------------------------------------------------------------ queues, workers, types


def test_the_queues_are_listed_with_depth_and_pause_at_a_fixed_cost(root):
    enqueue_one()
    control.pause(queue="default", reason="provider is down")

    with CaptureQueriesContext(connection) as captured:
        response = root.get(reverse("admin:pgbroker_queue_changelist"))

    queue = next(each for each in response.context["cl"].result_list if each.name == "default")
    assert queue.depth.ready == 1
    assert [pause.reason for pause in queue.pauses] == ["provider is down"]
    assert len(queries(captured)) <= QUEUES_QUERIES, queries(captured)


def test_a_queue_is_paused_with_a_reason_and_an_end_and_resumed(root):
    number = queue_id()
    enqueue_one()

    root.post(reverse("admin:pgbroker_queue_pause", args=[number]), {"duration": "3600", "reason": "down"})
    (pause,) = Queue.objects.get(pk=number).pause_set.all()
    nothing = claim_many()
    response = root.post(reverse("admin:pgbroker_queue_resume", args=[number]), follow=True)

    assert nothing == []
    assert (pause.reason, pause.by, pause.until - pause.paused_at) == ("down", "root", timedelta(hours=1))
    assert told(response)[-1] == "Queue default is resumed."
    assert claim_one()
    assert LogEntry.objects.count() == 2


def test_a_queues_page_draws_the_last_hour(root):
    for _ in range(3):
        enqueue_one()
    for _ in range(2):
        settle_one(completed(claim_one()))
    settle_one(ended(claim_one(), AttemptState.FAILED, permanent=True, error_code="x"))

    with CaptureQueriesContext(connection) as captured:
        response = root.get(reverse("admin:pgbroker_queue_change", args=[queue_id()]))

    picture = response.context["picture"]
    assert (picture.done, picture.wrong, len(picture.columns)) == (2, 1, 60)
    assert len(queries(captured)) <= QUEUE_QUERIES, queries(captured)


def test_ageing_and_lease_of_a_queue_are_changed_within_what_is_allowed(root):
    url = reverse("admin:pgbroker_queue_change", args=[queue_id("mail")])

    refused = root.post(url, {"ageing_seconds": "-1", "lease_seconds": "3"})
    done = root.post(url, {"ageing_seconds": "10", "lease_seconds": "300"})

    queue = Queue.objects.get(name="mail")
    assert set(refused.context["adminform"].form.errors) == {"ageing_seconds", "lease_seconds"}
    assert done.status_code == 302
    assert (queue.ageing_seconds, queue.lease_seconds) == (10, 300)


def test_a_queue_is_made_by_its_name_alone(root):
    url = reverse("admin:pgbroker_queue_add")

    refused = root.post(url, {"name": "no such name!"})
    root.post(url, {"name": "made.here"})

    assert refused.status_code == 200
    assert enqueue_one(queue="made.here")


def test_workers_show_whether_they_live_by_the_databases_clock(root):
    WorkerFactory(name="one")
    WorkerFactory(name="two", silent=True)

    with CaptureQueriesContext(connection) as captured:
        response = root.get(reverse("admin:pgbroker_worker_changelist"))

    assert {each.name: each.state for each in response.context["cl"].result_list} == {
        "one": "alive",
        "two": "silent",
    }
    assert len(queries(captured)) <= WORKERS_QUERIES, queries(captured)
    worker = Worker.objects.get(name="one")
    for at in (worker.heartbeat_at, worker.started_at):
        assert f'<span class="pgb-when">{localtime(at):%Y-%m-%d}</span>' in response.content.decode()
    assert root.get(reverse("admin:pgbroker_worker_change", args=[worker.pk])).status_code == 200
    assert root.get(reverse("admin:pgbroker_worker_add")).status_code == 403


def test_types_are_only_to_be_looked_at(root):
    number = type_id()

    listed = root.get(reverse("admin:pgbroker_jobtype_changelist"))
    assert listed.status_code == 200
    assert '<span class="pgb-when">' in listed.content.decode()
    assert root.get(reverse("admin:pgbroker_jobtype_change", args=[number])).status_code == 200
    assert root.get(reverse("admin:pgbroker_jobtype_delete", args=[number])).status_code == 403


def test_the_history_of_a_job_tells_who_did_what(root):
    job = JobFactory(dead_letter=True)
    root.post(page_of(job.pk, "retry"))

    assert "Retried." in root.get(page_of(job.pk, "history")).content.decode()


def test_a_job_with_very_many_attempts_shows_the_last(root):
    job = JobFactory(failed=True)
    for number in range(2, 60):
        ExecutionFactory(job=job, tenant_id=job.tenant_id, attempt_no=number)

    response = root.get(page_of(job.pk))

    assert len(response.context["picture"].lanes) == 30
    assert Job.objects.get(pk=job.pk).status == Status.FAILED


@pytest.mark.parametrize("page", ["job", "worker", "rungroup", "schedule"])
def test_a_query_with_a_nul_is_no_error(root, page):
    for query in ("tag=a%00b", "state=%00", "queue=%00"):
        answer = root.get(f"/admin/pgbroker/{page}/?{query}")
        assert (answer.status_code, answer.url) == (302, f"/admin/pgbroker/{page}/?e=1"), query
        assert root.get(answer.url, follow=True).status_code == 200


def test_a_redrive_with_a_nul_is_no_error(root):
    assert root.get("/admin/pgbroker/job/redrive/?tag=a%00b&status=12").status_code in (200, 302)

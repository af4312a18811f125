"""The admin of run groups, and of what waits for what: what it shows at what cost, and who may do what."""

from __future__ import annotations

import re
from uuid import UUID, uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from pgbroker import control, group_reports
from pgbroker.states import GroupState, Status
from pgbroker.tenancy import tenant_context
from tests.support.groups import after, fail, member, open_group
from tests.support.jobs import claim_one, enqueue_one, status
from tests.support.links import group, passes, seal
from tests.support.links import run as run_one

pytestmark = pytest.mark.django_db

LIST = reverse("admin:pgbroker_rungroup_changelist")
# What a page costs at most, session and user included: none costs a query more per row, node or edge.
LIST_QUERIES, GROUP_QUERIES, CONFIRM_QUERIES, JOB_QUERIES = 6, 9, 7, 9


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


def page_of(group_id: UUID, what: str = "change") -> str:
    return reverse(f"admin:pgbroker_rungroup_{what}", args=[group_id])


def job_page(job_id: UUID, what: str = "change") -> str:
    return reverse(f"admin:pgbroker_job_{what}", args=[job_id])


def act(client: Client, action: str, *ids: UUID, **more: str):
    return client.post(
        LIST, {"action": action, "_selected_action": [str(each) for each in ids], **more}, follow=True
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


def diamond(name: str = "import") -> tuple[UUID, dict[str, UUID]]:
    """A sealed group: extract; then two that wait for it; then one that waits for both."""
    made = open_group(name)
    jobs = {"extract": member(name, name="extract")}
    for each in ("customers", "orders"):
        jobs[each] = member(name, name=each, depends_on=["extract"])
    jobs["report"] = member(name, name="report", depends_on=["customers", "orders"])
    seal(made)
    return made, jobs


# ------------------------------------------------------------------ the list


def test_the_list_shows_progress_at_a_cost_that_does_not_grow(root):
    _, jobs = diamond("g0")
    run_one(jobs["extract"])
    with CaptureQueriesContext(connection) as few:
        text = root.get(LIST).content.decode()
    for n in range(1, 8):
        diamond(f"g{n}")

    with CaptureQueriesContext(connection) as many:
        response = root.get(LIST)

    assert "1 of 4 over" in text
    assert 'aria-label="1 completed, 2 ready, 1 waiting"' in text
    assert text.count('class="pgb-bar pgb-') == 3
    assert len(response.context["cl"].result_list) == 8
    assert len(queries(many)) == len(queries(few)) <= LIST_QUERIES, queries(many)
    assert not [each for each in queries(many) if re.search(r"offset", each, re.I)]


def test_pages_by_key_show_every_group_once_newest_first(root, monkeypatch):
    monkeypatch.setattr("pgbroker.group_admin.RunGroupAdmin.list_per_page", 2)
    made = [open_group(f"g{n}") for n in range(5)]
    seen, url = [], LIST

    while url:
        response = root.get(url)
        changes = response.context["cl"]
        seen += [each.pk for each in changes.result_list]
        url = LIST + changes.next_page if changes.next_page else ""

    assert seen == sorted(made, reverse=True)
    assert "1 run group on this page" in response.content.decode()


def test_a_list_is_narrowed_by_state_name_and_id(root):
    one, two = open_group("import:1"), open_group("import:2")
    open_group("export")
    seal(one)

    def found(**given: object) -> set[UUID]:
        return {each.pk for each in root.get(LIST, given).context["cl"].result_list}

    assert found(state=10) == {one}
    assert found(q="import:") == {one, two}
    assert found(q=str(two)) == {two}
    assert found(q="port") == set()
    for odd in ({"state": "x"}, {"state": 99}, {"p": "nonsense"}, {"q": "%00"}):
        assert root.get(LIST, odd).status_code == 200


def test_another_tenants_group_is_not_there(root):
    with tenant_context("acme"):
        hidden = open_group("theirs")
        job = member("theirs")

    page = root.get(page_of(hidden))
    act(root, "retry_selected", hidden)
    root.post(page_of(hidden, "cancel"), {"confirmed": "yes"})
    root.post(page_of(hidden, "retry"))

    assert list(root.get(LIST).context["cl"].result_list) == []
    assert page.status_code == 302
    assert (group(hidden).state, status(job)) == (GroupState.OPEN, Status.READY)
    assert LogEntry.objects.count() == 0


# ------------------------------------------------------------------ one group


def test_a_group_page_tells_everything_at_a_fixed_cost(root):
    first = enqueue_one()
    made = open_group(
        "load", depends_on=[str(first)], tolerate_count=2, on_completed={"job_type": "tests.ok"},
        on_failed={"job_type": "tests.other", "queue": "default"},
    )  # fmt: skip
    member("load", name="extract")
    waiting = after({"group": "load"}, on_failure="block")

    with CaptureQueriesContext(connection) as captured:
        text = root.get(page_of(made)).content.decode()

    for said in (
        "tolerates 2 that end badly", "0 of 1 over", "not yet: more members may come", "when it completes",
        "tests.other is enqueued in queue default", "extract, tests.ok", job_page(first), job_page(waiting),
        "Waits for", "What waits for it", "<td>block</td>",
    ):  # fmt: skip
        assert said in text
    assert len(queries(captured)) <= GROUP_QUERIES, queries(captured)


def test_the_graph_has_a_box_a_job_by_levels_with_state_and_link(root):
    made, jobs = diamond()
    run_one(jobs["extract"])
    fail(jobs["orders"])
    passes()

    response = root.get(page_of(made))

    picture, text = response.context["graph"], response.content.decode()
    nodes = {node.label: node for node in picture.nodes}
    assert picture.levels == 3
    assert {label: node.state for label, node in nodes.items()} == {
        "extract": "completed", "customers": "ready", "orders": "failed", "report": "cancelled",
    }  # fmt: skip
    assert nodes["extract"].y < nodes["customers"].y == nodes["orders"].y < nodes["report"].y
    assert sorted(arrow.title for arrow in picture.arrows) == [
        "customers → report: still waited for, on failure cancel",
        "extract → customers: completed, on failure cancel",
        "extract → orders: completed, on failure cancel",
        "orders → report: failed, on failure cancel",
    ]
    assert sorted(arrow.state for arrow in picture.arrows) == ["met", "met", "open", "wrong"]
    for label, job in jobs.items():
        assert re.search(
            rf'<a href="{job_page(job)}"><g class="pgb-node pgb-{nodes[label].state}">.*?'
            rf'class="pgb-name">{label}</text>.*?class="pgb-state">{nodes[label].state}</text>',
            text,
            re.S,
        )


def test_what_members_wait_for_outside_is_in_the_graph_and_marked(root):
    first, other = enqueue_one(), open_group("other")
    other_member = member("other", name="m")
    made = open_group("load")
    member("load", name="a", depends_on=[str(first), {"group": "other"}, str(other_member)])

    response = root.get(page_of(made))

    nodes = {node.id: node for node in response.context["graph"].nodes}
    assert {node.kind for node in nodes.values() if node.is_outside} == {"job", "group"}
    assert (nodes[other].label, nodes[other].state) == ("other", "open")
    assert nodes[other_member].label == "other/m"
    assert page_of(other) in response.content.decode()
    assert "group, open</text>" in response.content.decode()


def test_a_name_cannot_break_out_of_the_picture(root):
    made = open_group("<script>alert(1)</script>")
    member("<script>alert(1)</script>", name='"><script>alert(2)</script>')

    for url in (LIST, page_of(made), page_of(made, "cancel")):
        text = root.get(url).content.decode()
        assert "<script>alert" not in text


def test_a_graph_of_two_hundred_is_drawn_and_a_larger_one_is_told_by_levels(root, monkeypatch):
    monkeypatch.setattr(group_reports, "GRAPH_MAX", 4)
    made, jobs = diamond()
    run_one(jobs["extract"])
    assert root.get(page_of(made)).context["graph"] is not None
    large = open_group("large")
    for place in range(3):
        member("large", name=f"first-{place}")
        member("large", name=f"then-{place}", depends_on=[f"first-{place}"])

    with CaptureQueriesContext(connection) as captured:
        response = root.get(page_of(large))

    bands, text = response.context["bands"], response.content.decode()
    assert response.context["graph"] is None
    assert [(row.label, row.bar.told) for row in bands.rows] == [
        ("level 0", "3 ready"), ("level 1", "3 waiting"),
    ]  # fmt: skip
    assert "level 1: 3 waiting" in text
    assert f"?run_group_id={large}&amp;status=2" in text
    assert len(queries(captured)) <= GROUP_QUERIES


def test_a_graph_with_too_many_lines_is_told_by_levels(root, monkeypatch):
    monkeypatch.setattr(group_reports, "EDGES_MAX", 3)
    made, _ = diamond()

    response = root.get(page_of(made))

    assert response.context["graph"] is None
    assert [row.label for row in response.context["bands"].rows] == ["level 0", "level 1", "level 2"]


def test_the_members_of_a_status_are_listed_by_the_link_of_the_page(root):
    made, jobs = diamond()
    enqueue_one()
    run_one(jobs["extract"])

    listed = root.get(reverse("admin:pgbroker_job_changelist"), {"run_group_id": str(made), "status": 2})
    everything = root.get(reverse("admin:pgbroker_job_changelist"), {"run_group_id": str(made)})
    odd = root.get(reverse("admin:pgbroker_job_changelist"), {"run_group_id": "nonsense"}, follow=True)

    assert {job.pk for job in listed.context["cl"].result_list} == {jobs["customers"], jobs["orders"]}
    assert {job.pk for job in everything.context["cl"].result_list} == set(jobs.values())
    assert odd.status_code == 200


def test_nothing_on_a_page_is_inline(root):
    made, jobs = diamond()
    fail(jobs["extract"])

    for url in (LIST, page_of(made), page_of(made, "cancel"), job_page(jobs["report"])):
        text = root.get(url).content.decode()
        assert not re.search(
            r"\sstyle=|<style|\son\w+=\"|<script(?![^>]*\bsrc=)(?![^>]*application/json)", text
        ), url


@pytest.mark.parametrize("wrong", ["not-an-id", str(UUID(int=7))])
def test_a_group_that_is_not_there_leads_back(root, wrong):
    response = root.get(reverse("admin:pgbroker_rungroup_change", args=[wrong]), follow=True)

    assert response.status_code == 200
    assert "exist" in told(response)[0]


def test_an_error_of_a_callback_is_shown(root):
    made = open_group("load", on_completed={"job_type": "tests.ok"})
    with connection.cursor() as cursor:
        cursor.execute(
            "update pgbroker.run_group set callback_error = %s where id = %s", ["on_completed: no", made]
        )

    assert "on_completed: no" in root.get(page_of(made)).content.decode()


# ------------------------------------------------------------------ the page of a job


def test_a_job_page_explains_and_shows_both_sides(root):
    made, jobs = diamond()

    with CaptureQueriesContext(connection) as captured:
        response = root.get(job_page(jobs["customers"]))

    text = response.content.decode()
    assert response.context["explanation"].code == "waiting_for_prerequisites"
    assert f"It waits for its prerequisite: job {jobs['extract']}" in text
    for said in (
        "Waits for",
        job_page(jobs["extract"]),
        "What waits for it",
        job_page(jobs["report"]),
        page_of(made),
    ):
        assert said in text
    assert text.index("Why is it where it is?") < text.index("Waits for") < text.index("Arguments")
    assert len(queries(captured)) <= JOB_QUERIES, queries(captured)


def test_a_prerequisite_is_told_with_its_outcome_and_when_it_was_met(root):
    first, second = enqueue_one(), enqueue_one()
    job = after(first, second, {"group": "later", "within_seconds": 3600}, on_failure="ignore")
    run_one(first)
    fail(second)
    passes()

    shown = root.get(job_page(job)).context["prerequisites"]

    assert {
        (each["kind"], each["outcome"], each["policy"], bool(each["satisfied_at"])) for each in shown
    } == {
        ("job", "completed", "ignore", True),
        ("job", "failed", "ignore", True),
        ("reference", "", "ignore", False),
    }
    assert "later, which need not be there before" in root.get(job_page(job)).content.decode()


def test_a_job_that_went_along_leads_to_its_cause(root):
    _, jobs = diamond()
    fail(jobs["extract"])
    passes()

    text = root.get(job_page(jobs["report"])).content.decode()

    assert f'<a href="{job_page(jobs["extract"])}">{jobs["extract"]}</a>' in text
    assert "The cause is job" in text


def test_a_blocked_job_is_unblocked_by_button(root):
    first = enqueue_one()
    job = after(first, on_failure="block")
    assert job_page(job, "unblock") not in root.get(job_page(job)).content.decode()
    fail(first)
    assert job_page(job, "unblock") in root.get(job_page(job)).content.decode()

    response = root.post(job_page(job, "unblock"), follow=True)

    assert told(response) == ["1 job no longer blocked."]
    assert status(job) == Status.READY
    assert [entry.get_change_message() for entry in LogEntry.objects.all()] == ["Unblocked."]


def test_a_cancel_of_a_job_tells_what_goes_along(root):
    first = enqueue_one()
    second = after(first)

    text = root.get(job_page(first, "cancel")).content.decode()

    assert "What goes along" in text
    assert job_page(second) in text


# ------------------------------------------------------------------ what one may do


def test_a_retry_takes_the_failed_part_and_leaves_a_trace(root):
    made, jobs = diamond()
    fail(jobs["extract"])
    passes()
    assert group(made).state == GroupState.FAILED

    response = root.post(page_of(made, "retry"), follow=True)
    passes()

    assert told(response) == ["1 job of import live again. What was cancelled because of them comes back."]
    assert [status(jobs[name]) for name in ("extract", "customers", "report")] == [
        Status.READY, Status.WAITING, Status.WAITING,
    ]  # fmt: skip
    assert group(made).state == GroupState.SEALED
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.object_repr, entry.get_change_message()) == (
        str(made),
        "import",
        "Retried 1 jobs.",
    )


def test_an_action_retries_several_and_says_where_nothing_failed(root):
    (bad, jobs), (fine, _) = diamond("bad"), diamond("fine")
    fail(jobs["extract"])
    passes()

    response = act(root, "retry_selected", bad, fine)

    assert sorted(told(response)) == [
        "1 job of bad live again. What was cancelled because of them comes back.",
        "Nothing in fine failed by itself.",
    ]
    assert status(jobs["extract"]) == Status.READY


def test_a_cancel_asks_first_and_shows_what_goes_along(root):
    made, _ = diamond()
    claim_one()
    taken = after({"group": "import"})
    blocked = after({"group": "import"}, on_failure="block")
    failing = open_group("next", on_failed={"job_type": "tests.ok"})
    member("next", depends_on=[str(taken)])

    with CaptureQueriesContext(connection) as captured:
        response = root.get(page_of(made, "cancel"))
    listed = act(root, "cancel_selected", made)

    text = response.content.decode()
    assert [each["told"] for each in response.context["fates"]] == [
        "2 jobs that wait would be cancelled along",
        "1 job that waits would be blocked",
        "1 other run group would fail",
    ]
    for said in (
        "4 jobs, 1 of them running", job_page(taken), job_page(blocked), page_of(failing), "which enqueues tests.ok",
    ):  # fmt: skip
        assert said in text
    assert listed.context["fates"] == response.context["fates"]
    assert len(queries(captured)) <= CONFIRM_QUERIES, queries(captured)
    assert status(taken) == Status.WAITING
    assert LogEntry.objects.count() == 0


def test_a_confirmed_cancel_does_it_and_keeps_the_reason(root):
    made, jobs = diamond()
    taken = after({"group": "import"})

    response = root.post(page_of(made, "cancel"), {"confirmed": "yes", "reason": "wrong file"}, follow=True)
    passes()

    assert told(response) == ["import: 4 jobs cancelled."]
    assert {status(job) for job in (*jobs.values(), taken)} == {Status.CANCELLED}
    assert control.get_job(jobs["extract"]).reason == "wrong file"
    assert group(made).state == GroupState.CANCELLED
    assert LogEntry.objects.get().get_change_message() == "Cancelled. wrong file"


def test_a_cancel_of_very_many_stops_and_says_who_goes_on(root, monkeypatch):
    monkeypatch.setattr("pgbroker.group_control.PAGE", 2)
    monkeypatch.setattr("pgbroker.group_admin.CANCEL_PAGES", 1)
    made = open_group("import")
    jobs = [member("import") for _ in range(5)]

    response = root.post(page_of(made, "cancel"), {"confirmed": "yes"}, follow=True)

    assert told(response)[0] == "import: 2 jobs cancelled."
    assert "the upkeep of a worker cancels the rest" in told(response)[1]
    assert [status(job) for job in jobs].count(Status.CANCELLED) == 2
    assert group(made).cancel_requested_at is not None


def test_who_may_only_look_sees_no_buttons_and_can_do_nothing():
    viewer = staff("view_rungroup", "view_job")
    made, jobs = diamond()
    fail(jobs["extract"])
    passes()
    blocked = after(after(enqueue_one()), on_failure="block")

    text = viewer.get(page_of(made)).content.decode()
    answers = [
        viewer.post(page_of(made, "retry")),
        viewer.post(page_of(made, "cancel"), {"confirmed": "yes"}),
        viewer.get(page_of(made, "cancel")),
        viewer.post(job_page(blocked, "unblock")),
    ]
    act(viewer, "retry_selected", made)

    assert page_of(made, "retry") not in text
    assert page_of(made, "cancel") not in text
    assert [each.status_code for each in answers] == [403] * 4
    assert status(jobs["extract"]) == Status.FAILED


def test_permissions_are_for_one_thing_each():
    made, jobs = diamond()
    fail(jobs["extract"])
    passes()
    other, _ = diamond("other")

    retrier, canceller = staff("view_rungroup", "retry_rungroup"), staff("view_rungroup", "cancel_rungroup")

    assert page_of(made, "retry") in retrier.get(page_of(made)).content.decode()
    assert retrier.post(page_of(other, "cancel"), {"confirmed": "yes"}).status_code == 403
    assert page_of(other, "cancel") in canceller.get(page_of(other)).content.decode()
    assert canceller.post(page_of(made, "retry")).status_code == 403
    assert canceller.post(page_of(other, "cancel"), {"confirmed": "yes"}).status_code == 302
    assert group(other).state == GroupState.CANCELLED


def test_a_stranger_sees_nothing():
    made, _ = diamond()
    nobody = staff("view_job")

    for url in (LIST, page_of(made)):
        assert nobody.get(url).status_code == 403
    assert nobody.get(page_of(made, "retry")).status_code == 405


def test_a_group_is_not_made_changed_or_deleted_here(root):
    made, _ = diamond()

    assert root.get(reverse("admin:pgbroker_rungroup_add")).status_code == 403
    assert root.post(page_of(made), {"name": "x"}).status_code in (200, 403)
    assert root.post(page_of(made, "delete"), {"post": "yes"}).status_code == 403
    assert group(made).name == "import"

"""The admin of schedules: what it shows at what cost, who may do what, and what a mistake in the form is told."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from pgbroker import schedule
from pgbroker.models import Schedule
from pgbroker.registry import synchronise
from pgbroker.schedules import operate
from pgbroker.schedules.declare import declarations
from pgbroker.schedules.operate import Definition
from pgbroker.schedules.sync import sync
from pgbroker.tenancy import tenant_context
from tests.support.handlers import nothing
from tests.support.jobs import queue_id, type_id
from tests.support.schedules import entry, jobs, make, minute, now, row, runs, set_row, states, tick_all

pytestmark = pytest.mark.django_db

LIST, ADD = reverse("admin:pgbroker_schedule_changelist"), reverse("admin:pgbroker_schedule_add")
# What a page costs at most, session and user included: never a statement more per row.
LIST_QUERIES, PAGE_QUERIES, BACKFILL_QUERIES = 7, 7, 8


@pytest.fixture(autouse=True)
def fresh(monkeypatch, db) -> None:
    monkeypatch.setattr(declarations, "_known", {})
    synchronise(using="default")
    queue_id(), type_id()


def staff(*permissions: str) -> Client:
    user = User.objects.create_user(f"staff-{uuid4()}", is_staff=True)
    found = Permission.objects.filter(content_type__app_label="pgbroker", codename__in=permissions)
    assert len(found) == len(permissions)
    user.user_permissions.set(found)
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def root(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def save(name: str = "nightly", **changes: Any) -> operate.ScheduleLine:
    said = {"expression": "30 2 * * *", "time_zone": "Europe/Berlin", "jobs": [entry()], **changes}
    return operate.save(Definition(name=name, **said)).schedule


def declare(name: str = "declared", **changes: Any) -> operate.ScheduleLine:
    schedule(name, nothing, **{"cron": "0 2 * * *", "timezone": "UTC", **changes})
    sync(using="default")
    return operate.get_schedule(name)


def page_of(schedule_id: UUID, what: str = "change") -> str:
    return reverse(f"admin:pgbroker_schedule_{what}", args=[schedule_id])


def act(client: Client, action: str, *ids: UUID):
    return client.post(LIST, {"action": action, "_selected_action": [str(each) for each in ids]}, follow=True)


def told(response) -> str:
    return " ".join(str(message) for message in response.context["messages"])


def text_of(response) -> str:
    assert response.status_code == 200
    return response.content.decode()


def asked(captured: CaptureQueriesContext) -> list[str]:
    return [
        each["sql"]
        for each in captured.captured_queries
        if not re.match(r"SAVEPOINT|RELEASE|select set_config", each["sql"])
    ]


# ------------------------------------------------------------------ looking


def test_the_list_tells_what_comes_there_and_in_utc_at_a_fixed_cost(root):
    line = save()
    declare()
    with CaptureQueriesContext(connection) as few:
        text = text_of(root.get(LIST))
    for number in range(20):
        declare(f"declared-{number}")

    with CaptureQueriesContext(connection) as many:
        root.get(LIST)

    assert "02:30:00 +0" in text
    assert f"{line.next_run_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" in text
    assert len(asked(many)) == len(asked(few)) <= LIST_QUERIES, asked(many)


def test_the_list_tells_state_last_occurrence_failures_and_drift(root):
    line = save()
    set_row(line.id, failure_count=7, error_code="unknown_queue", last_dispatched_for=minute(5))
    operate.pause("nightly")
    set_row(declare().id, expression="0 9 * * *")
    schedule("unstored", nothing, cron="0 2 * * *", timezone="UTC")

    text = text_of(root.get(LIST))

    assert "pgb-badge pgb-paused" in text
    assert re.search(r"7<span class=\"pgb-id\">unknown_queue", text)
    assert f"{minute(5).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" in text
    assert "pgb-badge pgb-edited" in text
    assert "Declared in code, and not stored yet: unstored." in text


@pytest.mark.parametrize("state", ["active", "paused", "disabled", "ended"])
def test_the_list_is_narrowed_to_a_state(root, state):
    lines = {each: save(each) for each in ("active", "paused", "disabled", "ended")}
    operate.pause("paused")
    operate.disable("disabled", reason="")
    set_row(lines["ended"].id, next_run_at=None)

    response = root.get(LIST, {"state": state})

    assert [each.name for each in response.context["cl"].result_list] == [state]
    assert operate.get_schedule(state).state == state


def test_a_schedule_whose_tick_nobody_has_seen_to_is_marked_and_found(root):
    save("active")
    late = save("late")
    set_row(late.id, watermark=minute(9), next_run_at=minute(5))

    text = text_of(root.get(LIST))
    response = root.get(LIST, {"state": "overdue"})

    assert text.count("pgb-badge pgb-overdue") == 1
    assert text.count("pgb-badge pgb-active") == 1
    assert [each.name for each in response.context["cl"].result_list] == ["late"]


def test_a_page_tells_the_next_ticks_with_what_the_clock_does_and_what_became_of_ticks(root):
    schedule_row = make("nightly")
    tick_all()
    (run,) = runs(schedule_row)
    set_row(
        schedule_row,
        expression="30 2 * * *",
        time_zone="Europe/Berlin",
        paused_at=now(),
        next_run_at=None,
        paused_until=datetime(2031, 3, 29, 12, tzinfo=UTC),
    )

    with CaptureQueriesContext(connection) as captured:
        text = text_of(root.get(page_of(schedule_row.pk)))

    assert text.count('<tr class="pgb-noted">') == 1
    assert "2031-03-30 03:00:00 +02:00" in text
    assert "2031-03-30 01:00:00" in text
    assert "moved: the clock never shows 02:30" in text
    assert "2031-04-08 02:30:00 +02:00" in text  # the tenth
    assert reverse("admin:pgbroker_job_change", args=[run.job_id]) in text
    assert "pgb-badge pgb-created" in text
    assert len(asked(captured)) <= PAGE_QUERIES, asked(captured)


def test_the_history_is_read_page_by_page(root, monkeypatch):
    monkeypatch.setattr("pgbroker.schedule_pages.HISTORY", 2)
    line = save(expression="* * * * *")
    operate.backfill("nightly", start=minute(5), end=minute(1), dry_run=False)
    seen, url = [], page_of(line.id)

    for _ in range(3):
        response = root.get(url)
        seen += [each["utc"] for each in response.context["history"]]
        older = re.search(r'href="(\?before=[^"]+)"', response.content.decode())
        url = page_of(line.id) + older[1] if older else ""

    assert seen == [f"{minute(back):%Y-%m-%d %H:%M:%S}" for back in range(1, 6)]
    assert url == ""


def test_a_row_that_cannot_be_read_has_a_page_that_says_why(root):
    line = save()
    set_row(line.id, expression="61 * * * *", time_zone="Mars/Olympus")

    text = text_of(root.get(page_of(line.id)))

    assert "61" in text
    assert "Mars/Olympus" in text
    assert root.get(LIST).status_code == 200
    assert root.get(page_of(line.id), {"before": "x"}).status_code == 200


def test_nothing_on_a_page_is_inline_and_nothing_is_markup_of_others(root):
    line = save()
    set_row(line.id, error="<script>alert(1)</script>", error_code="x", failed_at=now())

    for url in (
        LIST,
        ADD,
        page_of(line.id),
        f"{page_of(line.id, 'backfill')}?start=2026-01-01&end=2026-01-02",
    ):
        text = text_of(root.get(url))
        assert "<script>alert" not in text
        assert not re.search(
            r"\sstyle=|<style|\son\w+=\"|<script(?![^>]*\bsrc=)(?![^>]*application/json)", text
        ), url


def test_another_tenants_schedule_is_not_there(root):
    with tenant_context("acme"):
        theirs = save("theirs")

    assert "theirs" not in text_of(root.get(LIST))
    assert root.get(page_of(theirs.id)).status_code == 302
    for what in ("run", "pause", "resume", "enable", "disable"):
        root.post(page_of(theirs.id, what), {"duration": "", "reason": ""})
    root.post(page_of(theirs.id, "backfill"), {"start": minute(9).isoformat(), "end": minute(1).isoformat()})
    act(root, "pause_selected", theirs.id)
    act(root, "run_selected", theirs.id)

    left = row(theirs.id)
    assert (left.paused_at, left.enabled, left.revision, runs(theirs.id)) == (None, True, theirs.revision, [])
    with tenant_context("acme"):
        assert "theirs" in text_of(root.get(LIST))


# ------------------------------------------------------------------ the form


def filled(**changes: Any) -> dict[str, Any]:
    """What somebody types who makes no mistake."""
    typed = {
        "name": "typed",
        "expression": "0 2 * * *",
        "time_zone": "Africa/Johannesburg",
        "enabled": "on",
        "template": json.dumps({"jobs": [entry(queue="default")]}),
        "ambiguous": "auto",
        "nonexistent": "auto",
        "starts_at_0": "",
        "starts_at_1": "",
        "ends_at_0": "",
        "ends_at_1": "",
        "misfire": "run_once",
        "misfire_count": "100",
        "misfire_window_seconds": "604800",
        "overlap": "allow",
        "jitter_seconds": "0",
    }
    return {name: value for name, value in {**typed, **changes}.items() if value is not None}


def test_a_schedule_is_added_and_fires_from_now_on(root):
    response = root.post(ADD, filled(overlap="skip"), follow=True)

    line = operate.get_schedule("typed")
    assert "was added successfully" in told(response)
    assert (line.overlap, line.declared, line.state) == ("skip", False, "active")
    assert line.next_run_at > now()
    assert LogEntry.objects.get().object_id == str(line.id)


def test_a_schedule_is_changed_and_keeps_its_name(root):
    line = save("typed")

    root.post(page_of(line.id), filled(name="another", expression="0 3 * * *", enabled=None))

    changed = operate.get_schedule("typed")
    assert (changed.id, changed.expression, changed.enabled) == (line.id, "0 3 * * *", False)
    assert Schedule.objects.count() == 1


WRONG = [
    ({"expression": "0 25 * * *"}, "expression", "(hour, column 3)"),
    ({"expression": "0 2 * * * *"}, "expression", "five fields but 6"),
    ({"expression": "0 0 31 2 *"}, "expression", "none of these months"),
    ({"expression": ""}, "expression", "required"),
    ({"expression": "*" * 300}, "expression", "255"),
    ({"time_zone": "Africa/Johanesburg"}, "time_zone", "Did you mean"),
    ({"misfire": "sometimes"}, "misfire", "valid choice"),
    ({"misfire_count": "0"}, "misfire_count", "1 to"),
    ({"misfire_count": "x"}, "misfire_count", "whole number"),
    ({"misfire_window_seconds": "-1"}, "misfire_window_seconds", "more than nothing"),
    ({"misfire_window_seconds": "1e300"}, "misfire_window_seconds", "at most"),
    ({"jitter_seconds": "1e300"}, "jitter_seconds", "at most a day"),
    ({"jitter_seconds": "nan"}, "jitter_seconds", "number"),
    ({"ends_at_0": "2020-01-01", "ends_at_1": "00:00"}, "ends_at", ""),
    ({"ends_at_0": "2020-01-01"}, "ends_at", "valid time"),
    ({"template": "{"}, "template", "JSON"),
    ({"template": "[]"}, "template", "required"),
    ({"template": "[5]"}, "template", "list of jobs"),
    ({"template": '{"jobs": 5}'}, "template", "list of jobs"),
    ({"template": '{"jobs": []}'}, "template", "no job"),
    ({"template": '{"jobs": ["x"]}'}, "template", "is a str"),
    ({"template": '{"jobs": [{}], "more": 1}'}, "template", "more"),
    ({"template": '{"jobs": [{}], "group": 5}'}, "template", "group"),
    ({"template": '{"jobs": [{"job_type": "nobody.knows"}]}'}, "template", "nobody.knows"),
    ({"template": '{"jobs": [{"job_type": "%s", "delay_seconds": 5}]}'}, "template", "delay_seconds"),
    ({"template": '{"jobs": [{"job_type": "%s", "queue": "no queue"}]}'}, "template", "queue"),
    ({"template": '{"jobs": [{"job_type": "%s", "args": {"v": 1, "args": ["\\u0000"]}}]}'}, "template", "NUL"),
    ({"template": '{"jobs": [{"job_type": "%s", "args": {"v": 1, "args": ["\\ud800"]}}]}'}, "template", "half"),
    ({"template": '{"jobs": [{"job_type": "%s"}], "group": {"\\u0000": 1}}'}, "template", "NUL"),
    ({"template": '{"jobs": [{"job_type": "%s", "args": 5}]}'}, "template", "args"),
    ({"name": ""}, "name", "required"),
    ({"name": "a\tb"}, "name", "control character"),
    ({"name": "taken"}, "name", "There is a schedule"),
    ({"name": "declared"}, "name", "The code declares"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "field", "words"), WRONG, ids=[str(place) for place in range(len(WRONG))])
def test_a_mistake_is_told_at_its_field_and_nothing_is_stored(root, typed, field, words):
    save("taken")
    schedule("declared", nothing, cron="0 2 * * *", timezone="UTC")
    if "%s" in typed.get("template", ""):
        typed = {"template": typed["template"] % entry()["job_type"]}

    response = root.post(ADD, filled(**typed))

    assert response.status_code == 200
    errors = response.context["adminform"].form.errors
    assert list(errors) == [field]
    assert len(errors[field]) == 1
    assert words in " ".join(errors[field])
    assert [each.name for each in operate.list_schedules()] == ["taken"]


def test_all_mistakes_are_told_at_once(root):
    response = root.post(
        ADD, filled(expression="0 25 * * *", time_zone="Mars", jitter_seconds="x", misfire_count="0")
    )

    assert set(response.context["adminform"].form.errors) == {
        "expression", "time_zone", "jitter_seconds", "misfire_count",
    }  # fmt: skip


def test_what_the_code_declares_is_not_edited_but_paused(root):
    line = declare()

    response = root.get(page_of(line.id))
    root.post(page_of(line.id), filled(name="declared", expression="0 9 * * *"))
    root.post(page_of(line.id, "pause"), {"duration": "3600", "reason": "month end"})

    text = text_of(response)
    assert 'name="expression"' not in text
    assert "The code declares it" in text
    after = operate.get_schedule("declared")
    assert (after.expression, after.state, after.pause_reason) == ("0 2 * * *", "paused", "month end")


# ------------------------------------------------------------------ verbs


def test_a_schedule_runs_now_by_button_and_leaves_a_trace(root):
    line = save()

    response = root.post(page_of(line.id, "run"), follow=True)

    (job,) = jobs()
    assert f"job {job.pk}" in told(response)
    assert str(job.pk) in LogEntry.objects.get().change_message


def test_a_run_that_cannot_be_created_is_told_and_is_in_the_history(root):
    line = save()
    set_row(line.id, template={"jobs": [entry(job_type="nobody.knows")]})

    response = root.post(page_of(line.id, "run"), follow=True)

    assert "[unknown_job_type]" in told(response)
    assert states(line.id) == ["failed"]
    assert "pgb-badge pgb-failed" in text_of(response)
    assert LogEntry.objects.count() == 0


def test_a_pause_has_an_end_and_a_reason_and_is_ended_by_button(root):
    line = save()

    root.post(page_of(line.id, "pause"), {"duration": "3600", "reason": "month end"})
    paused = operate.get_schedule("nightly")
    text = text_of(root.get(page_of(line.id)))
    root.post(page_of(line.id, "resume"))

    assert timedelta(minutes=59) < paused.paused_until - now() <= timedelta(hours=1)
    assert (paused.paused_by, paused.pause_reason) == ("root", "month end")
    assert "month end" in text
    assert "by root" in text
    assert operate.get_schedule("nightly").state == "active"
    assert "was not paused" in told(root.post(page_of(line.id, "resume"), follow=True))


def test_a_schedule_is_disabled_and_enabled_by_button(root):
    line = save()

    root.post(page_of(line.id, "disable"))
    disabled = operate.get_schedule("nightly")
    root.post(page_of(line.id, "enable"))

    assert (disabled.state, disabled.disabled_reason) == ("disabled", "by root")
    assert operate.get_schedule("nightly").state == "active"


def test_actions_do_it_to_all_that_are_ticked(root):
    ids = [save(name).id for name in ("a", "b")]
    save("c")

    act(root, "run_selected", *ids)
    act(root, "pause_selected", *ids)
    paused = [each.state for each in operate.list_schedules()]
    act(root, "resume_selected", *ids)

    assert len(jobs()) == 2
    assert paused == ["paused", "paused", "active"]
    assert [each.state for each in operate.list_schedules()] == ["active"] * 3


# ------------------------------------------------------------------ backfill


def test_a_backfill_says_what_it_would_create_and_then_does_just_that(root):
    line = save(expression="* * * * *", time_zone="UTC")
    operate.backfill("nightly", start=minute(20), end=minute(18), dry_run=False)
    url = page_of(line.id, "backfill")

    with CaptureQueriesContext(connection) as captured:
        preview = root.get(url, {"start": minute(30).isoformat(), "end": minute(1).isoformat()})
    assert len(runs(line.id)) == 3
    sure = preview.context["sure"]
    response = root.post(url, sure, follow=True)

    text = text_of(preview)
    assert "27 of 30 ticks would be created" in text
    assert text.count("not created</td>") == 17
    assert "and 10 more" in text
    assert len(asked(captured)) <= BACKFILL_QUERIES, asked(captured)
    assert "27 of 30 ticks created" in told(response)
    assert len(runs(line.id)) == 30
    assert "Backfilled" in LogEntry.objects.get().change_message


@pytest.mark.parametrize(
    ("typed", "field", "words"),
    [
        ({"start": "yesterday"}, "start", "is no time"),
        ({"start": ""}, "start", "required"),
        ({"start": "2026-01-01", "end": "x"}, "end", "is no time"),
        ({"start": "2026-01-02", "end": "2026-01-01"}, "end", "before the start"),
        ({"start": "2026-01-01", "end": "2199-01-01"}, "end", "in the future"),
        ({"start": "2026-01-01"}, "start", "more than 2,000"),
        ({"start": "1900-01-01"}, "start", "1970"),
        ({"start": "2026-01-01\x00"}, "start", ""),
    ],
)
@pytest.mark.parametrize("method", ["get", "post"])
def test_a_range_that_cannot_be_is_told_at_its_field(root, method, typed, field, words):
    line = save(expression="* * * * *")

    response = getattr(root, method)(page_of(line.id, "backfill"), typed)

    assert response.status_code == 200
    assert words in " ".join(response.context["form"].errors[field])
    assert runs(line.id) == []


def test_a_backfill_that_fails_says_why(root):
    line = save(expression="* * * * *", time_zone="UTC")
    set_row(line.id, template={"jobs": [entry(job_type="nobody.knows")]})

    response = root.post(
        page_of(line.id, "backfill"),
        {"start": minute(3).isoformat(), "end": minute(1).isoformat()},
        follow=True,
    )

    assert "3 could not be created. [unknown_job_type]" in told(response)


# ------------------------------------------------------------------ permissions


def attempts(client: Client, line: operate.ScheduleLine) -> dict[str, int]:
    """Try everything, and tell what each was answered."""
    span = {"start": minute(3).isoformat(), "end": minute(1).isoformat()}
    answers = {
        what: client.post(page_of(line.id, what), {"duration": "", "reason": ""}).status_code
        for what in ("run", "disable", "enable", "pause", "resume")
    }
    answers["backfill"] = client.post(page_of(line.id, "backfill"), span).status_code
    answers["preview"] = client.get(page_of(line.id, "backfill"), span).status_code
    answers["change"] = client.post(page_of(line.id), filled(name="nightly")).status_code
    answers["add"] = client.post(ADD, filled(name="new")).status_code
    answers["delete"] = client.post(
        reverse("admin:pgbroker_schedule_delete", args=[line.id]), {"post": "yes"}
    ).status_code
    return answers


ALLOWS = [
    ((), set()),
    (("run_schedule",), {"run"}),
    (("pause_schedule",), {"pause", "resume", "enable", "disable"}),
    (("backfill_schedule",), {"backfill"}),
    (("change_schedule",), {"change"}),
    (("add_schedule",), {"add"}),
    (("delete_schedule",), {"delete"}),
]


@pytest.mark.parametrize(("permissions", "allowed"), ALLOWS)
def test_each_permission_allows_its_own_verbs(permissions, allowed):
    client = staff("view_schedule", *permissions)
    line = save(expression="* * * * *")

    answers = attempts(client, line)

    assert answers.pop("preview") == (200 if "backfill" in allowed else 403)
    assert {what for what, code in answers.items() if code == 302} == allowed
    assert {code for what, code in answers.items() if what not in allowed} <= {403}


def test_who_may_only_look_sees_no_button_and_no_action():
    client = staff("view_schedule")
    line = save()

    text = text_of(client.get(page_of(line.id))) + text_of(client.get(LIST))
    act(client, "run_selected", line.id)
    act(client, "pause_selected", line.id)

    for what in ("run", "pause", "disable", "backfill"):
        assert page_of(line.id, what) not in text
    assert "run_selected" not in text
    assert (operate.get_schedule("nightly").state, runs(line.id)) == ("active", [])


def test_who_may_not_look_sees_nothing():
    client = staff("view_job")
    line = save()

    assert client.get(LIST).status_code == 403
    assert client.get(page_of(line.id)).status_code == 403


def test_a_button_without_its_token_and_a_look_do_nothing(root):
    line = save()
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="root"))

    assert strict.post(page_of(line.id, "run")).status_code == 403
    assert root.get(page_of(line.id, "run")).status_code == 405
    assert runs(line.id) == []

"""The admin of schedules in a browser, under a policy that allows nothing inline, with nothing asked for elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pgbroker.schedules import operate
from pgbroker.schedules.operate import Definition
from tests.support.jobs import queue_id, type_id
from tests.support.schedules import entry, jobs, make, now, runs, set_row, tick_all

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
# Of the next ten Sundays of March and October one has no 02:30, and one has it twice.
SUNDAYS = "30 2 * 3,10 0"


@pytest.fixture
def elsewhere(page, live_server) -> Iterator[list[str]]:
    """What was asked for that is not of the site; each test ends with nothing in it."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    found: list[str] = []
    yield found
    found += [url for url in asked if not url.startswith((f"{live_server.url}/", "data:"))]
    assert asked
    assert found == []


@pytest.fixture
def admin(elsewhere, admin):
    """The admin, logged in; what it asks for is looked at."""
    queue_id(), type_id()
    return admin


def save(name: str, **changes) -> operate.ScheduleLine:
    said = {"expression": SUNDAYS, "time_zone": "Europe/Berlin", "jobs": [entry()], **changes}
    return operate.save(Definition(name=name, **said)).schedule


def noted(admin) -> list[str]:
    """Return what is marked in the first table of ticks, and look that a mark can be seen."""
    rows = admin.locator("table.pgb-ticks").first.locator("tr.pgb-noted")
    for place in range(rows.count()):
        assert rows.nth(place).bounding_box()["height"] > 10
    return [each for each in rows.locator("td.pgb-note").all_inner_texts() if each]


def test_an_operator_finds_a_schedule_and_sees_what_a_change_of_the_clock_does(
    admin, live_server, picture, console
):
    save("sundays")
    paused = save("paused", expression="0 9 * * 1-5", time_zone="Africa/Johannesburg")
    operate.pause(paused.id, reason="month end")
    make("done")
    tick_all()

    admin.goto(f"{live_server.url}/admin/pgbroker/schedule/")
    listed = admin.inner_text("#result_list")
    picture("schedules")
    assert "Europe/Berlin" in listed
    assert "UTC" in listed
    assert admin.locator("#result_list .pgb-badge.pgb-paused").count() == 1
    admin.click("#result_list a:has-text('sundays')")
    admin.wait_for_selector("h2:text-is('Next ticks')")
    picture("schedule")

    marks = " / ".join(noted(admin))
    assert "the clock never shows 02:30" in marks
    assert "the first of two: the clock shows this time again" in marks
    plain, marked = (
        admin.evaluate(f"getComputedStyle(document.querySelector('{row}')).backgroundColor")
        for row in ("table.pgb-ticks tbody tr:not(.pgb-noted)", "table.pgb-ticks tbody tr.pgb-noted")
    )
    assert plain != marked, "a mark is more than words"
    assert console.complaints == []


def test_an_operator_looks_at_a_range_before_it_is_backfilled(admin, live_server, picture, console):
    line = save("sundays", ambiguous="twice")

    admin.goto(f"{live_server.url}/admin/pgbroker/schedule/{line.id}/change/")
    admin.click("a:text-is('Backfill…')")
    admin.fill("#id_start", "2025-03-30")
    admin.fill("#id_end", "2025-10-26")
    admin.click("button:text-is('Look what that is')")
    admin.wait_for_selector("text=would be created.")
    picture("backfill")

    asked = admin.inner_text(".pgb-question")
    # The last Sunday of March, and four of October, the last of them twice.
    assert asked == "6 of 6 ticks would be created."
    assert [each.split(":")[0] for each in noted(admin)] == [
        "moved",
        "the first of two",
        "the second of two",
    ]
    assert jobs() == []
    admin.click("button:text-is('Yes, create them')")
    admin.wait_for_selector("text=6 of 6 ticks created.")

    assert len(runs(line.id, kind="backfill")) == 6
    assert console.complaints == []


def test_an_operator_makes_a_schedule_is_told_of_a_mistake_and_deletes_it(
    admin, live_server, picture, console
):
    admin.goto(f"{live_server.url}/admin/pgbroker/schedule/add/")
    admin.fill("#id_name", "<b>reports</b>")
    admin.fill("#id_expression", "0 0 31 2 *")
    admin.fill("#id_time_zone", "Europe/Berlin")
    admin.fill("#id_template", '{"jobs": [{"job_type": "tests.job"}]}')
    admin.click("input[name=_continue]")
    admin.wait_for_selector(".field-expression .errorlist")
    picture("schedule-mistake")
    assert "days that none of these months has" in admin.inner_text(".field-expression .errorlist")
    # Read otherwise by others: it is saved, and told.
    admin.fill("#id_expression", "0 0 15 * */3")
    admin.fill("#id_template", json.dumps({"jobs": [entry()]}))
    admin.click("input[name=_continue]")
    admin.wait_for_selector(".messagelist .warning")
    picture("schedule-made")
    assert "croniter would fire on" in admin.inner_text(".messagelist .warning")
    assert admin.locator("#content b:text-is('reports')").count() == 0

    admin.click("a.deletelink")
    admin.wait_for_selector("text=go on")
    picture("schedule-delete")
    admin.click("input[type=submit]")
    admin.wait_for_selector(".messagelist .success")

    assert operate.list_schedules() == []
    assert console.complaints == []


def test_a_dark_page_keeps_marks_apart(admin, live_server, picture):
    line = save("sundays")
    set_row(line.id, next_run_at=now())
    admin.emulate_media(color_scheme="dark")

    admin.goto(f"{live_server.url}/admin/pgbroker/schedule/{line.id}/change/")
    picture("schedule-dark")

    colours = {
        admin.evaluate(f"getComputedStyle(document.querySelector('table.pgb-ticks {row}')).{what}")
        for row, what in (("tr.pgb-noted td", "backgroundColor"), ("tr.pgb-noted td", "color"))
    }
    assert len(colours) == 2

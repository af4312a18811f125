"""The admin of run groups in a browser, under a policy that allows nothing inline."""

from __future__ import annotations

import pytest

from pgbroker.states import GroupState, Status
from tests.support.groups import after, fail, member, open_group
from tests.support.jobs import claim_one, completed, failed, settle_one, status
from tests.support.links import group, passes, seal
from tests.support.links import run as run_one

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

# Boxes that lie on each other, and texts that stick out of their box, in the picture as it is drawn.
FAULTS = """
() => {
  const faults = [], boxes = [];
  for (const node of document.querySelectorAll('svg.pgb-graph .pgb-node')) {
    const box = node.querySelector('rect').getBBox();
    for (const text of node.querySelectorAll('text')) {
      const said = text.getBBox();
      if (said.x < box.x || said.x + said.width > box.x + box.width || said.y + said.height > box.y + box.height)
        faults.push('text out of its box: ' + text.textContent);
    }
    for (const other of boxes)
      if (box.x < other.x + other.width && other.x < box.x + box.width &&
          box.y < other.y + other.height && other.y < box.y + box.height)
        faults.push('boxes overlap');
    boxes.push(box);
  }
  return faults;
}
"""


def a_nightly_import():
    """Extracts of three countries, each with a load and a check; a report of all; one of them has failed."""
    made = open_group("nightly import", tolerate_percent=5)
    for country in ("ZA", "KE", "BR"):
        member("nightly import", name=f"extract:{country}")
        member("nightly import", name=f"load:{country}", depends_on=[f"extract:{country}"])
        member("nightly import", name=f"check:{country}", depends_on=[f"load:{country}"])
    member(
        "nightly import",
        name="report of all countries, with a long name",
        depends_on=[f"check:{country}" for country in ("ZA", "KE", "BR")],
    )
    seal(made)
    return made


def test_an_operator_reads_the_graph_and_retries_what_failed(admin, live_server, picture, console):
    made = a_nightly_import()
    extracts = [claim_one() for _ in range(3)]
    settle_one(completed(extracts[0]))
    settle_one(failed(extracts[1], permanent=True))
    passes()

    admin.goto(f"{live_server.url}/admin/pgbroker/rungroup/")
    assert admin.locator("#result_list svg.pgb-progress rect.pgb-completed").count() == 1
    assert "5 of 10 over, 4 badly" in admin.inner_text("#result_list")
    picture("groups")
    admin.click("#result_list tbody th a")
    admin.wait_for_selector("svg.pgb-graph")
    assert admin.locator("svg.pgb-graph .pgb-node").count() == 10
    assert admin.evaluate(FAULTS) == []
    colours = {
        state: admin.evaluate(
            f"getComputedStyle(document.querySelector('.pgb-node.pgb-{state} rect')).stroke"
        )
        for state in ("completed", "failed", "running", "cancelled")
    }
    assert len(set(colours.values())) == 4
    assert admin.locator("svg.pgb-graph .pgb-failed .pgb-state").inner_html() == "failed"
    picture("group")
    admin.click("svg.pgb-graph a:has(.pgb-failed)")
    admin.wait_for_selector("text=Why is it where it is?")
    assert "it failed for good" in admin.inner_text(".pgb-why")
    picture("job-of-group")
    admin.go_back()
    admin.click("button:text-is('Retry failed part')")

    admin.wait_for_selector(".messagelist .success")
    assert "1 job of nightly import live again." in admin.inner_text(".messagelist")
    assert status(extracts[1].job_id) == Status.READY
    assert group(made).state == GroupState.SEALED
    assert console.complaints == []


def test_a_graph_of_two_hundred_can_be_read(admin, live_server, picture, console):
    made = open_group("large")
    for place in range(200):
        member("large", name=f"node-{place:03}", depends_on=[f"node-{place // 3:03}"] if place >= 1 else [])

    admin.goto(f"{live_server.url}/admin/pgbroker/rungroup/{made}/change/")

    assert admin.locator("svg.pgb-graph .pgb-node").count() == 200
    assert admin.locator("svg.pgb-graph .pgb-edge").count() == 199
    assert admin.evaluate(FAULTS) == []
    # Its letters are not made smaller than they can be read.
    drawn = admin.locator("svg.pgb-graph").bounding_box()
    assert drawn["width"] / float(admin.get_attribute("svg.pgb-graph", "width")) > 0.8
    picture("group-of-200")
    member("large", name="one-more")
    admin.reload()

    assert admin.locator("svg.pgb-graph").count() == 0
    assert "level 1" in admin.inner_html("svg.pgb-picture")
    assert "2 ready" in admin.inner_html("svg.pgb-picture")
    picture("group-of-201")
    assert console.complaints == []


def test_an_operator_sees_what_a_cancel_takes_along_and_confirms(admin, live_server, picture, console):
    made = a_nightly_import()
    claim_one()
    taken = after({"group": "nightly import"})
    blocked = after({"group": "nightly import"}, on_failure="block")
    kept = after({"group": "nightly import"}, on_failure="ignore")

    admin.goto(f"{live_server.url}/admin/pgbroker/rungroup/{made}/change/")
    admin.click("button:text-is('Cancel…')")
    admin.wait_for_selector("text=What goes along")
    assert "10 jobs, 1 of them running" in admin.inner_text("#content-main")
    for text, job in (
        ("would be cancelled along", taken),
        ("would be blocked", blocked),
        ("no longer wait", kept),
    ):
        admin.locator(f"details:has-text('{text}')").evaluate("each => { each.open = true; }")
        assert str(job) in admin.inner_text(f"details:has-text('{text}')")
    picture("cancel-group")
    assert status(taken) == Status.WAITING
    admin.fill("#id_reason", "wrong file")
    admin.click("button:text-is('Yes, cancel')")

    admin.wait_for_selector(".messagelist .success")
    assert "9 jobs cancelled, 1 job running and asked to stop." in admin.inner_text(".messagelist")
    assert "cancelling" in admin.inner_text("#content-main, h1")
    assert group(made).cancel_requested_at is not None
    assert console.complaints == []


def test_a_job_page_leads_to_what_it_waits_for(admin, live_server, picture, console):
    first = member_of_its_own("first")
    second = after(first, on_failure="block")
    fail(first)

    admin.goto(f"{live_server.url}/admin/pgbroker/job/{second}/change/")
    assert "It is blocked." in admin.inner_text(".pgb-why")
    picture("blocked-job")
    admin.click(".module:has(h2:text-is('Waits for')) a")
    admin.wait_for_selector("h2:text-is('What waits for it')")
    assert str(second) in admin.inner_text(".module:has(h2:text-is('What waits for it'))")
    admin.go_back()
    admin.click("button:text-is('Unblock')")

    admin.wait_for_selector("text=1 job no longer blocked.")
    assert status(second) == Status.READY
    assert console.complaints == []


def member_of_its_own(name: str):
    open_group(name)
    return member(name, name=name)


def test_a_dark_page_keeps_its_colours_apart(admin, live_server, picture):
    made = a_nightly_import()
    run_one(member_of_its_own("unused"))
    admin.emulate_media(color_scheme="dark")

    admin.goto(f"{live_server.url}/admin/pgbroker/rungroup/{made}/change/")
    picture("group-dark")

    fill, text = (
        admin.evaluate(f"getComputedStyle(document.querySelector('.pgb-node {what}')).fill")
        for what in ("rect", ".pgb-name")
    )
    assert fill != text

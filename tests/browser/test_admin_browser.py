"""The admin as a person uses it, in a browser, under a policy that allows nothing inline."""

from __future__ import annotations

from uuid import UUID

import pytest

from pgbroker.states import Status
from tests.support.jobs import claim_one, completed, enqueue_one, failed, row, settle_one, status

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def dead_letter() -> UUID:
    job = enqueue_one(max_attempts=1)
    settle_one(failed(claim_one(), traceback="Traceback (most recent call last)", log_tail="the last line"))
    assert status(job) == Status.DEAD_LETTER
    return job


def test_an_operator_finds_a_dead_letter_and_retries_it(admin, live_server, picture, console):
    job = dead_letter()
    for _ in range(3):
        enqueue_one()
        settle_one(completed(claim_one()))

    admin.goto(f"{live_server.url}/admin/pgbroker/job/")
    picture("list")
    admin.click("#changelist-filter a:text-is('dead letter')")
    admin.wait_for_url("**status=12")
    assert admin.locator("#result_list tbody tr").count() == 1
    admin.click("#result_list tbody th a")
    admin.wait_for_selector("svg.pgb-picture")
    assert admin.locator("svg.pgb-picture rect.pgb-failed").count() == 1
    box = admin.locator("svg.pgb-picture").bounding_box()
    assert box["width"] > 300
    picture("job")
    admin.click("button:text-is('Retry once')")

    admin.wait_for_selector(".messagelist .success")
    assert "1 job ready again." in admin.inner_text(".messagelist")
    assert row(job).status == Status.READY
    assert console.complaints == []


def test_an_operator_cancels_after_a_confirmation(admin, live_server, picture, console):
    kept, cancelled = enqueue_one(), enqueue_one()

    admin.goto(f"{live_server.url}/admin/pgbroker/job/")
    admin.check(f"input[name=_selected_action][value='{cancelled}']")
    admin.select_option("select[name=action]", "cancel_selected")
    admin.click("button[name=index]")
    admin.wait_for_selector("text=1 job will be cancelled")
    picture("cancel")
    assert status(cancelled) == Status.READY
    admin.fill("#id_reason", "wrong month")
    admin.click("button:text-is('Yes, cancel')")

    admin.wait_for_selector(".messagelist .success")
    assert (status(kept), status(cancelled)) == (Status.READY, Status.CANCELLED)
    assert console.complaints == []


def test_an_operator_redrives_all_dead_letters(admin, live_server, picture, console):
    jobs = [dead_letter() for _ in range(3)]

    admin.goto(f"{live_server.url}/admin/pgbroker/job/")
    admin.click("text=Redrive dead letters")
    admin.wait_for_selector("text=3 jobs match.")
    picture("redrive")
    admin.click("button:text-is('Yes, retry them')")

    admin.wait_for_selector("text=3 jobs ready again.")
    assert {status(job) for job in jobs} == {Status.READY}
    assert console.complaints == []


def test_an_operator_pauses_a_queue_and_sees_its_chart(admin, live_server, picture, console):
    for _ in range(5):
        enqueue_one()
        settle_one(completed(claim_one()))

    admin.goto(f"{live_server.url}/admin/pgbroker/queue/")
    picture("queues")
    admin.click("#result_list a:text-is('default')")
    admin.wait_for_selector("svg.pgb-picture")
    assert admin.locator("svg.pgb-picture rect.pgb-count-done").count() >= 1
    admin.fill("#id_reason", "provider is down")
    admin.select_option("#id_duration", "3600")
    admin.click("button:text-is('Pause')")
    admin.wait_for_selector(".pgb-badge.pgb-paused")
    picture("queue")
    assert "provider is down" in admin.inner_text(".pgb-queue")
    admin.click("button:text-is('Resume')")

    admin.wait_for_selector("text=Queue default is resumed.")
    assert console.complaints == []


def test_the_policy_is_in_force_and_the_style_sheet_reaches_the_page(admin, live_server):
    enqueue_one()

    answer = admin.goto(f"{live_server.url}/admin/pgbroker/job/")

    assert answer.headers["content-security-policy"] == "default-src 'self'"
    assert admin.evaluate("getComputedStyle(document.querySelector('.pgb-badge')).borderRadius") == "10px"

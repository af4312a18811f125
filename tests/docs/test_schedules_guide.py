"""The guide about schedules: its code runs as it stands on the page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from docs.generated import DOCS
from pgbroker import registry
from pgbroker.models import Job, RunGroup
from pgbroker.policy.cron import parse
from pgbroker.registry import synchronise
from pgbroker.schedules import operate
from pgbroker.schedules.declare import declarations
from pgbroker.schedules.shown import DRIFT, show_ticks
from pgbroker.schedules.sync import sync
from pgbroker.testing import run_jobs
from tests.docs.walkthrough import blocks

pytestmark = pytest.mark.django_db

PAGE = DOCS / "howto" / "run-jobs-on-a-schedule.md"


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The page's code as one module of an app; its jobs and schedules are forgotten after the test."""
    known = registry._types
    monkeypatch.setattr(known, "_by_function", dict(known._by_function))
    monkeypatch.setattr(known, "_by_key", None)
    monkeypatch.setattr(declarations, "_known", {})
    names: dict[str, Any] = {"__name__": "shop.jobs"}
    for block in blocks(PAGE):
        if block.language == "python":
            exec(compile(block.body, f"{PAGE.name}:{block.line}", "exec"), names)  # noqa: S102 - our own page
    known._by_key = None
    synchronise(using="default")
    return names


def test_what_the_page_declares_is_stored_and_runs(shop: dict[str, Any]) -> None:
    done = sync(using="default")

    assert len(done.created) == 4
    assert done.left == []
    tick = operate.run_now("nightly-report").scheduled_for
    assert [ran.result for ran in run_jobs(reraise=True)] == [f"ZA for {tick}"]


def test_the_workflow_of_the_page_is_a_run_group_whose_last_job_waits(shop: dict[str, Any]) -> None:
    sync(using="default")

    made = operate.run_now("refresh")

    assert RunGroup.objects.get().pk == made.run_group_id
    assert Job.objects.count() == 3
    assert [ran.result for ran in run_jobs(reraise=True)] == [9, 6, None]


def test_the_pause_of_the_page_pauses(shop: dict[str, Any]) -> None:
    sync(using="default")

    shop["provider_went_down"]()

    assert operate.get_schedule("refresh").pause_reason == "the provider is down"


def test_the_ticks_of_the_page_are_those_that_come() -> None:
    (shown,) = [block.body for block in blocks(PAGE) if block.language == "text"]
    ticks = parse("30 2 * * *", "Europe/Berlin").after(datetime(2026, 3, 27, 12, tzinfo=UTC))

    lines = [
        f"{each.local}  {each.utc}  {each.note}".rstrip()
        for each in show_ticks([next(ticks) for _ in range(3)])
    ]

    assert shown.splitlines()[2:] == lines


def test_the_page_tells_every_kind_of_drift() -> None:
    assert {kind for kind in DRIFT if f"| `{kind}` |" in PAGE.read_text()} == set(DRIFT)

"""The timetable of the airports application: what the demo's schedules create, through real workers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest

from pgbroker import registry
from pgbroker.models import Job, RunGroup
from pgbroker.registry import synchronise
from pgbroker.schedules import operate
from pgbroker.schedules.declare import declarations
from pgbroker.schedules.sync import drift, sync
from pgbroker.schedules.tick import tick
from pgbroker.states import GroupState
from pgbroker.testing import run_jobs
from testproject.airports import dataset
from testproject.airports.models import Report
from testproject.demo import timetable as told
from tests.support.schedules import minute, set_row

pytestmark = pytest.mark.django_db

MODULE = "testproject.timetable.jobs"


@pytest.fixture
def timetable(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The timetable as the demo has it installed; other tests know nothing of its jobs and schedules."""
    known = registry._types
    monkeypatch.setattr(known, "_by_function", dict(known._by_function))
    monkeypatch.setattr(known, "_by_key", None)
    monkeypatch.setattr(declarations, "_known", {})
    sys.modules.pop(MODULE, None)
    module = importlib.import_module(MODULE)
    known._by_key = None
    synchronise(using="default")
    sync(using="default")
    yield module
    sys.modules.pop(MODULE, None)
    known._by_key = None


def test_the_timetable_is_stored_as_the_code_says(timetable: Any) -> None:
    assert [each.name for each in operate.list_schedules()] == [
        "every-minute", "island-morning", "nightly-refresh",
    ]  # fmt: skip
    assert drift(using="default") == []
    assert len(dataset.rows()) <= timetable.AIRPORTS


def test_the_island_has_the_zone_that_the_data_says_and_its_half_hour_is_seen(timetable: Any) -> None:
    (island,) = [row for row in dataset.rows() if row.icao == timetable.ISLAND]

    ticks = operate.next_ticks("island-morning", 2, after=datetime(2031, 10, 3, 20, tzinfo=UTC))

    assert island.time_zone == timetable.ITS_ZONE
    assert [f"{tick.wall:%d %H:%M}" for tick in ticks] == ["05 02:30", "06 02:15"]
    assert f"{ticks[0].skipped:%H:%M}" == "02:15"


def test_the_night_is_one_run_group_whose_reports_wait_for_all_imports(
    timetable: Any, monkeypatch: Any
) -> None:
    made = operate.run_now("nightly-refresh")
    day = made.scheduled_for.date()

    ran = run_jobs(reraise=True)

    assert RunGroup.objects.get().state == GroupState.COMPLETED
    kinds = [each.job_type for each in ran]
    assert kinds.index("timetable.nightly_report") == len(list(dataset.slices(timetable.AIRPORTS)))
    assert kinds[-1] == "timetable.nightly_digest"
    reports = Report.objects.filter(batch=f"nightly-{day}")
    assert {each.country for each in reports} == {"", *timetable.COUNTRIES}
    assert {each.as_of for each in reports} == {day}


def test_each_minute_counts_the_airports_whose_clocks_show_noon(timetable: Any) -> None:
    operate.run_now("every-minute")

    (ran,) = run_jobs(reraise=True)

    assert ran.result == 0  # no airport is stored yet
    assert Job.objects.count() == 1


def test_the_demo_tells_what_comes_and_what_fired(timetable: Any) -> None:
    fired = told.Fired()
    line = operate.get_schedule("every-minute")
    due = minute()
    # Half a minute later it would be a tick that was missed.
    set_row(line.id, next_run_at=due, watermark=due - timedelta(seconds=1), misfire="run_once")

    lines = list(told.coming())
    tick()
    sentences = fired.look()

    assert [each.split()[0] for each in lines] == ["every-minute", "island-morning", "nightly-refresh"]
    assert "Australia/Lord_Howe" in lines[1]
    assert len(sentences) == 1
    assert sentences[0].startswith(f"every-minute fired for {due.astimezone(UTC):%H:%M} UTC: created")
    assert fired.look() == []


def test_the_demo_lets_the_night_run_at_once(timetable: Any) -> None:
    sentence = told.refresh_now()

    assert sentence == f"nightly-refresh runs now, as run group {RunGroup.objects.get().pk}"


def test_the_demo_does_without_a_timetable_that_no_scheduler_has_stored() -> None:
    assert told.refresh_now() is None
    assert list(told.coming()) == []

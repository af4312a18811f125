"""What Prometheus is told of schedules, and probes of a scheduler."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

from pgbroker import schedule, telemetry
from pgbroker.lifecycle.dispatch import dispatch
from pgbroker.lifecycle.take_due import take_due
from pgbroker.metrics import catalogue
from pgbroker.metrics.depths import Depths
from pgbroker.metrics.schedules import ScheduleCounts
from pgbroker.policy.cron import zones
from pgbroker.registry import synchronise
from pgbroker.runtime.health import SchedulerHealth
from pgbroker.runtime.scheduler import Scheduler, SchedulerOptions
from pgbroker.schedules.decide import decide
from pgbroker.schedules.declare import declarations
from pgbroker.schedules.sync import sync
from pgbroker.schedules.tick import tick
from pgbroker.tenancy import tenant_context
from pgbroker.worker import answering_scheduler
from tests.support.handlers import nothing
from tests.support.schedules import EVERY_MINUTE, entry, make, now, set_row, stopped
from tests.support.scraping import get

pytestmark = pytest.mark.django_db


@pytest.fixture
def counts():
    counts = ScheduleCounts()
    unsubscribe = telemetry.subscribe(counts.listen, wants=counts.wants)
    yield counts
    unsubscribe()


def read(counts: ScheduleCounts) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and its labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in counts.collect()
        for sample in family.samples
    }


def test_what_becomes_of_ticks_is_counted_by_state(counts):
    rules = zones.load("UTC").fingerprint
    for name, template in (("good", [entry()]), ("bad", [entry(queue="nowhere")])):
        on_time = make(name, due=False, expression="0 0 29 2 *", zone_rules=rules, jobs=template)
        set_row(on_time, watermark=now() - timedelta(seconds=9), next_run_at=now() - timedelta(seconds=1))
    late = make("late", expression=EVERY_MINUTE, overlap="skip", misfire="catch_up", misfire_count=5)
    stopped(late, hours=1)
    make("unreadable", expression="x")

    tick()

    found = read(counts)
    occurrences = "pgbroker_schedule_occurrences_total"
    assert found[occurrences, "created"] == 2
    assert found[occurrences, "failed"] == 1
    assert found[occurrences, "skipped"] == 4
    assert found["pgbroker_schedule_misfires_total", "missed"] >= 50
    assert found["pgbroker_schedule_misfires_total", "late"] == 1
    assert found["pgbroker_schedule_lateness_seconds_count",] == 1
    assert found["pgbroker_schedules_disabled_total",] == 1
    assert found["pgbroker_schedule_creation_seconds_count",] == 1
    assert found["pgbroker_scheduler_leads",] == 0


def test_what_was_prevented_is_counted_and_what_was_stale_is_not(counts):
    schedule = make()
    (due,) = take_due(limit=10)
    old = decide(due, limit=1)
    tick()
    set_row(schedule, watermark=due.watermark, next_run_at=due.next_run_at)
    tick()
    dispatch([old])

    found = read(counts)
    assert found["pgbroker_schedule_occurrences_total", "duplicate"] == 1
    assert found["pgbroker_schedule_occurrences_total", "created"] == 1


def test_only_jobs_of_schedules_count_as_failures_of_schedules(counts):
    for options in ({"scheduled_for": "2026-01-01T00:00:00+00:00"}, {"timeout": 3}, None):
        ended = SimpleNamespace(lease=SimpleNamespace(options=options))
        telemetry.emit("job.gave_up", queue="q", job_type="t", ended=ended)

    assert read(counts)["pgbroker_schedule_jobs_failed_total", "q", "t"] == 1


def test_every_family_is_described_and_collected(counts):
    names = [family.name for family in catalogue.OF_SCHEDULERS]

    assert [family.name for family in counts.describe()] == names
    assert [family.name for family in counts.collect()] == names


@pytest.mark.django_db(transaction=True)
def test_what_stands_still_and_what_is_overdue_is_told_of_all_tenants():
    assert standing() == {"disabled": 0, "paused": 0, "overdue": 0}

    with tenant_context("acme"):
        make("off", due=False, enabled=False, next_run_at=None)
        # Whatever else it is, it is disabled.
        make("both", due=False, enabled=False, next_run_at=None, paused_at=now())
    make("paused", due=False, next_run_at=None, paused_at=now())
    make("to come", due=False)
    assert standing() == {"disabled": 2, "paused": 1, "overdue": 0}

    waits = make("due")
    set_row(waits, watermark=now() - timedelta(minutes=9), next_run_at=now() - timedelta(minutes=5))
    set_row(make("less"), watermark=now() - timedelta(minutes=9), next_run_at=now() - timedelta(minutes=2))
    found = standing()
    assert 300 <= found.pop("overdue") < 330


def standing() -> dict[str, float]:
    """Return what a fresh look tells of schedules."""
    found = {
        (sample.name, sample.labels.get("state")): sample.value
        for family in Depths(lambda: ["default"]).collect()
        for sample in family.samples
        if sample.labels["database"] == "default"
    }
    return {
        "disabled": found["pgbroker_schedules", "disabled"],
        "paused": found["pgbroker_schedules", "paused"],
        "overdue": found["pgbroker_schedule_overdue_seconds", None],
    }


def test_a_schedule_that_the_code_has_no_more_is_counted_when_it_is_disabled(counts, monkeypatch):
    monkeypatch.setattr(declarations, "_known", {})
    synchronise(using="default")
    schedule("nightly", nothing, cron="0 2 * * *", timezone="UTC")
    sync(using="default")
    declarations.forget("nightly")

    sync(using="default")

    assert read(counts)["pgbroker_schedules_disabled_total",] == 1


def test_a_scheduler_answers_prometheus_and_probes():
    scheduler = Scheduler(SchedulerOptions(metrics_port=0))
    health = SchedulerHealth(scheduler, facts={"database": "d"})

    with answering_scheduler(scheduler, facts={"database": "d"}) as port:
        text = get(f"{port.url}/metrics").text

    assert "pgbroker_scheduler_leads 0.0" in text
    assert health.live().holds
    assert not health.ready().holds
    assert "leads: no" in health.report(health.live())

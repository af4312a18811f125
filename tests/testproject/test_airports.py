"""The airports application: its jobs through a real worker, against real rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from django.db import connections
from django.db.backends.signals import connection_created
from django.utils import timezone

from pgbroker import cancel, get_job, tenant_context
from pgbroker.runtime.supervisor import Worker, WorkerOptions
from pgbroker.states import AttemptState, Status
from testproject.airports import dataset, jobs
from testproject.airports.geodesy import kilometres
from testproject.airports.models import Airport, Cabin, Check, Country, Neighbour, Quote, Report, Unit
from tests.support.jobs import attempt_states
from tests.support.sessions import PATIENCE_SECONDS, InThread

pytestmark = pytest.mark.django_db(transaction=True)

TODAY = date(2026, 11, 29)
LIMITS = {"lowest": Decimal(-1266), "highest": Decimal(14472)}


@pytest.fixture(autouse=True)
def quick_and_tidy_workers(settings) -> Iterator[None]:
    """
    Let bursts end at once, which wait for no notification, and close what their handlers connected.

    A worker's threads end with its process, so nothing closes their connections when it is only an object.
    """
    settings.PGBROKER = {"NOTIFY": False}
    opened = []

    def remember(connection, **_) -> None:
        opened.append(connection.connection)

    connection_created.connect(remember)
    mine = connections["default"].connection
    yield
    connection_created.disconnect(remember)
    for raw in opened:
        if raw is not mine and raw is not connections["default"].connection:
            raw.close()


def store(*icaos: str) -> None:
    """Store some airports of the data without a job."""
    chosen = [row for row in dataset.rows() if row.icao in icaos]
    for row in chosen:
        Country.objects.get_or_create(code=row.country)
        fields = row._asdict()
        Airport.objects.create(country_id=fields.pop("country"), **fields)


def work_off() -> None:
    """Run a worker until nothing is ready or due."""
    assert Worker(WorkerOptions(burst=True, concurrency=4, poll_interval=0.5)).run() == 0


def job_of(result):
    return get_job(UUID(result.id))


def soon(seconds: float) -> datetime:
    return timezone.now() + timedelta(seconds=seconds)


def work_off_all(*results) -> None:
    """Run workers until all those jobs have ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(job_of(result).status < Status.COMPLETED for result in results):
        assert time.monotonic() < deadline, [job_of(result) for result in results]
        work_off()


def wait_until_running(result) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while job_of(result).status != Status.RUNNING:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_import_stores_its_slice_once_however_often_it_is_asked_for():
    calls = [
        jobs.import_airports.options(idempotency_key=f"slice-{start}").enqueue(dataset.edition(), start, stop)
        for start, stop in (*dataset.slices(300, size=100), (0, 100))
    ]

    work_off()

    assert calls[3].id == calls[0].id
    assert [job_of(call).result for call in calls[:3]] == [100, 100, 100]
    assert list(Airport.objects.values_list("icao", flat=True)) == [row.icao for row in dataset.rows()[:300]]


def test_an_import_that_runs_again_corrects_what_changed_meanwhile():
    jobs.import_airports.func(dataset.edition(), 0, 10)
    Airport.objects.filter(icao=dataset.rows()[3].icao).update(name="Nowhere")

    jobs.import_airports.enqueue(dataset.edition(), 0, 10)
    work_off()

    assert Airport.objects.get(icao=dataset.rows()[3].icao).name == dataset.rows()[3].name


def test_an_import_of_another_edition_of_the_data_is_given_up():
    refused = jobs.import_airports.enqueue("1999", 0, 10)

    work_off()

    assert job_of(refused).status == Status.FAILED
    assert Airport.objects.count() == 0


def test_the_nearest_airports_of_the_same_country_are_stored_nearest_first():
    store("FACT", "FALA", "FAGG", "FAEL", "FYWH")

    found = jobs.nearest_neighbours.enqueue("FACT", count=2)
    again = jobs.nearest_neighbours.enqueue("FACT", count=2)
    work_off()

    cape_town, george = Airport.objects.get(icao="FACT"), Airport.objects.get(icao="FAGG")
    measured = kilometres(cape_town.latitude, cape_town.longitude, george.latitude, george.longitude)
    stored = list(Neighbour.objects.filter(airport="FACT").values_list("rank", "other", "kilometres"))
    assert job_of(found).result == job_of(again).result == ["FAGG", "FAEL"]
    assert [(rank, other) for rank, other, _ in stored] == [(1, "FAGG"), (2, "FAEL")]
    assert stored[0][2] == pytest.approx(measured)
    assert 340 < measured < 360


def test_neighbours_are_the_same_from_a_narrow_look_and_from_a_wide_one():
    jobs.import_airports.func(dataset.edition(), 0, 1500)

    for icao in Airport.objects.filter(country="CA").values_list("icao", flat=True)[:300:20]:
        found = jobs.nearest_neighbours.func(icao, count=3)

        here = Airport.objects.get(icao=icao)
        others = Airport.objects.filter(country="CA").exclude(icao=icao)
        away = {
            other.icao: kilometres(here.latitude, here.longitude, other.latitude, other.longitude)
            for other in others
        }
        assert found == sorted(away, key=lambda other: (away[other], other))[:3]


def test_a_quote_has_the_price_of_its_typed_arguments_and_the_tenant_that_asked():
    store("FACT", "FAGG")
    with tenant_context("acme"):
        asked = jobs.charter_quote.enqueue(
            jobs.Leg("FACT", "FAGG"), TODAY, Cabin.BUSINESS, price_per_kilometre=Decimal("2.50")
        )

    work_off()

    quote = Quote.objects.get(job_id=asked.id)
    with tenant_context("acme"):
        assert Decimal(job_of(asked).result) == quote.price
    assert (quote.tenant_id, quote.departure, quote.cabin) == ("acme", TODAY, Cabin.BUSINESS)
    assert Decimal(1300) < quote.price < Decimal(1500)


def test_a_report_is_stored_for_its_tenant_alone_and_is_the_result_of_its_job():
    store("FACT", "FAGG")
    with tenant_context("acme"):
        made = jobs.country_report.enqueue("ZA", "batch", TODAY, Unit.METRES)

    work_off()

    with tenant_context("acme"):
        result = job_of(made).result
    report = Report.objects.get()
    assert (report.tenant_id, report.body["airports"]) == ("acme", "2")
    assert (result["airports"], result["unit"], result["lowest"]) == (2, "m", "46.0")


def test_a_digest_sleeps_until_the_last_report_of_its_batch_is_there():
    store("FACT", "LYTV")
    digest = jobs.batch_digest.enqueue("batch", ["ME", "ZA"], TODAY)
    jobs.country_report.enqueue("ZA", "batch", TODAY, Unit.FEET)
    late = jobs.country_report.using(run_after=soon(0.8)).enqueue("ME", "batch", TODAY, Unit.FEET)

    work_off_all(digest, late)

    states = attempt_states(UUID(digest.id))
    assert set(states[:-1]) == {AttemptState.SNOOZED}
    assert states[-1] == AttemptState.COMPLETED
    assert job_of(digest).result == {"countries": 2, "airports": 2}


@pytest.mark.parametrize(
    ("icao", "verdict"),
    [("FACT", ""), ("SPNH", "14965.0 ft is outside"), ("FDUB", "0.0 ft, in SZ, which has no coast")],
)
def test_an_elevation_that_cannot_be_is_noted_and_its_job_fails_for_good(icao, verdict):
    store(icao)
    audit = jobs.audit_elevation.enqueue(icao, **LIMITS)

    work_off()

    check = Check.objects.get(airport=icao, kind=Check.Kind.ELEVATION)
    assert check.suspect == bool(verdict)
    assert check.note.startswith(verdict)
    assert job_of(audit).status == (Status.FAILED if verdict else Status.COMPLETED)
    assert job_of(audit).attempt_count == 1


def test_an_airport_that_is_in_no_data_is_not_waited_for():
    lost = [
        jobs.nearest_neighbours.enqueue("XXXX"),
        jobs.geocode_check.enqueue("XXXX", TODAY),
        jobs.audit_elevation.enqueue("XXXX", **LIMITS),
    ]

    work_off()

    assert {job_of(each).status for each in lost} == {Status.FAILED}
    assert {job_of(each).error for each in lost} == {"there is no airport XXXX"}


def test_the_clock_of_an_airport_is_checked_in_async_code_and_replaces_the_last_check():
    store("FACT", "AYAQ")
    Check.objects.create(airport_id="FACT", kind=Check.Kind.COORDINATES, suspect=True, note="old")

    checked = jobs.geocode_check.enqueue("FACT", TODAY)
    jobs.geocode_check.enqueue("AYAQ", TODAY)
    work_off()

    assert job_of(checked).result == pytest.approx(0.76)
    assert list(Check.objects.values_list("airport", "suspect", "note")) == [
        ("AYAQ", False, ""),
        ("FACT", False, ""),
    ]


def test_a_lookup_recovers_when_the_registry_does():
    store("FACT")
    lookup = jobs.flaky_lookup.enqueue("FACT", outages=2)

    work_off_all(lookup)

    assert attempt_states(UUID(lookup.id)) == [
        AttemptState.FAILED,
        AttemptState.FAILED,
        AttemptState.COMPLETED,
    ]
    assert "503 Service Unavailable" in (job_of(lookup).error or "")
    assert Check.objects.filter(airport="FACT", kind=Check.Kind.REGISTRY, suspect=False).exists()


def test_what_fails_each_time_becomes_a_dead_letter():
    hopeless = jobs.notify_retired_registry.enqueue("FACT")

    work_off_all(hopeless)

    assert job_of(hopeless).status == Status.DEAD_LETTER
    assert attempt_states(UUID(hopeless.id)) == [AttemptState.FAILED] * 3


def test_a_slow_summary_counts_by_time_zone():
    store("FACT", "FAGG", "LYTV")
    summary = jobs.slow_summary.enqueue("ZA", seconds=0.1)

    work_off()

    assert job_of(summary).result == {"Africa/Johannesburg": 2}


def test_a_slow_summary_ends_soon_after_it_is_cancelled():
    store("FACT")
    summary = jobs.slow_summary.enqueue("ZA", seconds=600)
    worker = Worker(WorkerOptions(concurrency=1, lease_seconds=3, max_jobs=1))
    running = InThread(worker.run)
    running.start()
    try:
        wait_until_running(summary)
        cancel(summary, reason="not needed any more")
        assert running.result() == 0
    finally:
        worker.stop()

    assert job_of(summary).status == Status.CANCELLED


def test_jobs_that_do_nothing_run_in_both_executors():
    results = [jobs.nothing_async.enqueue(1), jobs.nothing_sync.enqueue(2)]

    work_off()

    assert [job_of(each).status for each in results] == [Status.COMPLETED] * 2

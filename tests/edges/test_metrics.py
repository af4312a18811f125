"""What Prometheus is told: batches counted once, depths asked for seldom, labels bounded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import connection, connections
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from pgbroker import db, enqueue_many, job, reports, telemetry
from pgbroker.metrics import catalogue
from pgbroker.metrics.counts import Counts
from pgbroker.metrics.depths import Depths
from pgbroker.metrics.enqueued import count_enqueued, wants_enqueued
from pgbroker.metrics.histogram import Histogram
from pgbroker.metrics.pairs import Pairs
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.groups import after
from tests.support.jobs import age, claim_one, enqueue_one, failed, settle_one
from tests.support.scraping import samples, total, value
from tests.support.sessions import second_session

ROOT = Path(__file__).parents[2]


@job(name="tests.metrics.note")
def note(number: int) -> None:
    """Do nothing."""


def read(collector) -> dict:
    """Return what a collector tells, through the text that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(collector)
    return samples(generate_latest(registry).decode())


# ------------------------------------------------------------------ histograms and labels


@given(st.lists(st.lists(st.floats(-10, 1e5) | st.sampled_from(catalogue.BUCKETS), max_size=30), max_size=5))
def test_a_histogram_counts_what_prometheus_would(batches):
    histogram = Histogram()
    for batch in batches:
        histogram.observe(list(batch))

    every = [each for batch in batches for each in batch]
    expected = [sum(each <= bound for each in every) for bound in (*catalogue.BUCKETS, float("inf"))]
    assert [count for _, count in histogram.cumulative()] == expected
    assert histogram.total == pytest.approx(sum(every))


def test_the_number_of_labels_is_bounded_and_nothing_goes_uncounted():
    pairs = Pairs()
    met = Counter(pairs.of(f"queue-{number}", "type") for number in range(2 * catalogue.MOST_PAIRS))

    assert len(met) == catalogue.MOST_PAIRS + 1
    assert met[catalogue.OTHER, catalogue.OTHER] == catalogue.MOST_PAIRS
    assert pairs.of("queue-0", "type") == ("queue-0", "type")
    assert pairs.of(None, None) == (catalogue.OTHER, catalogue.OTHER)


def test_every_family_of_the_catalogue_is_described_by_the_collector_that_tells_it():
    described = {each.name for each in (*Counts().describe(), *Depths(lambda: ()).describe())}

    assert described | {catalogue.ENQUEUED.name} == {
        each.name for each in (*catalogue.OF_WORKERS, *catalogue.OF_EVERY_PROCESS)
    }


def test_a_reaped_attempt_counts_as_retried_or_ended_by_what_the_row_decided():
    counts = Counts()
    for status in ("scheduled", "dead_letter"):
        counts.listen("attempt.reaped", {"queue": "mail", "job_type": "send", "status": status})
    counts.listen("job.expired", {"queue": "mail", "job_type": None})

    told = read(counts)
    assert value(told, "pgbroker_attempts_reaped_total", queue="mail", job_type="send") == 2
    assert value(told, "pgbroker_jobs_retried_total", queue="mail", job_type="send") == 1
    ends = ("pgbroker_jobs_ended_total", "mail")
    assert value(told, ends[0], queue=ends[1], job_type="send", status="dead_letter") == 1
    assert value(told, ends[0], queue=ends[1], job_type="unknown", status="failed") == 1


# ------------------------------------------------------------------ depths


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement about depths that was sent."""
    sent: list[str] = []
    monkeypatch.setattr(
        db,
        "fault",
        lambda moment, name: sent.append(name) if (moment, name) == ("before", "queue_depths") else None,
    )
    return sent


@pytest.mark.django_db(transaction=True)
def test_depth_and_age_are_what_the_database_has():
    enqueue_one(max_attempts=1)
    settle_one(failed(claim_one()))
    age(enqueue_one(), hours=1)
    with tenant_context("acme"):
        enqueue_one()
    enqueue_one(available_at="2100-01-01T00:00:00Z")
    after(enqueue_one(queue="later"))

    told = read(Depths(lambda: ["default"]))

    depth = {
        status: value(told, "pgbroker_queue_depth", database="default", queue="default", status=status)
        for status in reports.COUNTED
    }
    assert depth == {
        "ready": 2, "scheduled": 1, "waiting": 1, "blocked": 0, "running": 0, "failed": 0, "dead_letter": 1
    }  # fmt: skip
    oldest = value(told, "pgbroker_queue_oldest_ready_seconds", database="default", queue="default")
    assert 3600 <= oldest < 3700
    assert value(told, "pgbroker_database_up", database="default") == 1


@pytest.mark.django_db(transaction=True)
def test_however_many_scrape_the_database_is_asked_once_in_a_period(asked, settings):
    settings.PGBROKER = {"SAMPLE_SECONDS": 1}
    enqueue_one()
    depths = Depths(lambda: ["default"])

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda _: read(depths), range(40)))
    once = list(asked)
    threading.Event().wait(1.05)
    read(depths)

    assert once == ["queue_depths"]
    assert {
        value(each, "pgbroker_queue_depth", database="default", queue="default", status="ready")
        for each in told
    } == {1}
    assert len(asked) == 2


@pytest.mark.django_db(transaction=True)
def test_a_question_that_waits_delays_a_scrape_by_a_moment_and_is_not_asked_again(asked, settings):
    settings.PGBROKER = {"SAMPLE_SECONDS": 1}
    depths = Depths(lambda: ["default"])

    with second_session() as session, session.transaction():
        session.execute("lock table pgbroker.queue in access exclusive mode")
        told = [read(depths) for _ in range(2)]

    assert [value(each, "pgbroker_database_up", database="default") for each in told] == [0, 0]
    assert not any(total(each, "pgbroker_queue_depth") for each in told)
    assert asked == ["queue_depths"]


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_away_is_told_and_not_shown_with_old_numbers(settings):
    settings.PGBROKER = {"SAMPLE_SECONDS": 1}
    enqueue_one()
    depths = Depths(lambda: ["default"])
    before = read(depths)
    wanted = connections["default"].settings_dict
    host, wanted["HOST"] = wanted["HOST"], "/nowhere"
    try:
        threading.Event().wait(1.05)
        after = read(depths)
    finally:
        wanted["HOST"] = host

    assert total(before, "pgbroker_queue_depth", status="ready") == 1
    assert value(after, "pgbroker_database_up", database="default") == 0
    assert not any(name == "pgbroker_queue_depth" for name, _ in after)


# ------------------------------------------------------------------ enqueued


@pytest.fixture
def enqueued():
    """Return how many jobs of the tests' type were counted since."""
    unsubscribe = telemetry.subscribe(count_enqueued, wants=wants_enqueued)

    def counted() -> float:
        page = generate_latest().decode()
        return total(samples(page), "pgbroker_jobs_enqueued_total", job_type="tests.metrics.note")

    before = counted()
    yield lambda: counted() - before
    unsubscribe()


@pytest.mark.django_db(transaction=True)
def test_b049_twenty_threads_that_enqueue_one_key_count_one_job(enqueued):
    def call(_: int) -> str:
        try:
            return note.options(idempotency_key="one").enqueue(1).id
        finally:
            connection.close()

    with ThreadPoolExecutor(20) as pool:
        ids = set(pool.map(call, range(20)))

    assert len(ids) == 1
    assert enqueued() == 1


@pytest.mark.django_db
def test_a_bulk_call_counts_what_it_made(enqueued):
    keyed = note.options(idempotency_key="same")
    enqueue_many([note.bind(1), note.bind(2), keyed.bind(3), keyed.bind(3), note.bind("no number")])

    assert enqueued() == 3


# ------------------------------------------------------------------ the project's own page


@pytest.mark.django_db(transaction=True)
def test_the_projects_own_page_shows_depths_and_enqueued_jobs(client):
    before = samples(client.get("/metrics").content.decode())
    note.enqueue(1)
    page = client.get("/metrics").content.decode()

    assert value(samples(page), "pgbroker_database_up", database="default") == 1
    assert "pgbroker_queue_oldest_ready_seconds{" in page
    counted = [total(each, "pgbroker_jobs_enqueued_total") for each in (before, samples(page))]
    assert counted[1] == counted[0] + 1
    # Django's own numbers, from django-prometheus, are on the same page.
    assert "django_http_requests_before_middlewares_total" in page


FORKING = """
import os, sys, django
django.setup()
from django.db import connections
from pgbroker import telemetry
from tests.edges.test_metrics import note
for number in (1, 2):
    connections.close_all()
    pid = os.fork()
    if pid == 0:
        for _ in range(number):
            note.enqueue(1)
        os._exit(0)
    os.waitpid(pid, 0)
from django.test import RequestFactory
from django_prometheus.exports import ExportToDjangoView
sys.stdout.write(ExportToDjangoView(RequestFactory().get("/metrics")).content.decode())
"""


def in_a_fresh_process(code: str, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "testproject.settings",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.django_db(transaction=True)
def test_enqueued_jobs_add_up_over_the_processes_of_a_web_server(tmp_path):
    parameters = connections["default"].get_connection_params()
    names = ("host", "port", "dbname", "user", "password")
    from psycopg.conninfo import make_conninfo

    url = make_conninfo(**{name: parameters[name] for name in names if parameters.get(name)})

    page = in_a_fresh_process(FORKING, DATABASE_URL=url, PROMETHEUS_MULTIPROC_DIR=str(tmp_path))

    counted = total(samples(page), "pgbroker_jobs_enqueued_total", job_type="tests.metrics.note")
    assert counted == 3
    with scope_all(), connection.cursor() as cursor:
        cursor.execute("select count(*) from pgbroker.job")
        assert cursor.fetchone() == (3,)


WITHOUT = """
import json, sys
from django.conf import settings
from testproject import settings as project
settings.configure(**{
    **{name: value for name, value in vars(project).items() if name.isupper()},
    "INSTALLED_APPS": [each for each in project.INSTALLED_APPS if each != "django_prometheus"],
    "MIDDLEWARE": [each for each in project.MIDDLEWARE if "prometheus" not in each],
    "ROOT_URLCONF": "django.contrib.auth.urls",
})
import django
django.setup()
from django.core.management import call_command, load_command_class
load_command_class("pgbroker", "broker_worker")
json.dump(sorted(each for each in sys.modules if "prometheus" in each or each == "pgbroker.metrics"), sys.stdout)
"""


def test_a_project_without_django_prometheus_loads_nothing_of_it():
    assert json.loads(in_a_fresh_process(WITHOUT)) == []

"""Log lines: one an attempt, at the level at which somebody should look."""

from __future__ import annotations

import logging

import pytest

from pgbroker import Discard, Snooze, job, logs, telemetry
from pgbroker.runtime.supervisor import Worker, WorkerOptions

pytestmark = pytest.mark.django_db(transaction=True)


@job(name="tests.logs.fine", queue_name="logs")
def fine() -> None:
    """Do nothing."""


@job(name="tests.logs.fails", queue_name="logs", max_attempts=2, backoff=0)
def fails() -> None:
    raise ValueError("no luck\nat all")


@job(name="tests.logs.discards", queue_name="logs")
async def discards() -> None:
    raise Discard("bad data")


@job(name="tests.logs.sleeps", queue_name="logs")
def sleeps() -> None:
    raise Snooze(3600)


def run() -> None:
    unsubscribe = telemetry.subscribe(logs.write, wants=logs.wants)
    try:
        for _ in range(2):
            Worker(WorkerOptions(queues=("logs",), concurrency=2, burst=True, poll_interval=0.1)).run()
    finally:
        unsubscribe()


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    told = [record for record in caplog.records if getattr(record, "job_type", None)]
    return sorted({(record.event, record.job_type, record.levelname) for record in told})


def test_each_outcome_has_its_level_and_a_dead_letter_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    for task in (fine, fails, discards, sleeps):
        task.enqueue()
    caplog.set_level(logging.INFO, logger="pgbroker")

    run()

    assert lines(caplog) == [
        ("attempt.failed", "tests.logs.fails", "WARNING"),
        ("attempt.settled", "tests.logs.fine", "INFO"),
        ("attempt.settled", "tests.logs.sleeps", "INFO"),
        ("job.discarded", "tests.logs.discards", "WARNING"),
        ("job.gave_up", "tests.logs.fails", "ERROR"),
    ]
    (dead,) = [record for record in caplog.records if getattr(record, "event", "") == "job.gave_up"]
    assert dead.exc_info is not None
    assert dead.exc_info[0] is ValueError
    assert "no luck at all" in dead.getMessage()
    assert dead.error_code == "builtins.ValueError"


def test_a_measured_time_is_short_in_the_line_and_whole_in_the_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="pgbroker")

    logs.write("attempt.settled", {"duration_seconds": 0.0017221489979419857, "status": "completed"})
    logs.write("attempt.settled", {"duration_seconds": 30.0})

    (measured, whole) = caplog.records
    assert "duration_seconds=0.001722 status=completed" in measured.getMessage()
    assert measured.duration_seconds == 0.0017221489979419857
    assert whole.getMessage().endswith("duration_seconds=30")


def test_at_the_default_level_only_failures_are_told(caplog: pytest.LogCaptureFixture) -> None:
    for task in (fine, fails):
        task.enqueue()
    caplog.set_level(logging.WARNING, logger="pgbroker")

    run()

    assert {event for event, _, _ in lines(caplog)} == {"attempt.failed", "job.gave_up"}

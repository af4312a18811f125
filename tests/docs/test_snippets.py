"""Code of the guides that does more than compile: it runs as it stands on the page."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from docs.generated import DOCS
from pgbroker import hooks, job, telemetry
from pgbroker.compat import InvalidTask
from pgbroker.errors import InvalidOption
from pgbroker.testing import run_jobs
from testproject.airports.jobs import notify_retired_registry
from tests.docs.walkthrough import blocks

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


def test_the_lines_of_an_attempt_are_those_of_the_code() -> None:
    page = (DOCS / "howto" / "read-the-logs.md").read_text()
    told = set(re.findall(r"^\| `([^`]+)` \| `(info|warning|error)` \|", page, re.M))
    events = ("attempt.settled", "attempt.failed", "job.discarded", "job.gave_up")

    known = {(telemetry.EVENTS[event][1], telemetry.EVENTS[event][0]) for event in events}

    assert {(says, logging.getLevelNamesMapping()[level.upper()]) for says, level in told} == known


def takes_a_path(wrong: Path) -> None: ...


def takes_nothing() -> None: ...


def test_what_cannot_be_declared_is_refused_with_the_error_of_the_decorator() -> None:
    with pytest.raises(InvalidOption, match="parameter wrong of takes_a_path"):
        job(takes_a_path)
    with override_settings(TASKS={"default": {"BACKEND": "pgbroker.backend.PgBrokerBackend"}}):
        task(takes_a_path)  # as without a hint
        with pytest.raises(InvalidTask):
            task(takes_context=True)(takes_nothing)


@pytest.mark.django_db
def test_the_guides_hook_tells_how_long_a_handler_ran(caplog: pytest.LogCaptureFixture) -> None:
    page = DOCS / "howto" / "run-code-around-jobs.md"
    (body,) = (block.body for block in blocks(page) if "def timed(" in block.body)
    names: dict[str, Any] = {}
    exec(compile(body, page.name, "exec"), names)  # noqa: S102 - our own page
    try:
        with caplog.at_level(logging.INFO, "shop.jobs"):
            notify_retired_registry.enqueue("EDDB")
            run_jobs()
    finally:
        hooks.remove(names["timed"])

    (line,) = [record.getMessage() for record in caplog.records if record.name == "shop.jobs"]
    assert re.fullmatch(r"airports\.notify_retired_registry [0-9a-f-]{36} ran \d+\.\d{3} s", line)

"""Code of the guides that does more than compile: it runs as it stands on the page."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from docs.generated import DOCS
from pgbroker import job, telemetry
from pgbroker.compat import InvalidTask
from pgbroker.errors import InvalidOption
from pgbroker.states import AttemptState, Status
from testproject.airports import jobs
from tests.docs.walkthrough import blocks

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


def defined(page: Path, name: str) -> Any:
    """Run the one block of a page that defines *name*, and return it."""
    (body,) = (block.body for block in blocks(page) if f"def {name}(" in block.body)
    names: dict[str, Any] = {}
    exec(compile(body, page.name, "exec"), names)  # noqa: S102 - our own page
    return names[name]


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
def test_a_job_is_run_to_its_end_by_the_id_of_its_result() -> None:
    run_to_the_end = defined(DOCS / "howto" / "test-your-jobs.md", "run_to_the_end")
    result = jobs.notify_retired_registry.enqueue("EDDB")

    last = run_to_the_end(result.id)

    assert (last.state, last.status) == (AttemptState.FAILED, Status.DEAD_LETTER)
    assert str(last.job_id) == result.id


@pytest.mark.django_db
def test_a_job_that_never_ends_is_not_run_for_ever() -> None:
    run_to_the_end = defined(DOCS / "howto" / "test-your-jobs.md", "run_to_the_end")

    with pytest.raises(AssertionError, match="has not ended"):
        run_to_the_end("0199b0de-7a3c-7f11-9b7e-1f0a6c9d2e44")

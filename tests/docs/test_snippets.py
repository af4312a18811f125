"""Code of the guides that does more than compile: it runs as it stands on the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from docs.generated import DOCS
from pgbroker.states import AttemptState, Status
from testproject.airports import jobs
from tests.docs.walkthrough import blocks


def defined(page: Path, name: str) -> Any:
    """Run the one block of a page that defines *name*, and return it."""
    (body,) = (block.body for block in blocks(page) if f"def {name}(" in block.body)
    names: dict[str, Any] = {}
    exec(compile(body, page.name, "exec"), names)  # noqa: S102 - our own page
    return names[name]


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

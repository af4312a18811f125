"""The guide about work that waits: its code runs as it stands on the page."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from docs.generated import DOCS
from pgbroker import get_group, get_job, registry, retry
from pgbroker.errors import GroupExists, GroupSealed
from pgbroker.lifecycle.settle import settle
from pgbroker.states import GroupState, Status
from pgbroker.testing import age, run_jobs
from tests.docs.walkthrough import blocks
from tests.support.jobs import claim_many, failed, reason, status

pytestmark = pytest.mark.django_db

PAGE = DOCS / "howto" / "make-work-wait-for-work.md"


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The page's code as one module of an app; its jobs are forgotten after the test."""
    known = registry._types
    monkeypatch.setattr(known, "_by_function", dict(known._by_function))
    monkeypatch.setattr(known, "_by_key", None)
    names: dict[str, Any] = {"__name__": "shop.jobs"}
    for block in blocks(PAGE):
        if block.language == "python":
            exec(compile(block.body, f"{PAGE.name}:{block.line}", "exec"), names)  # noqa: S102 - our own page
    known._by_key = None
    return names


def run() -> list[Any]:
    return [ran.result for ran in run_jobs(reraise=True)]


def test_a_job_waits_for_jobs(shop: dict[str, Any]) -> None:
    published = shop["order_edition"]("Monday")

    assert status(UUID(published.id)) == Status.WAITING
    assert run() == [9, 6, "Monday is out"]


def test_a_prerequisite_may_be_ignored_and_block(shop: dict[str, Any]) -> None:
    published = shop["order_edition_with_pictures"]("Monday")
    orders, pictures = claim_many(2, queue="imports")
    settle([failed(orders, permanent=True), failed(pictures, permanent=True)])

    run()
    assert (status(UUID(published.id)), reason(UUID(published.id))) == (Status.BLOCKED, "prerequisite_failed")
    retry(orders.job_id)
    assert run()[-1] == "Monday is out"


def test_a_group_is_filled_and_waited_for(shop: dict[str, Any]) -> None:
    published = shop["import_everything"]("2026-11-29")
    with pytest.raises(GroupExists):
        shop["import_everything"]("2026-11-29")

    assert run() == [9, 6, "2026-11-29 is out"]
    assert get_job(published).status == Status.COMPLETED
    assert shop["look_after"]("import:2026-11-29") == 100.0


def test_a_group_tells_how_it_ended(shop: dict[str, Any]) -> None:
    shop["import_with_a_few_gaps"]("2026-11-29", ["a", "bc"])

    run()

    assert get_group("gaps:2026-11-29").progress().completed_job_id is not None


def test_a_chain_runs_in_order(shop: dict[str, Any]) -> None:
    assert {outcome.outcome for outcome in shop["chain"](["a", "bc", "def"])} == {"created"}

    assert run() == [1, 2, 3]


def test_results_are_read(shop: dict[str, Any]) -> None:
    shop["import_everything"]("2026-11-29")
    single = shop["extract"].enqueue("abc")
    for task in (shop["total"], shop["by_group"]):
        task.options(depends_on=[single, get_group("import:2026-11-29")]).enqueue()

    results = run()

    assert 3 in results
    (by_group,) = (each for each in results if isinstance(each, dict))
    assert {name: sorted(numbers) for name, numbers in by_group.items()} == {"import:2026-11-29": [6, 9]}


def test_a_group_grows_while_it_runs(shop: dict[str, Any]) -> None:
    shop["crawl_site"]("example.org")

    run()

    progress = get_group("example.org").progress()
    assert (progress.total, progress.state) == (3, GroupState.OPEN)
    assert shop["close_site"]("example.org") == GroupState.COMPLETED
    with pytest.raises(GroupSealed):
        get_group("example.org").enqueue(shop["crawl"], "late")


def test_what_comes_later_is_waited_for_until_then(shop: dict[str, Any]) -> None:
    comes, never = shop["announce"]("2026-11-29"), shop["announce"]("2026-11-30")
    shop["import_everything"]("2026-11-29")
    run()
    age(never, hours=7)
    run()

    assert status(UUID(comes.id)) == Status.COMPLETED
    assert (status(UUID(never.id)), reason(UUID(never.id))) == (Status.CANCELLED, "reference_expired")


def test_jobs_that_exist_are_held_back(shop: dict[str, Any]) -> None:
    first, second = shop["extract"].enqueue("a"), shop["publish"].enqueue("b")

    shop["hold_back"](second.id, first.id)

    assert status(UUID(second.id)) == Status.WAITING
    shop["go_on"](second.id)
    assert run() == [1, "b is out"]

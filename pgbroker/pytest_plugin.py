"""
The pytest plugin. pytest imports it in every project of an environment that has pgbroker: it imports neither
Django nor the rest of pgbroker before a test asks for it, and none of its fixtures sets anything up unasked.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pgbroker.testing import EnqueuedJob, Ran

# Fixtures of pytest-django whose tests commit.
_COMMITTING = frozenset({"transactional_db", "live_server", "django_db_reset_sequences"})


@pytest.fixture
def run_jobs(db: None) -> "Callable[..., list[Ran]]":
    """
    Run the jobs that are ready, here and now, and return their attempts: `(ran,) = run_jobs()`.

    The same as `pgbroker.testing.run_jobs`.
    """
    from pgbroker import testing

    return testing.run_jobs


@pytest.fixture
def inline_jobs(db: None) -> "Iterator[list[Ran]]":
    """
    Run each job of this test as soon as the code that enqueued it has committed; the list of attempts so far.

    `pgbroker.testing.inline_jobs` around the test.
    """
    from pgbroker import testing

    with testing.inline_jobs() as ran:
        yield ran


@pytest.fixture
def all_enqueued(db: None) -> "Callable[..., list[EnqueuedJob]]":
    """
    List the jobs that are yet to run: `all_enqueued(send_receipt, kwargs={"order_id": 7}, queue="mail")`.

    The same as `pgbroker.testing.all_enqueued`.
    """
    from pgbroker import testing

    return testing.all_enqueued


@pytest.fixture
def assert_enqueued(db: None) -> "Callable[..., list[EnqueuedJob]]":
    """
    Assert that a job is yet to run, and return those that match; a failure shows what was enqueued instead.

    The same as `pgbroker.testing.assert_enqueued`.
    """
    from pgbroker import testing

    return testing.assert_enqueued


@pytest.fixture
def refute_enqueued(db: None) -> "Callable[..., None]":
    """
    Assert that no such job is yet to run; without arguments, none at all.

    The same as `pgbroker.testing.refute_enqueued`.
    """
    from pgbroker import testing

    return testing.refute_enqueued


@pytest.fixture(autouse=True)
def _pgbroker_flush(request: pytest.FixtureRequest) -> Iterator[None]:
    """Empty pgbroker's tables after a test that commits: Django's flush does not see them in their schema."""
    databases = _databases_of_a_test_that_commits(request)
    if databases is None:
        yield
        return
    if request.cls is None or not _is_transaction_test_case(request.cls):
        # Set up first, so that the database is still open to this test when we are torn down.
        request.getfixturevalue("transactional_db")
    yield
    from django.apps import apps

    if not apps.is_installed("pgbroker"):
        return
    from pgbroker.conf import settings
    from pgbroker.testing import flush

    for alias in settings().DATABASES:
        if "__all__" in databases or alias in databases:
            flush(using=alias)


def _databases_of_a_test_that_commits(request: pytest.FixtureRequest) -> Iterable[str] | None:
    if "django.db" not in sys.modules:
        return None
    if request.cls is not None and _is_transaction_test_case(request.cls):
        databases: Any = request.cls.databases
        return [databases] if isinstance(databases, str) else databases
    marker = request.node.get_closest_marker("django_db")
    asked = _asked(*marker.args, **marker.kwargs) if marker is not None else {}
    if not asked.get("commits") and not _COMMITTING & set(request.fixturenames):
        return None
    databases = asked.get("databases") or ["default"]
    return [databases] if isinstance(databases, str) else databases


def _asked(
    transaction: bool = False, reset_sequences: bool = False, databases: Any = None, **_: Any
) -> dict[str, Any]:
    """Read a `django_db` mark, as pytest-django does."""
    return {"commits": transaction or reset_sequences, "databases": databases}


def _is_transaction_test_case(cls: type) -> bool:
    module = sys.modules.get("django.test")
    return (
        module is not None
        and issubclass(cls, module.TransactionTestCase)
        and not issubclass(cls, module.TestCase)
    )

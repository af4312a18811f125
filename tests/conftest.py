"""What every test may use, and the PostgreSQL server under them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
from django.db import connections

from testproject import database, embedded_pg
from tests.support.sessions import wait_for_threads

# A test that commits leaves nothing of pgbroker's behind.
pytest_plugins = ["pgbroker.pytest_plugin"]

server = pytest.StashKey[embedded_pg.Running]()


def pytest_configure(config: pytest.Config) -> None:
    """
    Start the embedded server unless `DATABASE_URL` names another one.

    Under xdist the controller and each of its workers hold the server, so that it outlives whichever of
    them is killed. Nothing has connected yet, so the settings can still be pointed at it.
    """
    if not database.is_embedded():
        return
    os.environ["PGBROKER_PG_KIND"] = "test"  # processes that tests start read the settings anew
    try:
        config.stash[server] = embedded_pg.ensure_running("test")
    except embedded_pg.EmbeddedPostgresError as error:
        pytest.exit(str(error), returncode=3)
    settings = connections.settings["default"]
    settings.update(database.django_database(config.stash[server].dsn))
    if not config.getoption("reuse_db"):
        # Runs in two terminals share the server, and must not drop each other's database. The databases
        # of killed runs go when the server next starts from nothing.
        settings["TEST"]["NAME"] = f"test_{embedded_pg.DATABASE}_{os.getpid()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The processes of a run must find the same tests; an address is another one in each.
    if unstable := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"give these parameters ids: {unstable}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("own_session") and "direct" in connections.settings:
        pytest.skip("it looks at its connection's backend, which a pooler changes")


def pytest_unconfigure(config: pytest.Config) -> None:
    if running := config.stash.get(server, None):
        running.release()


@pytest.fixture(autouse=True)
def _threads_have_ended() -> Iterator[None]:
    """Before the tables are emptied, which what still works in them would lock or fill."""
    yield
    wait_for_threads()


@pytest.fixture
def superuser(db: None) -> Iterator[psycopg.Connection]:
    """A superuser's connection to the test database, in autocommit: to end sessions, to see all rows."""
    parameters = connections["default"].get_connection_params()
    parameters = {
        name: parameters[name]
        for name in ("host", "port", "dbname", "user", "password")
        if name in parameters
    }
    if database.is_embedded():
        parameters["user"] = embedded_pg.SUPERUSER
    with psycopg.connect(**parameters, autocommit=True) as connection:
        (may,) = connection.execute("select rolsuper from pg_roles where rolname = current_user").fetchone()
        if not may:
            pytest.skip("the user in DATABASE_URL is not a superuser")
        yield connection


@pytest.fixture
def no_process_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Forget the handlers that run in child processes, for workers inside the test's own process.

    Each of them would start a fresh interpreter for children that the test has no use for.
    """
    from pgbroker import registry

    known = registry._types
    kept = {function: task for function, task in known._by_function.items() if task.executor != "process"}
    monkeypatch.setattr(known, "_by_function", kept)
    monkeypatch.setattr(known, "_by_key", None)

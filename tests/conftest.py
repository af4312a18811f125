"""What every test may use, and the PostgreSQL server under them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
from django.db import connections

from testproject import database, embedded_pg

TABLES_TO_EMPTY = [
    f"pgbroker.{name}"
    for name in (
        "job", "job_payload", "job_state", "idempotency", "execution", "job_event", "worker", "job_counter",
        "pause", "queue_priority",
    )
]  # fmt: skip

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


def pytest_unconfigure(config: pytest.Config) -> None:
    if running := config.stash.get(server, None):
        running.release()


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


@pytest.fixture(autouse=True)
def empty_pgbroker_tables(request: pytest.FixtureRequest) -> Iterator[None]:
    """
    Empty pgbroker's tables after a test that commits: Django's flush does not see them in their schema.

    Queues and job types stay, as after migrate: others may know their numbers.
    """
    marker = request.node.get_closest_marker("django_db")
    commits = bool(marker and marker.kwargs.get("transaction"))
    if not commits and not {"transactional_db", "live_server"} & set(request.fixturenames):
        yield
        return
    request.getfixturevalue("transactional_db")
    yield
    # Imported here: models can be loaded once Django is set up.
    from tests.support.jobs import guards_off

    with connections["default"].cursor() as cursor:
        cursor.execute("select pg_relation_size('pgbroker.job') > 5000000")
        (big,) = cursor.fetchone()
        if big:
            cursor.execute(f"truncate {', '.join(TABLES_TO_EMPTY)}")
        else:
            # A truncate makes new files for every partition; a few rows are sooner deleted.
            with guards_off():
                for table in TABLES_TO_EMPTY:
                    cursor.execute(f"delete from {table}")
        cursor.execute(
            "insert into pgbroker.queue_priority (queue_id, priority) select id, 0 from pgbroker.queue"
        )

"""A network that swallows, forgets or delays: a worker notices by its own means, and no handler waits for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from django.db import connection, connections

from pgbroker import db
from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.clock import database_time
from pgbroker.patience import AnswerOverdue
from pgbroker.states import AttemptState, Status
from testproject.chaos.proxy import Proxy
from tests.runtime import handlers
from tests.runtime.fleet import (
    Fleet,
    effects,
    put,
    states_of,
    wait_for_effect,
    wait_for_status,
    wait_until,
)
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)

DONE = Status.COMPLETED
PATIENCE = 1.0


@pytest.fixture
def network() -> Iterator[Proxy]:
    """A network to the test's database that can be broken."""
    settings = connections["default"].settings_dict
    path = Path(settings["HOST"]) / f".s.PGSQL.{settings['PORT'] or 5432}"
    if not path.exists():
        pytest.skip("the server is not reached through a socket in the file system")
    proxy = Proxy(path)
    yield proxy
    proxy.close()


@pytest.fixture
def session(network: Proxy) -> Iterator[db.Session]:
    """A session through that network, as a worker's loop has one, with little patience."""
    live = connections["default"].settings_dict
    before = {name: live[name] for name in ("HOST", "PORT")}
    live.update(HOST="127.0.0.1", PORT=str(network.port))
    try:
        session = db.Session("default", purpose="test", patience=PATIENCE)
        database_time(using=session)
    finally:
        live.update(before)
    yield session
    session.drop()


def through(network: Proxy) -> dict[str, str]:
    return {"HOST": "127.0.0.1", "PORT": str(network.port)}


def test_an_answer_that_is_swallowed_ends_the_wait_and_the_connection(network: Proxy, session: db.Session):
    network.tell("swallow")
    began = time.monotonic()
    with pytest.raises(AnswerOverdue):
        database_time(using=session)

    assert PATIENCE <= time.monotonic() - began < PATIENCE + 1
    assert not session.is_open


def test_an_answer_that_is_only_slow_arrives(network: Proxy, session: db.Session):
    network.tell(f"delay {PATIENCE / 4}")

    assert database_time(using=session)


def test_the_server_ends_a_statement_before_its_client_hangs_up(session: db.Session):
    """Otherwise each try would leave a backend behind that waits for the same lock."""
    job_id = put(handlers.nothing, 1, tenant="default")
    with second_session() as other, other.transaction():
        other.execute("select from pgbroker.job where id = %s for update", (job_id,))
        with pytest.raises(psycopg.errors.QueryCanceled):
            cancel_many([job_id], reason="", by="", using=session)
        (waiting,) = other.execute(
            "select count(*) from pg_stat_activity where pg_backend_pid() = any (pg_blocking_pids(pid))"
        ).fetchone()

    assert waiting == 0
    assert session.is_open


def test_locks_of_a_session_that_is_frozen_within_its_transaction_are_let_go(session: db.Session):
    """Everybody skips what is locked: the jobs would be nobody's until the server misses the client."""
    job_id = put(handlers.nothing, 1)
    version = session.connection.info.server_version
    if version < db.TRANSACTION_TIMEOUT_SINCE:
        pytest.skip("PostgreSQL ends no such transaction before 17")
    with second_session() as other, pytest.raises(psycopg.OperationalError):
        freeze_and_wait(session, job_id, other)


def freeze_and_wait(session: db.Session, job_id: UUID, other: psycopg.Connection) -> None:
    """Send all of a transaction but its end, as a process that is stopped between two sends."""
    before = db.scope_text("all", db._KEPT_PLAN, "terminal", False, False, session.limits)
    with session.connection.pipeline():
        session.connection.execute(before.encode())
        session.connection.execute("select from pgbroker.job where id = %s for update", (job_id,))
        session.connection.pgconn.send_flush_request()
        session.connection.pgconn.flush()
        wait_until(lambda: not is_free(other, job_id), "the row is locked")
        began = time.monotonic()
        wait_until(lambda: is_free(other, job_id), "the row is free")
        assert time.monotonic() - began < 2 * PATIENCE


def is_free(session: psycopg.Connection, job_id: UUID) -> bool:
    with session.transaction():
        found = session.execute("select from pgbroker.job where id = %s for update skip locked", (job_id,))
        return found.rowcount == 1


def test_a_statement_of_a_project_is_limited_by_nobody(session: db.Session):
    """A worker's limits are for its own statements: nothing of them stays on a connection."""
    job_id = put(handlers.nothing, 1, tenant="default")
    with second_session() as other, other.transaction():
        other.execute("select from pgbroker.job where id = %s for update", (job_id,))
        asking = InThread(lambda: cancel_many([job_id], reason="", by="", using="default")).start()
        wait_until_blocked(asking, other)
        with connection.cursor() as cursor:
            cursor.execute("show statement_timeout")
            assert cursor.fetchone() == ("0",)
    asking.result()

    assert session.connection.execute("show statement_timeout").fetchone() == ("0",)


@pytest.mark.own_session
@pytest.mark.parametrize(
    ("how", "flags"),
    [("forget", []), ("swallow", []), ("forget", ["--executor", "process"])],
    ids=["forget", "swallow", "forget, in children"],
)
def test_a_worker_whose_connections_are_dead_without_a_word_goes_on(
    fleet: Fleet, network: Proxy, how: str, flags: list[str]
):
    """And so does a job whose handler waits in one of them, which no timeout of its own would end."""
    worker = fleet.start(*flags, slots=4, database=through(network))
    waiting = [put(task, 2.0) for task in (handlers.stubborn, handlers.stubborn_async)]
    wait_for_effect("enter", count=2, of=worker)
    network.tell(how)
    began = time.monotonic()
    if how == "swallow":
        # Shorter than the lease: they are renewed before it ends, by new connections.
        time.sleep(1.5)
        network.tell("pass")
    fresh = [put(handlers.note, "fresh") for _ in range(4)]

    wait_for_status(fresh, DONE, of=worker)
    took = time.monotonic() - began
    wait_for_status(waiting, DONE, of=worker)

    # Half a lease of 4 s, what connecting takes, and what a loaded machine adds.
    assert took < 8
    for each in waiting:
        assert states_of(each) == [AttemptState.FAILED, AttemptState.COMPLETED], worker.log
    assert [len(effects("leave", each)) for each in waiting] == [1, 1]
    assert "connection was cut" in worker.log
    assert worker.stop() == 0


@pytest.mark.own_session
def test_a_handler_of_whose_message_only_a_part_has_arrived_does_not_wait_for_ever(
    fleet: Fleet, network: Proxy
):
    worker = fleet.start(slots=1, database=through(network))
    job_id = put(handlers.pause_in_pipeline, 2.0)
    wait_for_effect("enter", of=worker)
    time.sleep(0.3)  # until the first part is there; were it not, the test would be the one above
    network.tell("forget")

    wait_for_status(job_id, DONE, of=worker)

    assert states_of(job_id) == [AttemptState.FAILED, AttemptState.COMPLETED], worker.log
    assert "connection was cut" in worker.log


@pytest.mark.parametrize("task", [handlers.query_for, handlers.copy_for])
def test_a_long_query_of_a_handler_survives_the_loss_of_other_connections(fleet: Fleet, superuser, task):
    worker = fleet.start(slots=1)
    job_id = put(task, 8.0)
    wait_for_effect("enter", of=worker)
    superuser.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and application_name like 'pgbroker %'"
    )

    wait_for_status(job_id, DONE, of=worker)

    assert states_of(job_id) == [AttemptState.COMPLETED], worker.log


@pytest.mark.own_session
def test_a_listener_that_nobody_speaks_to_any_more_finds_out(fleet: Fleet, network: Proxy):
    worker = fleet.start(slots=1, database=through(network), POLL_SECONDS=30)
    wait_until(lambda: len(loops()) == 5, "all loops are connected", of=worker)
    before = loops()
    network.tell("forget")
    wait_until(lambda: len(loops() - before) >= 4, "they have connected again", of=worker)
    assert "loop=pgbroker-listen" in worker.log
    time.sleep(0.5)
    began = time.monotonic()
    wait_for_status(put(handlers.nothing, 1), DONE, of=worker)

    # By polling it would take half a minute.
    assert time.monotonic() - began < 5


def loops() -> set[int]:
    """List the server's processes of a worker's loops."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select pid from pg_stat_activity where datname = current_database() and application_name = any (%s)",
            [[f"pgbroker {name}" for name in ("claim", "settle", "heartbeat", "upkeep", "listen")]],
        )
        return {pid for (pid,) in cursor.fetchall()}

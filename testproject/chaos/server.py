"""Faults of PostgreSQL: restarted, crashed, its backends killed, its connections used up, its tables locked."""

from __future__ import annotations

import time

import psycopg

from testproject.chaos.scenarios import scenario
from testproject.chaos.stage import Stage


@scenario()
def server_restarted(stage: Stage) -> None:
    """PostgreSQL is restarted in the fast mode: every session is ended in an orderly way."""
    stage.server.restart("fast")


@scenario()
def server_crashed(stage: Stage) -> None:
    """PostgreSQL is restarted in the immediate mode: a crash, with recovery from the log."""
    stage.server.restart("immediate")


@scenario()
def server_crashed_three_times(stage: Stage) -> None:
    """PostgreSQL crashes again before anybody has recovered from the last time."""
    for _ in range(3):
        stage.server.restart("immediate")
        stage.wait(stage.dice.uniform(0.3, 2.0))


@scenario()
def backends_killed_steadily(stage: Stage) -> None:
    """Every 100 ms one backend of the database is ended, whosever it is: a worker's loop's, a handler's, a client's."""
    killed = 0
    with stage.superuser() as session:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            (count,) = session.execute(
                "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity "
                "where datname = current_database() and backend_type = 'client backend' "
                "and pid <> pg_backend_pid() order by random() limit 1) as chosen"
            ).fetchone() or (0,)
            killed += count
            stage.wait(0.1)
    stage.facts["killed"] = killed


@scenario()
def connections_exhausted(stage: Stage) -> None:
    """
    Sessions that do nothing take every connection, and both workers are killed and started again meanwhile.

    A worker that cannot connect at its start ends with 3, for its service manager to try again.
    """
    held: list[psycopg.Connection[tuple[object, ...]]] = []
    try:
        for number in range(100):
            if number == 20:
                stage.kill(0)
                stage.kill(1)
            try:
                while True:
                    held.append(stage.session())
            except psycopg.OperationalError:
                # Whoever lets one go finds it taken at once.
                stage.wait(0.1)
    finally:
        for session in held:
            session.close()
    stage.facts["held"] = len(held)


@scenario()
def job_table_locked(stage: Stage) -> None:
    """Somebody locks the job table exclusively, as an ALTER TABLE does, for longer than a lease."""
    with stage.superuser() as session, session.transaction():
        session.execute("lock table pgbroker.job in access exclusive mode")
        stage.wait(8)

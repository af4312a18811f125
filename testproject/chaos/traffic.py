"""What others do in the same database: old snapshots, analytic queries, a lock on one job."""

from __future__ import annotations

import threading

import psycopg

from testproject.chaos.scenarios import scenario
from testproject.chaos.stage import Stage


@scenario()
def held_snapshot(stage: Stage) -> None:
    """A REPEATABLE READ transaction stays open, so that no vacuum removes what the workers leave dead."""
    with stage.session() as session, session.transaction():
        session.execute("set transaction isolation level repeatable read")
        session.execute("select count(*) from pgbroker.job")
        stage.wait(20)


@scenario()
def analytic_readers(stage: Stage) -> None:
    """Four sessions scan, join and sort the whole history without a pause, on the two cores that all share."""
    over = threading.Event()

    def read() -> None:
        with stage.session() as session:
            while not over.is_set():
                session.execute(
                    "select job.tenant_id, count(*), max(length(payload.args::text)), "
                    "percentile_cont(0.9) within group (order by execution.duration_seconds) "
                    "from pgbroker.job join pgbroker.job_payload as payload on payload.job_id = job.id "
                    "join pgbroker.execution on execution.job_id = job.id group by job.tenant_id"
                )

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    stage.wait(12)
    over.set()
    for reader in readers:
        reader.join()


@scenario()
def job_rows_locked(stage: Stage) -> None:
    """Somebody locks all rows of jobs that run now, in psql, and goes for a coffee longer than a lease."""
    with stage.session() as session, session.transaction():
        locked = session.execute("select id from pgbroker.job where status = 3 for update").fetchall()
        stage.wait(8)
    stage.facts["locked"] = len(locked)


@scenario()
def vacuum_full(stage: Stage) -> None:
    """Somebody rewrites the job table and its history (VACUUM FULL) while everything runs."""
    with stage.superuser() as session:
        for table in ("job", "job_payload", "execution"):
            try:
                session.execute(f"vacuum full pgbroker.{table}")  # type: ignore[arg-type]
            except psycopg.errors.DeadlockDetected:
                stage.facts["deadlocks"] = stage.facts.get("deadlocks", 0) + 1

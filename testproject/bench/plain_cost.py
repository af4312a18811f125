"""What jobs that wait for nothing pay for dependencies: the server's time, with and without what serves them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import connection

from pgbroker import db, payload, registry
from pgbroker.ids import new_id
from pgbroker.lifecycle.claim import claim
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.lifecycle.settle import settle
from pgbroker.outcomes import Ended
from pgbroker.states import AttemptState
from testproject.bench import jobs, stage
from testproject.bench.compare import NotRun, against, rotate, row
from testproject.bench.conditions import versions
from testproject.bench.rows import Row, Scale

BATCH = 500
# What the engine did with a job that ended before there was anything that could wait for it.
_WITHOUT = """
create or replace function pgbroker.job_after_update_1() returns trigger
language plpgsql as $function$
begin
    if coalesce(nullif(current_setting('pgbroker.events', true), ''), 'terminal') <> 'off' then
        insert into pgbroker.job_event (job_id, tenant_id, event)
        select id, tenant_id, status
        from changed
        where status >= 10;
        if not found then
            return null;
        end if;
    end if;
    if exists (select from changed where status = 12 /* dead_letter */) then
        perform pgbroker.enqueue_exhausted_1(array(select id from changed where status = 12 /* dead_letter */));
    end if;
    return null;
end
$function$;
"""
_REVIVED = "alter table pgbroker.job {} trigger job_revived"


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of a process of this machine."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError as error:
        raise NotRun("the server runs on another machine, or this one does not tell its time") from error


def _work(count: int) -> float:
    """Enqueue, claim and settle so many jobs over one connection; returns the server's seconds for 10,000."""
    stage.empty()
    session = db.Session("default", purpose="bench")
    try:
        pid = session.connection.info.backend_pid
        queue, job_type = stage.queue_id(), stage.type_id(jobs.noop_async)
        text = payload.encode(
            registry.signature_of(jobs.noop_async), (0, stage.DAY), {"note": stage.NOTE}, limit_bytes=10_000
        )[2]
        holder = new_id()
        began = _cpu_seconds(pid)
        for _ in range(0, count, BATCH):
            rows = [
                {
                    "id": str(new_id()), "job_type": jobs.noop_async.key, "queue": jobs.QUEUE, "type_version": 1,
                    "priority": 0, "max_attempts": 5, "args_text": text,
                }
                for _ in range(BATCH)
            ]  # fmt: skip
            assert all(answer.outcome == "created" for answer in enqueue_rows(rows, using=session))
            leases = claim(
                queue,
                limit=BATCH,
                idle=BATCH,
                quick=[job_type],
                worker_id=holder,
                lease=timedelta(hours=1),
                ageing=timedelta(seconds=60),
                max_crashes=3,
                suspects=1,
                using=session,
            )
            assert len(leases) == BATCH
            settle(
                [
                    Ended(
                        lease=lease, state=AttemptState.COMPLETED, started_at=lease.leased_at, seconds=0.001
                    )
                    for lease in leases
                ],
                max_crashes=3,
                using=session,
            )
        return (_cpu_seconds(pid) - began) * 10_000 / count
    finally:
        session.drop()


def _alter(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _plain_cost(scale: Scale) -> dict[str, Any]:
    count, rounds = scale.count(quick=10_000, full=10_000), scale.turns(quick=5, full=9)
    with connection.cursor() as cursor:
        cursor.execute("select pg_get_functiondef('pgbroker.job_after_update_1'::regproc)")
        (with_it,) = cursor.fetchone()

    def contestant(*statements: str) -> Callable[[], float]:
        def run() -> float:
            _alter(*statements)
            return _work(count)

        return run

    try:
        figures = rotate(
            {
                "without": contestant(_WITHOUT, _REVIVED.format("disable")),
                "with": contestant(with_it, _REVIVED.format("enable")),
            },
            rounds=rounds,
        )
    finally:
        _alter(with_it, _REVIVED.format("enable"))
        stage.empty()
    return row(
        figures.median("with"),
        "server CPU s for 10,000 jobs",
        [against(figures, "with", "without", what="the engine without dependencies", at_most=1.05)],
        jobs=count,
        rounds=rounds,
        quick=scale.quick,
        versions=versions(),
    )


ROWS = [
    Row(
        name="plain-cost",
        what="jobs that wait for nothing are enqueued, claimed and settled, by the server's processor time",
        measure=_plain_cost,
    )
]

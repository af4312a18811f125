"""How fast a worker drains a queue of jobs that do nothing, beside a bare loop of the same statements."""

import statistics
import time
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from django.core.management import call_command
from django.db import connection

from pgbroker import db, enqueue_many, registry
from pgbroker.ids import new_id
from pgbroker.lifecycle.claim import claim
from pgbroker.lifecycle.declare import list_queues
from pgbroker.lifecycle.settle import settle
from pgbroker.outcomes import Ended
from pgbroker.runtime.supervisor import Worker, WorkerOptions
from pgbroker.states import AttemptState
from testproject.bench import jobs

BATCH = 500
TABLES = "job, job_payload, job_state, idempotency, execution, job_event, job_counter"


def _fill(task: registry.JobTask[Any, Any], count: int) -> None:
    """Empty the tables and enqueue *count* jobs; statistics and visibility as after a quiet while."""
    with connection.cursor() as cursor:
        cursor.execute(f"truncate {', '.join(f'pgbroker.{name}' for name in TABLES.split(', '))}")
    day = date(2026, 11, 1)
    outcomes = enqueue_many([task.bind(number, day, note="x" * 20) for number in range(count)])
    assert all(outcome.outcome == "created" for outcome in outcomes)
    with connection.cursor() as cursor:
        for name in ("job", "job_payload"):
            cursor.execute(f"vacuum analyze pgbroker.{name}")


def _check(count: int) -> None:
    """Prove that each job ran once and was recorded once."""
    with connection.cursor() as cursor:
        cursor.execute("select count(*) filter (where status = 10), count(*) from pgbroker.job")
        assert cursor.fetchone() == (count, count)
        cursor.execute("select count(*), count(distinct job_id) from pgbroker.execution where state = 1")
        assert cursor.fetchone() == (count, count)


def _raw(count: int) -> float:
    """Claim 500 and settle 500, two commits on one connection, and nothing between them; jobs a second."""
    session, worker_id = db.Session("default", purpose="bench"), new_id()
    queue_id = next(queue.id for queue in list_queues() if queue.name == "bench")
    bounds: dict[int, Any] = {}
    began = time.perf_counter()
    while leases := claim(
        queue_id,
        limit=BATCH,
        idle=BATCH,
        worker_id=worker_id,
        lease=timedelta(seconds=60),
        ageing=timedelta(seconds=60),
        max_crashes=3,
        suspects=1,
        bounds=bounds,
        using=session,
    ):
        last = leases[-1]
        bounds[last.priority] = (last.ready_at, last.job_id)
        settle(
            [Ended(lease, AttemptState.COMPLETED, lease.leased_at, 0.0) for lease in leases], using=session
        )
    seconds = time.perf_counter() - began
    session.drop()
    return count / seconds


def _worker(count: int) -> float:
    """Drain with one worker process, from its first claim to the last settle; jobs a second."""
    worker = Worker(WorkerOptions(queues=("bench",), concurrency=8, max_jobs=count))
    worker.prepare()
    began = time.perf_counter()
    worker.start_services()
    while worker.settler.settled_count < count:
        time.sleep(0.002)
    seconds = time.perf_counter() - began
    worker.stop()
    assert worker.run_to_end() == 0
    return count / seconds


def _compare(task: registry.JobTask[Any, Any], *, goal: float, quick: bool) -> dict[str, Any]:
    count, rounds = (10_000, 3) if quick else (60_000, 5)
    call_command("migrate", verbosity=0)
    registry.synchronise(using="default")
    ratios, values, raws = [], [], []
    for _ in range(rounds):
        rates = {}
        for name, run in (("raw", _raw), ("worker", _worker)):
            _fill(task, count)
            rates[name] = run(count)
            _check(count)
        raws.append(rates["raw"])
        values.append(rates["worker"])
        ratios.append(rates["worker"] / rates["raw"])
    ratio = statistics.median(ratios)
    return {
        "value": round(statistics.median(values)),
        "against": {
            "what": "a raw loop of the same statements, 500 a batch",
            "value": round(statistics.median(raws)),
        },
        "ratio": round(ratio, 3),
        "goal": f">= {goal}",
        "holds": ratio >= goal,
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "jobs": count,
        "rounds": rounds,
        "quick": quick,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Tell what was measured."""
    import platform

    import django
    import psycopg

    import pgbroker

    with connection.cursor() as cursor:
        cursor.execute("show server_version")
        (server,) = cursor.fetchone()
    return {
        "pgbroker": pgbroker.__version__,
        "python": platform.python_version(),
        "django": django.get_version(),
        "psycopg": psycopg.__version__,
        "postgresql": server,
    }


ROWS: dict[str, Callable[..., dict[str, Any]]] = {
    "drain-async": lambda quick: _compare(jobs.noop_async, goal=0.4, quick=quick),
    "drain-threads": lambda quick: _compare(jobs.noop_sync, goal=0.4, quick=quick),
}

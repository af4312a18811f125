"""What a measurement starts from: empty tables, jobs that are ready, and afterwards the proof that each ran once."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connections

from pgbroker import payload, registry
from pgbroker.ids import new_id
from pgbroker.lifecycle.declare import list_queues
from pgbroker.tenancy import scope_all
from testproject import database
from testproject.bench import ran
from testproject.bench.jobs import QUEUE

TABLES = (
    "job", "job_payload", "job_state", "idempotency", "execution", "job_event", "job_counter", "queue_sample",
    "worker", "leader", "pause", "queue_priority", "run_group", "job_dependency", "deferred_reference", "unresolved",
    "schedule", "schedule_run",
)  # fmt: skip
DAY = date(2026, 11, 1)
NOTE = "x" * 20

# As a bulk enqueue leaves them: ids and times in order, each with its arguments.
_FILL = """
with made as materialized (
    select pgbroker.uuid7_1() as id, n, (%(priorities)s::smallint[])[1 + n %% %(lanes)s] as priority
    from generate_series(%(first)s, %(last)s) as n
),
jobs as (
    insert into pgbroker.job (id, queue_id, job_type_id, status, priority, ready_at)
    select id, %(queue)s, %(type)s, 2 /* ready */, priority, statement_timestamp() + n * interval '1 us'
    from made
)
insert into pgbroker.job_payload (job_id, args)
select id, jsonb_set(%(args)s, %(path)s, to_jsonb(n))
from made
"""


def migrate(using: str = "default") -> None:
    """Bring a database up to date, with the rows of what the code declares."""
    call_command("migrate", database=using, verbosity=0)
    registry.synchronise(using=using)


def empty(using: str = "default") -> None:
    """Empty every table that jobs fill."""
    with connections[using].cursor() as cursor:
        cursor.execute(f"truncate {', '.join(f'pgbroker.{name}' for name in TABLES)}")
        cursor.execute(
            "insert into pgbroker.queue_priority (queue_id, priority) select id, 0 from pgbroker.queue"
        )


def fill(
    task: registry.JobTask[Any, Any],
    count: int,
    *,
    first: int = 0,
    priorities: Sequence[int] = (0,),
    using: str = "default",
) -> None:
    """Make *count* ready jobs, numbered from *first*; statistics and visibility as after a quiet while."""
    envelope, _, _ = payload.encode(registry.signature_of(task), (0, DAY), {"note": NOTE}, limit_bytes=10_000)
    path = ["kwargs", "number"] if "number" in envelope["kwargs"] else ["args", "0"]
    with connections[using].cursor() as cursor:
        cursor.execute(
            _FILL,
            {
                "first": first, "last": first + count - 1, "priorities": list(priorities), "lanes": len(priorities),
                "queue": queue_id(using), "type": type_id(task, using), "args": json.dumps(envelope), "path": path,
            },
        )  # fmt: skip
        cursor.execute(
            "insert into pgbroker.queue_priority (queue_id, priority) select %s, unnest(%s::smallint[])",
            [queue_id(using), [each for each in priorities if each != 0]],
        )
    settle_down(using)


def drop_database(name: str) -> None:
    """Remove a database of a measurement, whoever is connected to it."""
    default = connections["default"]
    default.ensure_connection()
    database.drop_database(default.connection, name)


def settle_down(using: str = "default") -> None:
    """Vacuum and analyze what was filled, so that no autovacuum falls into a measurement."""
    with connections[using].cursor() as cursor:
        for name in ("job", "job_payload", "execution"):
            cursor.execute(f"vacuum analyze pgbroker.{name}")


def queue_id(using: str = "default") -> int:
    """Return the number of the queue that is measured."""
    return next(queue.id for queue in list_queues(using=using) if queue.name == QUEUE)


def type_id(task: registry.JobTask[Any, Any], using: str = "default") -> int:
    """Return the number of a job type."""
    return registry.synchronise(using=using)[task.key]


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="pgbroker-bench-")


def directory() -> Path:
    """Return where files may be put; they go with this process."""
    return Path(_directory().name)


def notes(jobs: int) -> ran.Look:
    """Make a new file in which jobs note that they run."""
    return ran.make(directory() / f"ran-{new_id()}", jobs)


def prove_completed(count: int) -> None:
    """Prove that *count* jobs are there, all completed, each with one attempt in the history and in the counters."""
    with scope_all(), connections["default"].cursor() as cursor:
        cursor.execute("select count(*) filter (where status = 10), count(*) from pgbroker.job")
        assert cursor.fetchone() == (count, count)
        cursor.execute(
            "select count(*) filter (where state = 1), count(distinct job_id), count(*) from pgbroker.execution"
        )
        assert cursor.fetchone() == (count, count, count)
        cursor.execute("select sum(done) from pgbroker.job_counter")
        assert cursor.fetchone() == (count,)
        cursor.execute("select count(*) from pgbroker.job_event where event = 10")
        assert cursor.fetchone() == (count,)

"""Schedules: ten thousand that are due at once, one after a stop of 90 days, many with nothing to do, and how late."""

from __future__ import annotations

import json
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any

from django.db import connection

from pgbroker import db, enqueue_many
from pgbroker.lifecycle.take_due import BEGINNING, take_due
from pgbroker.policy.cron import zones
from pgbroker.registry import Call
from pgbroker.runtime.scheduler import Scheduler, SchedulerOptions
from pgbroker.runtime.scheduling import LONGEST_WAIT
from pgbroker.schedules.decide import decide
from pgbroker.schedules.tick import PAGE, tick
from pgbroker.tenancy import scope_all
from testproject.bench import jobs, stage, worker
from testproject.bench.compare import figure, percentile, ratio, row, tell
from testproject.bench.conditions import versions
from testproject.bench.rows import Row, Scale

ZONE = "Africa/Johannesburg"
DAILY, EVERY_MINUTE, RARELY = "0 2 * * *", "* * * * *", "0 0 29 2 *"
# Somebody who enqueues one job after the other, for so long before, and how often.
BEFORE_SECONDS, EVERY_SECONDS = 3.0, 0.01
WARM_UP_SECONDS = 10.0
_STARTS = "select array_agg(distinct extract(epoch from created_at)::float8) from pgbroker.schedule_run"
_MAKE = """
insert into pgbroker.schedule (
    id, name, expression, time_zone, template, misfire, misfire_count, misfire_window_seconds, watermark, next_run_at,
    zone_rules
)
select
    pgbroker.uuid7_1(), 's' || n, %(expression)s, %(zone)s, %(template)s, %(misfire)s, %(most)s, %(window)s,
    statement_timestamp() + %(first)s - interval '1 minute', statement_timestamp() + %(first)s + n * %(apart)s,
    %(rules)s
from generate_series(1, %(count)s) as n
"""


def _make(
    count: int,
    expression: str = DAILY,
    *,
    first: timedelta = timedelta(0),
    apart: timedelta = timedelta(0),
    misfire: str = "run_once",
    most: int = 100,
    window: timedelta = timedelta(days=7),
    rules: str | None = None,
) -> None:
    """Make schedules whose next ticks come one after the other, the first so long from now."""
    args = {"v": 1, "args": [0, stage.DAY.isoformat()], "kwargs": {"note": stage.NOTE}}
    entry = {
        "job_type": jobs.noop_async.key,
        "queue": jobs.QUEUE,
        "priority": 0,
        "max_attempts": 5,
        "args": args,
    }
    with connection.cursor() as cursor:
        cursor.execute(
            _MAKE,
            {
                "count": count, "expression": expression, "zone": ZONE, "template": json.dumps({"jobs": [entry]}),
                "misfire": misfire, "most": most, "window": window.total_seconds(), "first": first, "apart": apart,
                "rules": zones.load(ZONE).fingerprint if rules is None else rules,
            },
        )  # fmt: skip
        cursor.execute("vacuum analyze pgbroker.schedule")


def _pass(session: db.Session) -> tuple[int, list[float]]:
    """Pass over everything that is due; returns how many occurrences, and the seconds of each page."""
    created, seconds, after = 0, [], BEGINNING
    while after is not None:
        began = time.perf_counter()
        page = tick(after=after, using=session)
        seconds.append(time.perf_counter() - began)
        created, after = created + page.created, page.after
    return created, seconds


def _ask(text: str) -> Any:
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchone()[0]


def _enqueue_until(ended: Callable[[], bool]) -> list[tuple[float, float]]:
    """Enqueue one job after the other; returns when each began, and how many seconds it took."""
    took: list[tuple[float, float]] = []
    while not ended():
        at, began = time.time(), time.perf_counter()
        jobs.beside.enqueue(0, stage.DAY, stage.NOTE)
        took.append((at, time.perf_counter() - began))
        time.sleep(EVERY_SECONDS)
    return took


def _thinking(count: int) -> float:
    """Return the seconds of CPU that decisions about so many schedules take."""
    session = db.Session("default", purpose="schedule")
    due = take_due(limit=PAGE, using=session)
    session.drop()
    began = time.process_time()
    for each in due:
        decide(each, limit=1)
    return (time.process_time() - began) * count / len(due)


def _due(scale: Scale) -> dict[str, Any]:
    """Create one occurrence of each of ten thousand schedules, and enqueue as many jobs in bulk."""
    count, rounds = scale.count(quick=10_000, full=10_000), scale.turns(quick=1, full=5)
    rates: list[float] = []
    bulk: list[float] = []
    slower: list[float] = []
    pages: list[float] = []
    shares: list[float] = []
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        stage.empty()
        calls = [Call(jobs.noop_async, (place, stage.DAY), {"note": stage.NOTE}) for place in range(count)]
        began = time.perf_counter()
        enqueue_many(calls)
        bulk.append(count / (time.perf_counter() - began))

        stage.empty()
        _make(count)
        thinking = _thinking(count)
        until = time.monotonic() + BEFORE_SECONDS
        before = [seconds for _, seconds in _enqueue_until(lambda until=until: time.monotonic() > until)]
        # A process of its own: what it takes of this one's time would not be the database's.
        child = worker.Child("testproject.demo.child", "broker_scheduler", "--once", BENCH_PGBROKER="{}")
        try:
            meanwhile = _enqueue_until(lambda child=child: child.process.poll() is not None)
            assert child.process.returncode == 0, child.said()
        finally:
            child.kill()
        # Each page is one transaction, whose rows have the instant at which it began.
        starts = sorted(float(each) for each in _ask(_STARTS))
        assert _ask("select count(*) from pgbroker.schedule_run where state = 'created'") == count
        gaps = [later - earlier for earlier, later in pairwise(starts)]
        rates.append(count * (len(starts) - 1) / len(starts) / (starts[-1] - starts[0]))
        pages += gaps
        shares.append(thinking / (count / rates[-1]))
        during = [seconds for at, seconds in meanwhile if starts[0] <= at <= starts[-1]]
        slower.append(percentile(during, 0.99) / percentile(before, 0.99))
    stage.empty()
    return row(
        percentile(rates, 0.5),
        "occurrences/s",
        [
            ratio("bulk enqueue of as many", rates, bulk, at_least=0.1),
            figure(
                "p99 of single enqueues meanwhile, in those of before", percentile(slower, 0.5), at_most=3
            ),
            figure(
                "seconds of the longest page, a transaction and the decisions for it", max(pages), at_most=2.5
            ),
            figure(
                "share of the time that the decisions take, most of it the calendar's",
                percentile(shares, 0.5),
            ),
        ],
        schedules=count,
        rounds=rounds,
        quick=scale.quick,
        versions=versions(),
    )


def _misfire(scale: Scale) -> dict[str, Any]:
    """Come back after 90 days, by each policy."""
    session = db.Session("default", purpose="schedule")
    ninety = timedelta(days=90)
    took: dict[str, float] = {}
    grown: dict[str, float] = {}
    for name, policy, wanted in (
        ("run_once", {"misfire": "run_once"}, range(1, 2)),
        ("skip", {"misfire": "skip"}, range(2)),
        ("catch_up", {"misfire": "catch_up"}, range(100, 101)),
        (
            "catch_up, 10,000 of them",
            {"misfire": "catch_up", "most": 10_000, "window": ninety},
            range(10_000, 10_001),
        ),
    ):
        tell(name)
        stage.empty()
        _make(1, EVERY_MINUTE, first=-ninety, rules="", **policy)  # type: ignore[arg-type]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        created, _ = _pass(session)
        took[name] = time.perf_counter() - began
        grown[name] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert created in wanted, (name, created)
        latest = _ask(
            "select count(distinct scheduled_for) from pgbroker.schedule_run where state = 'created'"
        )
        assert latest == created
        with suppress(ZeroDivisionError):
            span = _ask(
                "select extract(epoch from max(scheduled_for) - min(scheduled_for)) / 60 from pgbroker.schedule_run "
                "where state = 'created'"
            )
            # The latest ones, without a gap.
            assert created == 0 or span == created - 1, (name, span)
    session.drop()
    stage.empty()
    return row(
        took["run_once"],
        "s",
        [
            *(figure(f"seconds: {name}", took[name], at_most=2) for name in ("run_once", "skip", "catch_up")),
            figure("MiB that the process grew at most", max(grown.values()), at_most=20),
            figure("seconds: catch_up, 10,000 of them", took["catch_up, 10,000 of them"]),
        ],
        quick=scale.quick,
        versions=versions(),
    )


def _idle(scale: Scale) -> dict[str, Any]:
    """Count what a scheduler asks while nothing is due, of ten thousand schedules."""
    seconds = float(scale.count(quick=30, full=180))
    stage.empty()
    _make(10_000, first=timedelta(days=1))
    sent: Counter[str] = Counter()

    def count(moment: str, name: str) -> None:
        if moment == "before":
            sent[name] += 1

    scheduler = Scheduler(SchedulerOptions())
    running = threading.Thread(target=scheduler.run, daemon=True)
    connection.close()
    running.start()
    try:
        time.sleep(WARM_UP_SECONDS)
        db.fault = count
        time.sleep(seconds)
    finally:
        db.fault = None
        scheduler.stop()
        running.join()
    stage.empty()
    of_schedules = {"take_due", "next_schedule", "list_zones", "dispatch"}
    # Of the two leases one is that of the upkeep, which a worker has as well.
    alone = (
        sum(number for name, number in sent.items() if name in of_schedules) + sent["lead"] / 2
    ) / seconds
    return row(
        alone,
        "statements/s",
        [
            figure("the loop of the schedules, with its lease", alone, at_most=1),
            figure(
                "all of the process, with the upkeep that it hosts as a worker does", sent.total() / seconds
            ),
        ],
        statements={name: round(number / seconds, 3) for name, number in sent.most_common()},
        schedules=10_000,
        seconds=seconds,
        quick=scale.quick,
        versions=versions(),
    )


def _lateness(scale: Scale) -> dict[str, Any]:
    """Let ticks come for a minute, ten a second, to a scheduler that is a process of its own."""
    count = scale.count(quick=200, full=600)
    stage.empty()
    child = worker.Child("testproject.demo.child", "broker_scheduler", BENCH_PGBROKER="{}")
    try:
        worker.wait_until(
            lambda: _ask("select exists (select from pgbroker.leader where duty = 'scheduler')"), [child]
        )
        # Later than the next look of a scheduler that had nothing to do: what is measured is how it goes on.
        _make(
            count,
            RARELY,
            first=timedelta(seconds=LONGEST_WAIT + 1),
            apart=timedelta(milliseconds=100),
        )
        worker.wait_until(
            lambda: _ask("select count(*) from pgbroker.schedule_run") >= count, [child], pause_seconds=1.0
        )
        child.stop()
    finally:
        child.kill()
    late = [
        float(each)
        for each in _ask(
            "select array_agg(lateness_seconds) from pgbroker.schedule_run where state = 'created'"
        )
    ]
    assert len(late) == count
    stage.empty()
    return row(
        percentile(late, 0.99),
        "s",
        [
            figure("p99 from the tick to its job", percentile(late, 0.99), at_most=1),
            figure("p50", percentile(late, 0.5)),
            figure("the latest", max(late)),
        ],
        ticks=count,
        quick=scale.quick,
        versions=versions(),
    )


ROWS = [
    Row(
        name="due-10k",
        what="occurrences a second of ten thousand schedules that are due at once, beside a bulk enqueue of as many",
        measure=_due,
    ),
    Row(
        name="misfire-90d",
        what="the pass over a schedule by the minute that nobody looked at for 90 days, by each misfire policy",
        measure=_misfire,
    ),
    Row(
        name="idle-schedules",
        what="statements that a scheduler with ten thousand schedules sends in a second while none is due",
        measure=_idle,
    ),
    Row(
        name="lateness",
        what="seconds from a tick to the creation of its job, at ten ticks a second",
        measure=_lateness,
    ),
]

"""Jobs that wait for others: at the head of a queue, many for one, one for many, in a chain, and when it goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection

from pgbroker import DeferredRef, enqueue_many
from pgbroker.ids import new_id
from pgbroker.registry import Call, JobTask
from pgbroker.tenancy import scope_all
from testproject.bench import claim_clock, jobs, pickup, ran, stage, worker
from testproject.bench.compare import figure, percentile, ratio, row, tell
from testproject.bench.conditions import versions
from testproject.bench.rows import Row, Scale

CHUNK = 10_000
LAYER = 100
# Claims beside a cascade: so many before it, and how often.
BESIDE_SECONDS, BESIDE_EVERY = 5.0, 0.01


def _call(number: int, task: JobTask[Any, Any] = jobs.noop_async) -> Call:
    return task.bind(number, stage.DAY, note=stage.NOTE)


def _ids(calls: Sequence[Call]) -> list[UUID]:
    """Enqueue calls and return the ids of their jobs; all of them must be made."""
    answers = enqueue_many(calls)
    assert all(answer.outcome == "created" for answer in answers), answers[0]
    return [answer.job_id for answer in answers if answer.job_id is not None]


def _bulk_rate(count: int, make: Callable[[], Sequence[Call]]) -> float:
    """Return how many calls a second `enqueue_many` takes; what they are made from is in no figure."""
    calls = make()
    began = time.perf_counter()
    _ids(calls)
    return count / (time.perf_counter() - began)


def _ask(text: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...]:
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(text, list(parameters))
        answer: tuple[Any, ...] = cursor.fetchone()
    return answer


def _none_waits() -> bool:
    return not _ask("select exists (select from pgbroker.job where status = 1 /* waiting */)")[0]


@contextmanager
def _clocks(*statements: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """Time statements of the workers that are started with this environment."""
    directory = stage.directory() / f"clocks-{new_id()}"
    directory.mkdir()
    yield directory, {claim_clock.VARIABLE: str(directory), claim_clock.STATEMENTS: ",".join(statements)}


def _blocked_head(scale: Scale) -> dict[str, Any]:
    """Drain what is runnable, alone and behind ten times as many jobs that are not."""
    count, rounds = scale.count(quick=4_000, full=10_000), scale.turns(quick=3, full=5)
    held = 10 * count
    rates: dict[str, list[float]] = {"alone": [], "behind": []}
    for number in range(rounds):
        for name, so_many in (("alone", 0), ("behind", held)):
            tell(f"round {number + 1} of {rounds}: {name}")
            stage.empty()
            if so_many:
                _hold(so_many)
            stage.fill(jobs.noop_async, count)
            look = stage.notes(count)
            rates[name].append(count / worker.drain(1, look, "--concurrency=8"))
            look.prove_once()
            assert _ask("select count(*) from pgbroker.job where status in (1, 5)") == (
                so_many and so_many + 1,
            )
    stage.empty()
    return _said(
        scale,
        count,
        rounds,
        percentile(rates["behind"], 0.5),
        "jobs/s",
        [ratio("the same without them", rates["behind"], rates["alone"], at_least=0.95)],
        held=held,
    )


def _hold(count: int) -> None:
    """Make jobs that nobody can run, half of them waiting and half of them blocked, in the queue that is measured."""
    # One waits for what never comes, the other has gone wrong.
    never = jobs.noop_async.options(depends_on=[DeferredRef("never", within=timedelta(days=1))])
    alive, gone = _ids([_call(0, never), _call(0)])
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(
            "update pgbroker.job set status = 13, finished_at = statement_timestamp() where id = %s", [gone]
        )
    for prerequisite, on_failure in ((alive, "cancel"), (gone, "block")):
        task = jobs.noop_async.options(depends_on=[prerequisite], on_failure=on_failure)
        for first in range(0, count // 2, CHUNK):
            _ids([_call(number, task) for number in range(first, min(first + CHUNK, count // 2))])


def _fan_in(scale: Scale) -> dict[str, Any]:
    """Drain jobs by four processes, and the same for which one more job waits."""
    count, rounds = scale.count(quick=4_000, full=10_000), scale.turns(quick=3, full=5)
    rates: dict[str, list[float]] = {"plain": [], "awaited": []}
    gaps: list[float] = []
    for number in range(rounds):
        for name in rates:
            tell(f"round {number + 1} of {rounds}: {name}")
            stage.empty()
            stage.fill(jobs.noop_async, count)
            with scope_all(), connection.cursor() as cursor:
                cursor.execute("select id from pgbroker.job")
                parents = [job_id for (job_id,) in cursor.fetchall()]
            if name == "awaited":
                (child,) = _ids([_call(count, jobs.noop_async.options(depends_on=parents))])
            look = stage.notes(count + (name == "awaited"))
            worker.drain(4, look, "--concurrency=8")
            look.prove_once()
            (seconds,) = _ask(
                "select extract(epoch from max(job.finished_at) - min(execution.started_at))::float8 from pgbroker.job "
                "join pgbroker.execution on execution.job_id = job.id where job.id = any (%s)",
                [parents],
            )
            rates[name].append(count / seconds)
            if name == "awaited":
                (gap,) = _ask(
                    "select extract(epoch from (select ready_at from pgbroker.job where id = %s) - max(finished_at)) "
                    "::float8 from pgbroker.job where id = any (%s)",
                    [child, parents],
                )
                # A plain batch of 500 jobs, by the rate of this round.
                gaps.append(gap / (500 / rates["plain"][-1]))
    stage.empty()
    return _said(
        scale,
        count,
        rounds,
        percentile(rates["awaited"], 0.5),
        "jobs/s",
        [
            ratio("jobs that nobody waits for", rates["awaited"], rates["plain"], at_least=0.7),
            figure("plain settle batches from the last parent to the child's ready", max(gaps), at_most=20),
        ],
    )


def _fan_out(scale: Scale) -> dict[str, Any]:
    """Let one job free ten thousand."""
    count, rounds = scale.count(quick=10_000, full=10_000), scale.turns(quick=3, full=5)
    freed, bulk, longest = [], [], []
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        stage.empty()
        bulk.append(_bulk_rate(count, lambda: [_call(place) for place in range(count)]))
        with _clocks("settle") as (plain, environment):
            look = stage.notes(count)
            worker.drain(1, look, "--concurrency=8", **environment)
            batch = percentile(claim_clock.read(plain, statement="settle"), 0.5)
        stage.empty()
        (head,) = _ids([_call(0)])
        # In a queue that no worker serves: they are freed, and stay.
        task = jobs.noop_async.using(queue_name="default").options(depends_on=[head])
        _ids([_call(place, task) for place in range(count)])
        stage.settle_down()
        with _clocks("settle", "resolve") as (directory, environment):
            with worker.workers(1, "--concurrency=8", **environment) as running:
                worker.wait_until(_none_waits, running, pause_seconds=0.005)
                (seconds,) = _ask(
                    "select extract(epoch from clock_timestamp() - finished_at)::float8 from pgbroker.job "
                    "where id = %s",
                    [head],
                )
            slow = [max(claim_clock.read(directory, statement=name)) for name in ("settle", "resolve")]
        freed.append(count / seconds)
        longest.append(max(slow) / batch)
    stage.empty()
    return _said(
        scale,
        count,
        rounds,
        percentile(freed, 0.5),
        "jobs/s",
        [
            ratio("bulk enqueue of as many", freed, bulk, at_least=0.5),
            figure("plain settle batches that the longest statement takes", max(longest), at_most=50),
        ],
    )


def _chain(scale: Scale) -> dict[str, Any]:
    """Run a chain link by link, and enqueue it in one call."""
    count, rounds = scale.count(quick=1_000, full=5_000), scale.turns(quick=3, full=5)
    links, waits, chained, bulk = [], [], [], []
    pickups = 100
    # What a connection does for the first time it has to plan.
    for calls in ([_call(0), _call(1)], list(_links(2))):
        _ids(calls)
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        stage.empty()
        bulk.append(_bulk_rate(count, lambda: [_call(place) for place in range(count)]))
        stage.empty()
        stamps = ran.Stamps.make(stage.directory() / f"stamps-{new_id()}", pickups)
        with worker.workers(1, "--concurrency=8", BENCH_STAMPS=str(stamps.path)) as running:
            each = pickup.waits(pickup.enqueue, stamps, range(pickups), running)
        waits.append(percentile(each, 0.5))
        stage.empty()
        chained.append(_bulk_rate(count, lambda: list(_links(count))))
        stage.settle_down()
        look = stage.notes(count)
        links.append(1000 * worker.drain(1, look, "--concurrency=8") / count)
        look.prove_once()
        stage.prove_completed(count)
    stage.empty()
    return _said(
        scale,
        count,
        rounds,
        percentile(links, 0.5),
        "ms a link",
        [
            ratio("p50 of the idle pickup of one job", links, waits, at_most=3.0),
            ratio("bulk enqueue of as many, to enqueue it", chained, bulk, at_least=0.5),
        ],
    )


def _links(count: int) -> Iterator[Call]:
    before = None
    for number in range(count):
        task = jobs.noop_async if before is None else jobs.noop_async.options(depends_on=[before])
        before = _call(number, task)
        yield before


def _layers(count: int) -> Iterator[Call]:
    """Make a graph of one head and layers under it, whose jobs wait for two of the layer above."""
    above: list[Call] = [_call(0, jobs.give_up)]
    yield above[0]
    for first in range(1, count, LAYER):
        layer = []
        for number in range(first, min(first + LAYER, count)):
            two = dict.fromkeys((number % len(above), (7 * number + 3) % len(above)))
            layer.append(_call(number, jobs.noop_async.options(depends_on=[above[each] for each in two])))
        yield from layer
        above = layer


def _cascade(scale: Scale) -> dict[str, Any]:
    """Let the head of a graph fail, while another queue is worked off."""
    count, rounds = scale.count(quick=4_000, full=10_000), scale.turns(quick=3, full=5)
    fallen, plain, before, during = [], [], [], []
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}: plain")
        stage.empty()
        stage.fill(jobs.noop_async, count)
        look = stage.notes(count)
        plain.append(count / worker.drain(1, look, "--concurrency=8"))
        tell(f"round {number + 1} of {rounds}: cascade")
        stage.empty()
        _ids(list(_layers(count)))
        stage.settle_down()
        with _clocks("claim") as (directory, environment), _beside(environment) as other:
            time.sleep(BESIDE_SECONDS)
            began = time.monotonic()
            with worker.workers(1, "--concurrency=8") as running:
                worker.wait_until(_none_waits, [*running, other], pause_seconds=0.05)
                ended = time.monotonic()
                (seconds,) = _ask(
                    "select extract(epoch from clock_timestamp() - min(finished_at))::float8 from pgbroker.job "
                    "where status = 11"
                )
            claims = claim_clock.timed(directory)
        fallen.append((count - 1) / seconds)
        before.append(percentile([took for at, took in claims if at < began], 0.99))
        during.append(percentile([took for at, took in claims if ended - seconds <= at <= ended], 0.99))
        assert _ask(
            "select count(*), count(*) filter (where state.cause_id is not null) from pgbroker.job "
            "join pgbroker.job_state as state on state.job_id = job.id where job.status = 13"
        ) == (count - 1, count - 1)
    stage.empty()
    return _said(
        scale,
        count,
        rounds,
        percentile(fallen, 0.5),
        "jobs/s",
        [
            ratio("plain jobs settled", fallen, plain, at_least=0.25),
            ratio("p99 of another queue's claims, before", during, before, at_most=3.0),
        ],
    )


@contextmanager
def _beside(environment: dict[str, str]) -> Iterator[worker.Child]:
    """Keep another queue busy, one small job after another."""
    stop = threading.Event()

    def keep_on() -> None:
        try:
            number = 0
            while not stop.wait(BESIDE_EVERY):
                jobs.beside.enqueue(number, stage.DAY, note=stage.NOTE)
                number += 1
        finally:
            connection.close()

    other = worker.start_worker("--concurrency=2", queues="beside", **environment)
    thread = threading.Thread(target=keep_on, daemon=True)
    thread.start()
    try:
        worker.wait_until(lambda: worker.registered() >= 1, [other])
        yield other
        stop.set()
        thread.join()
        other.stop()
    finally:
        stop.set()
        thread.join()
        other.kill()


def _said(
    scale: Scale, count: int, rounds: int, value: float, unit: str, parts: list[dict[str, Any]], **more: Any
) -> dict[str, Any]:
    return row(value, unit, parts, jobs=count, rounds=rounds, quick=scale.quick, versions=versions(), **more)


ROWS = [
    Row(
        name="blocked-head",
        what="jobs are drained behind ten times as many, older ones that wait or are blocked",
        measure=_blocked_head,
    ),
    Row(name="fan-in", what="four processes drain jobs for all of which one more waits", measure=_fan_in),
    Row(name="fan-out", what="one job ends, for which ten thousand wait", measure=_fan_out),
    Row(name="chain", what="a chain of jobs is enqueued in one call and runs link by link", measure=_chain),
    Row(
        name="cascade",
        what="the head of a graph of jobs fails and takes the others along, while another queue is worked off",
        measure=_cascade,
    ),
]

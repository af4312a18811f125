"""A worker that other code starts and stops, in a process of its own affairs."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from docs.generated import DOCS
from pgbroker import JobContext, enqueue_many, job
from pgbroker.errors import AlreadyStarted, DatabaseUnreachable, InvalidOption, UnknownQueue, WorkerNameTaken
from pgbroker.models import Execution, Job, Worker
from pgbroker.runtime.health import Health
from pgbroker.states import AttemptState, Status
from pgbroker.worker import BackgroundWorker, WorkerOptions
from tests.docs.walkthrough import blocks
from tests.support.jobs import attempt_states, status
from tests.support.scraping import get
from tests.support.sessions import second_session

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_process_types")]

QUEUE = "in-code"
PATIENCE_SECONDS = 60.0
OPTIONS = WorkerOptions(queues=(QUEUE,), concurrency=2, poll_interval=0.2, lease_seconds=30)
threads_of_handlers: list[str] = []


@job(name="tests.in_code.note", queue_name=QUEUE)
def note(text: str) -> str:
    logging.getLogger("shop").warning("noted %s", text)
    threads_of_handlers.append(threading.current_thread().name)
    return text


@job(name="tests.in_code.wait", queue_name=QUEUE, takes_context=True)
def wait_to_be_stopped(context: JobContext) -> None:
    context.wait(60)
    context.raise_if_cancelled()


is_open = threading.Event()


@job(name="tests.in_code.wait_here", queue_name=QUEUE)
def wait_here() -> None:
    assert is_open.wait(PATIENCE_SECONDS)


def until(done: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, (what, jobs_left())
        time.sleep(0.01)


def jobs_left() -> list[dict[str, Any]]:
    """Tell where jobs stand, for whoever reads a failure."""
    names = ("id", "status", "attempt_count", "worker_id", "leased_at", "lease_expires_at", "available_at")
    return list(Job.objects.exclude(status=Status.COMPLETED).values(*names))


def completed(job_id: object) -> Callable[[], bool]:
    return lambda: status(job_id) == Status.COMPLETED


def loops() -> set[str]:
    """Name the threads of workers that live, handlers' idle ones aside."""
    return {
        each.name
        for each in threading.enumerate()
        if each.name.startswith("pgbroker-")
        # Neither what belongs to the process.
        and not each.name.startswith(("pgbroker-slot", "pgbroker-wakeups", "pgbroker-removals"))
    }


def test_it_runs_jobs_between_start_and_stop_and_leaves_nothing_behind():
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    logs = list(logging.getLogger().handlers)

    with BackgroundWorker(OPTIONS) as worker:
        assert worker.ready().holds or worker.live().holds
        first = note.enqueue("a").id
        until(completed(first), "it ran")
    later = note.enqueue("b").id

    assert worker.exit_code == 0
    assert not worker.is_running
    assert status(later) == Status.READY
    assert threads_of_handlers[-1].startswith("pgbroker-slot")
    assert loops() == set()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert logging.getLogger().handlers == logs
    (row,) = Worker.objects.all()
    assert row.stopped_at is not None


def test_no_end_wakes_the_claimer_while_what_it_holds_runs_out():
    """With many threads each turn of it takes the interpreter's lock from a handler."""
    is_open.clear()
    with BackgroundWorker(replace(OPTIONS, concurrency=1)) as background:
        worker = background.worker
        assert worker is not None
        # Until the worker knows the type to be quick it holds none.
        enqueue_many([note.bind(str(n)) for n in range(50)])
        until(lambda: not jobs_left(), "they ran")
        enqueue_many([wait_here.bind(), *(note.bind(str(n)) for n in range(20))])

        until(lambda: worker.board.held and worker.board.low_water == 0, "the claimer waits for an idle slot")

        assert worker.board.idle == 0
        is_open.set()
        until(lambda: not jobs_left(), "all of them ran")


def test_a_second_start_is_refused_and_a_start_after_a_stop_is_a_new_worker():
    worker = BackgroundWorker(OPTIONS)
    with worker:
        with pytest.raises(AlreadyStarted):
            worker.start()
        assert worker.is_running
    worker.start()
    try:
        done = note.enqueue("again").id
        until(completed(done), "it ran")
    finally:
        assert worker.stop() == 0
        assert worker.stop() == 0

    assert Worker.objects.count() == 2


def test_two_in_one_process_share_the_work_and_keep_each_line_of_a_handler_once():
    with BackgroundWorker(OPTIONS), BackgroundWorker(OPTIONS):
        ids = [note.enqueue(f"n{number}").id for number in range(20)]
        for each in ids:
            until(completed(each), "it ran")

    tails = [each.log_tail for each in Execution.objects.all()]
    assert len(tails) == 20
    assert {tail.count("noted") for tail in tails} == {1}


def test_what_keeps_it_from_starting_is_raised_and_it_may_be_started_later():
    wanted = connections["default"].settings_dict
    worker = BackgroundWorker(OPTIONS)
    host, wanted["HOST"] = wanted["HOST"], "/nowhere"
    try:
        with pytest.raises(DatabaseUnreachable):
            worker.start()
    finally:
        wanted["HOST"] = host
    assert loops() == set()
    assert not worker.live().holds

    with worker:
        assert worker.live().holds


def test_a_queue_that_nobody_declared_and_slots_that_are_none_are_refused():
    with pytest.raises(UnknownQueue, match="in-cod"):
        BackgroundWorker(WorkerOptions(queues=("in-cod",))).start()
    with pytest.raises(InvalidOption, match="concurrency"):
        BackgroundWorker(WorkerOptions(concurrency=0))


def test_a_name_of_its_own_keeps_a_second_one_out_and_is_free_after_a_stop():
    named = WorkerOptions(queues=(QUEUE,), name="importer", lease_seconds=9)
    with BackgroundWorker(named), pytest.raises(WorkerNameTaken, match="importer"):
        BackgroundWorker(named).start()
    with BackgroundWorker(named) as again:
        assert again.is_running


def test_the_callers_transaction_is_its_own():
    with transaction.atomic():
        with BackgroundWorker(OPTIONS):
            held = note.enqueue("not committed yet").id
            assert not connections["default"].needs_rollback
        assert status(held) == Status.READY
    with BackgroundWorker(OPTIONS):
        until(completed(held), "it ran once it was committed")


def test_a_stop_hands_back_what_does_not_end_in_time():
    worker = BackgroundWorker(OPTIONS).start()
    running = wait_to_be_stopped.enqueue().id
    until(lambda: worker.worker.board.running == 1, "it runs")
    began = time.monotonic()

    code = worker.stop(timeout=0.2)

    assert code == 0
    assert time.monotonic() - began < 10
    assert status(running) == Status.READY
    assert attempt_states(running) == [AttemptState.RELEASED]


def test_an_event_loop_is_not_held_up_by_start_and_stop():
    async def lifespan() -> tuple[str, int]:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.005)
                turns += 1

        counting = asyncio.create_task(count())
        async with BackgroundWorker(OPTIONS):
            result = await note.aenqueue("async")
            while not await asyncio.to_thread(_close_after, completed(result.id)):
                await asyncio.sleep(0.01)
        counting.cancel()
        # Django's thread for async callers keeps its connection, and the database could not be dropped.
        await sync_to_async(connections.close_all)()
        return result.id, turns

    job_id, turns = asyncio.run(lifespan())

    assert status(job_id) == Status.COMPLETED
    assert turns > 10


def test_the_guides_application_is_a_worker_from_startup_to_shutdown():
    (block,) = (
        each.body
        for each in blocks(DOCS / "howto" / "run-a-worker-from-code.md")
        if "async def application(" in each.body
    )
    names: dict[str, Any] = {}
    exec(compile(block, "run-a-worker-from-code.md", "exec"), names)  # noqa: S102 - our own page
    done = note.enqueue("lifespan").id

    async def serve() -> list[str]:
        coming, sent = asyncio.Queue(), []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message["type"])

        serving = asyncio.create_task(names["application"]({"type": "lifespan"}, coming.get, send))
        await coming.put({"type": "lifespan.startup"})
        while not await asyncio.to_thread(_close_after, completed(done)):
            await asyncio.sleep(0.01)
        await coming.put({"type": "lifespan.shutdown"})
        await serving
        return sent

    assert asyncio.run(serve()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert loops() == set()


def _close_after(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    finally:
        connections.close_all()


def test_its_port_answers_while_it_runs():
    worker = BackgroundWorker(WorkerOptions(queues=(QUEUE,), metrics_port=0))
    with worker:
        assert worker.port is not None
        url = worker.port.url
        answers = [get(f"{url}{path}").status for path in ("/healthz", "/metrics")]

    assert answers == [200, 200]
    with pytest.raises(OSError, match="refused"):
        get(f"{url}/healthz")


def test_liveness_is_the_turn_of_the_claim_loop_and_not_a_beating_heart():
    # Its heart beats every two seconds.
    with BackgroundWorker(replace(OPTIONS, lease_seconds=6)) as background:
        worker = background.worker
        health = Health(worker, stuck_seconds=0.5)
        until(lambda: health.ready().holds, "it is ready")
        with second_session() as session, session.transaction():
            session.execute("lock table pgbroker.job in access exclusive mode")
            beaten_at = worker.heartbeats.renewed_at
            until(lambda: not health.live().holds, "the claim loop is stuck")
            until(lambda: worker.heartbeats.renewed_at > beaten_at, "the heart beats")
            stuck, unready = health.live(), health.ready()
        until(lambda: health.ready().holds, "it turns again")

    assert stuck.reason.startswith("the claim loop has not turned for ")
    assert not unready.holds

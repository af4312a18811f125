"""Drain: stop claiming, hand back what is held, let what runs finish, settle, and say goodbye."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg

from pgbroker import telemetry
from pgbroker.db import Session
from pgbroker.runtime.heartbeats import goodbye
from pgbroker.runtime.service import CONNECTION_TROUBLE

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker

# How long the last outcomes may take to be written once all handlers are done.
SETTLE_SECONDS = 10.0
# How long handlers that were released and told to stop may take to clean up.
LEAVE_SECONDS = 2.0
# How long bodies of results that were refused may take to be removed.
LEFTOVER_SECONDS = 5.0
STEP_SECONDS = 0.02


def drain(worker: "Worker") -> None:
    """
    End a worker in good order; returns when everything is settled or handed back.

    What still runs after `SHUTDOWN_TIMEOUT_SECONDS` is killed (child processes), cancelled (async) or given up
    (threads) and released unharmed: it starts elsewhere at once, and what it reports here is refused. Heartbeats go
    on to the end.
    """
    worker.draining = True
    telemetry.emit(
        "worker.draining", worker_id=worker.id, running=worker.board.running, held=worker.board.held
    )
    for name in ("claim", "listen", "upkeep", "schedule"):
        if name in worker.services:
            worker.services[name].stop()
    _tell_handlers(worker)
    _join(worker, "claim", 10.0)
    session = worker.sessions.last(worker.alias)
    _join(worker, "upkeep", 5.0)
    if not worker.services["upkeep"].is_alive():
        _try(lambda: worker.upkeep.leader.resign(using=session), session)
    if (scheduling := worker.scheduling) is not None:
        _join(worker, "schedule", 5.0)
        if not worker.services["schedule"].is_alive():
            _try(lambda: scheduling.leader.resign(using=session), session)
    worker.board.close()
    worker.executors.processes.recall()
    # Those too that the last claim brought.
    _tell_handlers(worker)
    _try(lambda: worker.release(worker.board.take_back_waiting(), code="drain", using=session), session)
    _wait(lambda: worker.board.running == 0, worker.settings.SHUTDOWN_TIMEOUT_SECONDS)
    _release_what_runs(worker, session)
    _wait(lambda: worker.settler.backlog == 0, SETTLE_SECONDS)
    worker.sessions.stop_waiting()
    for name in ("settle", "heartbeat", "watchdog"):
        worker.services[name].stop()
    for name in ("settle", "heartbeat", "listen"):
        _join(worker, name, 5.0)
    worker.leftovers.end(LEFTOVER_SECONDS)
    worker.left_running = worker.board.running + worker.board.stuck + worker.executors.strays
    worker.executors.stop()
    _try(lambda: goodbye(worker, session), session)
    if (exclusive := worker.exclusive) is not None:
        _try(lambda: exclusive.give_back(session), session)
    session.drop()


def _tell_handlers(worker: "Worker") -> None:
    worker.executors.tell_shutting_down(worker.board.attempts())


def _release_what_runs(worker: "Worker", session: Session) -> None:
    worker.executors.processes.end_all()
    left = [attempt for attempt in worker.board.attempts() if attempt.is_open]
    if not left:
        return
    _try(lambda: worker.release(left, code="shutdown", using=session), session)
    for attempt in left:
        worker.stop_attempt(attempt, "shutdown")
    _wait(lambda: worker.board.running == 0, LEAVE_SECONDS)
    for attempt in left:
        if not attempt.returned:
            telemetry.emit("attempt.abandoned", **worker.keys(attempt.lease))


def _join(worker: "Worker", name: str, seconds: float) -> None:
    service = worker.services[name]
    if service.is_alive():
        service.join(seconds)


def _wait(done: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(STEP_SECONDS)


def _try(act: Callable[[], None], session: Session) -> None:
    """Do what needs the database twice at most: without it the lease's end does the same, later."""
    for _ in range(2):
        try:
            act()
        except CONNECTION_TROUBLE:
            session.drop()
        except psycopg.Error as error:
            telemetry.emit(
                "worker.loop_failed", loop="drain", error_code=type(error).__name__, exception=error
            )
            session.drop()
            return
        else:
            return

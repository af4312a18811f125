"""The parts of a worker by themselves: the board's accounts, the loop's policy, the gate, the watchdog's heap."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from uuid import UUID

import psycopg
import pytest

from pgbroker.conf import Settings
from pgbroker.ids import new_id
from pgbroker.lease import Lease
from pgbroker.policy.prefetch import Pace
from pgbroker.registry import lookup
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.board import Board
from pgbroker.runtime.connecting import ConnectGate
from pgbroker.runtime.log_tail import log_tail
from pgbroker.runtime.service import FATAL_AFTER, Service
from pgbroker.runtime.settler import LONGEST_REST_SECONDS
from pgbroker.runtime.supervisor import Worker, WorkerOptions
from pgbroker.runtime.watchdog import TIDY_FROM
from pgbroker.states import AttemptState
from tests.runtime import handlers

SETTINGS = Settings()
NOW = datetime(2026, 11, 29, tzinfo=UTC)


def attempt(
    *, crash_count: int = 0, max_attempts: int = 5, timeout: float | None = None, **fields
) -> Attempt:
    lease = Lease(
        job_id=new_id(),
        lease_token=1,
        worker_id=UUID(int=1),
        queue_id=1,
        job_type_id=1,
        type_version=1,
        tenant_id="acme",
        priority=0,
        attempt_count=1,
        max_attempts=max_attempts,
        declared_attempts=max_attempts,
        crash_count=crash_count,
        ready_at=NOW,
        leased_at=NOW,
        deadline_at=None,
        created_at=NOW,
        stored_args='{"v": 1, "args": [1], "kwargs": {}}',
        options={"timeout": timeout} if timeout else None,
        principal=None,
        correlation_id=None,
        traceparent=None,
        args_body=None,
        tags=None,
    )
    return Attempt(lease._replace(**fields), lookup(handlers.nothing.key), time.monotonic(), SETTINGS)


# ------------------------------------------------------------------ the board


@pytest.mark.parametrize("order", list(permutations(["returns", "given up"])), ids=" then ".join)
def test_a_handler_that_returns_in_the_moment_it_is_given_up_frees_one_slot(order):
    board = Board(1)
    first, second, third = attempt(), attempt(), attempt()
    board.add([first, second, third])
    act = {"returns": lambda: board.next_after(first), "given up": lambda: board.abandon(first)}

    followers = [act[what]() for what in order]

    assert [each for each in followers if each is not None] == [second]
    assert (board.running, board.held, board.stuck, board.idle) == (1, 1, 0, 0)
    assert board.next_after(second) is third
    assert board.next_after(third) is None
    assert (board.running, board.held, board.stuck, board.idle) == (0, 0, 0, 1)


def test_a_stuck_handler_counts_until_it_comes_back():
    board = Board(2)
    first, second = attempt(), attempt()
    board.add([first, second])

    board.abandon(first)
    assert (board.running, board.stuck, board.idle) == (1, 1, 1)
    assert board.abandon(first) is None

    assert board.next_after(first) is None
    assert (board.running, board.stuck, board.idle) == (1, 0, 1)


def test_fragile_attempts_start_before_those_that_may_be_held():
    board = Board(2)
    sound, fragile, last = attempt(), attempt(crash_count=1), attempt(max_attempts=1)

    starting = board.add([sound, fragile, last])

    assert sound not in starting
    assert (board.running, board.held) == (2, 1)


def test_an_attempt_that_was_taken_back_is_settled_without_touching_its_successor():
    board = Board(2)
    lost = attempt()
    again = Attempt(lost.lease._replace(lease_token=2), lost.job_type, lost.claimed_at, SETTINGS)
    board.add([lost])
    board.add([again])

    board.settled([lost])

    assert board.find(again.lease.job_id, 2) is again
    assert board.find(again.lease.job_id, 1) is None


def test_a_closed_board_starts_nothing_more():
    board = Board(1)
    first, second = attempt(), attempt()
    board.add([first, second])
    board.close()

    assert board.next_after(first) is None
    assert board.take_back_waiting() == [second]
    assert board.add([attempt()]) == []


# ------------------------------------------------------------------ the loop


def run_service(step, **options) -> Service:
    service = Service("test", step, **options)
    service.start()
    return service


def test_a_loop_whose_step_always_fails_is_fatal_after_a_few_tries():
    fatal: list[BaseException] = []

    def step() -> float:
        raise ZeroDivisionError

    service = run_service(step, on_fatal=fatal.append, longest_wait=0.01)
    service.join(5)

    assert not service.is_alive()
    assert [type(error) for error in fatal] == [ZeroDivisionError]


def test_a_loop_never_ends_without_a_word():
    fatal: list[BaseException] = []

    def step() -> float:
        raise SystemExit(3)

    service = run_service(step, on_fatal=fatal.append)
    service.join(5)

    assert [type(error) for error in fatal] == [SystemExit]


@pytest.mark.parametrize(("error", "vital"), [(psycopg.OperationalError, True), (ZeroDivisionError, False)])
def test_a_lost_connection_and_a_loop_that_is_not_vital_are_tried_for_ever(error, vital):
    tried, troubles = [], []

    def step() -> float:
        tried.append(1)
        if len(tried) > 3 * FATAL_AFTER:
            service.stop()
            return 0.0
        raise error

    service = Service(
        "test",
        step,
        vital=vital,
        longest_wait=0.005,
        on_trouble=lambda: troubles.append(1),
        on_fatal=pytest.fail,
    )
    service.start()
    service.join(10)

    assert len(tried) == 3 * FATAL_AFTER + 1
    assert len(troubles) == 3 * FATAL_AFTER


def test_a_wake_up_before_the_wait_is_not_lost():
    steps = []

    def step() -> float:
        steps.append(time.monotonic())
        if len(steps) == 1:
            service.wake()
            return 60.0
        service.stop()
        return 60.0

    service = Service("test", step)
    service.start()
    service.join(5)

    assert len(steps) == 2


# ------------------------------------------------------------------ the gate


def test_b123_many_loops_that_cannot_connect_try_as_often_as_one_would():
    gate, tries, over = ConnectGate(), [], threading.Event()

    def loop() -> None:
        while not over.is_set():
            try:
                with gate.passing():
                    if over.is_set():
                        return
                    tries.append(time.monotonic())
                    raise psycopg.OperationalError("too many connections")
            except psycopg.OperationalError:
                pass

    threads = [threading.Thread(target=loop) for _ in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    over.set()
    gate.stop_waiting()
    for thread in threads:
        thread.join(5)

    assert 3 <= len(tries) <= 8


def test_whoever_gets_through_opens_the_gate_for_all():
    gate = ConnectGate()
    for _ in range(3):
        with pytest.raises(psycopg.OperationalError), gate.passing():
            raise psycopg.OperationalError
    with gate.passing():
        pass

    began = time.monotonic()
    for _ in range(5):
        with gate.passing():
            pass

    assert time.monotonic() - began < 0.05


# ------------------------------------------------------------------ the rest


def test_the_watchdog_keeps_no_attempt_that_has_ended():
    worker = Worker(WorkerOptions(concurrency=1))
    for _ in range(5 * TIDY_FROM):
        each = attempt(timeout=3600)
        worker.watchdog.watch(each)
        each.end_once()

    assert len(worker.watchdog._heap) <= TIDY_FROM + 1


@pytest.mark.django_db
def test_a_due_time_told_during_a_look_is_not_written_over():
    worker = Worker(WorkerOptions(concurrency=1))
    claimer = worker.claimer
    worker.heartbeats._beaten = True
    _ = worker.settler.session.connection

    def look() -> None:
        # Its snapshot is older than the settle that tells of a retry just now.
        claimer.due_in(0.2)
        claimer.probe_at = time.monotonic() + 5.0

    claimer._look = look  # type: ignore[method-assign]

    assert claimer.step() <= 0.2
    worker.settler.session.drop()


def test_the_pace_is_read_while_it_learns():
    pace, over = Pace(), threading.Event()

    def learn() -> None:
        number = 0
        while not over.is_set():
            number += 1
            pace.saw({number % 50_000: (1, 0.001)})

    thread = threading.Thread(target=learn)
    thread.start()
    try:
        for _ in range(300):
            pace.quick_types()
    finally:
        over.set()
        thread.join()


def test_a_log_that_still_grows_can_be_read():
    from collections import deque

    lines, over = deque(["x" * 100] * 2000, maxlen=2000), threading.Event()

    def grow() -> None:
        while not over.is_set():
            lines.append("y")

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        for _ in range(50):
            assert log_tail(lines, 100_000)
    finally:
        over.set()
        thread.join()


def test_an_attempt_stopped_by_a_deadline_without_a_timeout_is_described():
    each = attempt(deadline_at=NOW + timedelta(hours=1))
    each.started = each.claimed_at
    each.stop.set("timed_out")

    ended = each.timed_out(replace(SETTINGS))

    assert (ended.state, ended.error_code, ended.permanent) == (
        AttemptState.TIMED_OUT,
        "deadline_exceeded",
        True,
    )


@pytest.mark.django_db(transaction=True)
def test_two_attempts_of_one_job_are_not_settled_in_one_batch():
    """At most one of them holds, and what became of them is told by the job."""
    worker = Worker(WorkerOptions(queues=("default",)))
    first = attempt()
    again = attempt(job_id=first.lease.job_id, lease_token=2)
    other = attempt()
    for each in (first, other, again):
        worker.settler.put(each, each.completed(None, SETTINGS))

    worker.settler._gather()

    assert [each for each, _ in worker.settler._batch] == [first, other]
    assert worker.settler.backlog == 3


@pytest.mark.django_db(transaction=True)
def test_after_a_small_write_the_settler_lets_others_gather_while_more_is_in_hand():
    worker, woken = Worker(WorkerOptions(concurrency=2)), []
    worker.settler.wake = lambda: woken.append(True)
    first, second, third = attempt(), attempt(), attempt()
    worker.board.add([first, second])

    worker.settler.put(first, first.completed(None, SETTINGS))
    assert 0 < worker.settler.step() <= LONGEST_REST_SECONDS
    worker.settler.put(second, second.completed(None, SETTINGS))
    assert woken == []

    # With nothing left in hand nobody has to wait for the next.
    assert worker.settler.step() > 1
    worker.settler.put(third, third.completed(None, SETTINGS))
    assert woken == [True]
    worker.settler.session.drop()


@pytest.mark.django_db(transaction=True)
def test_a_settler_does_not_rest_after_a_batch_that_had_room_for_no_more():
    worker = Worker(WorkerOptions(concurrency=2))
    worker.settings = replace(SETTINGS, SETTLE_MAX=1)
    first, second = attempt(), attempt()
    worker.board.add([first, second])

    worker.settler.put(first, first.completed(None, SETTINGS))
    worker.settler.put(second, second.completed(None, SETTINGS))

    assert worker.settler.step() == 0
    assert worker.settler.backlog == 1
    worker.settler.session.drop()


@pytest.mark.django_db(transaction=True)
def test_a_settler_that_drains_does_not_rest():
    worker = Worker(WorkerOptions(concurrency=2))
    first, second = attempt(), attempt()
    worker.board.add([first, second])
    worker.draining = True

    worker.settler.put(first, first.completed(None, SETTINGS))

    assert worker.settler.step() > 1
    worker.settler.session.drop()

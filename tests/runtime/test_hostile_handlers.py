"""Handlers and stored rows that mean harm, or know no better: each fails alone, and the worker works on."""

from __future__ import annotations

import os
import signal
import time
import warnings
from datetime import timedelta

import pytest
from django.db import connection, connections
from psycopg.errors import CheckViolation, UndefinedTable

from pgbroker import job
from pgbroker.conf import Settings
from pgbroker.errors import PgBrokerError
from pgbroker.lease import Lease
from pgbroker.models import Execution
from pgbroker.registry import lookup
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.isolation import clean_connections
from pgbroker.runtime.supervisor import Worker, WorkerOptions
from pgbroker.runtime.take_in import take_in
from pgbroker.states import AttemptState
from tests.support.crash import fault
from tests.support.jobs import attempt_states, claim_many, enqueue_one
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db(transaction=True)


class OddCode(PgBrokerError):
    def __init__(self, code: object) -> None:
        super().__init__("odd")
        self.code = code


ODD_CODES = ({"a": 1}, 42, "", "nul\0", "lone \udc80", "x" * 10_000, None)


@job(name="tests.hostile.odd_code", queue_name="hostile", max_attempts=1)
def odd_code(number: int) -> None:
    raise OddCode(ODD_CODES[number])


@job(name="tests.hostile.fine", queue_name="hostile")
def fine() -> int:
    return 1


@job(name="tests.hostile.patient", queue_name="hostile", timeout=7, backoff=11)
def patient() -> None:
    """Declare what stored options may change."""


backends: list[int] = []
children: list[int] = []


@job(name="tests.hostile.changes_session", queue_name="hostile")
def changes_session(marked: bool) -> None:
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        backends.append(cursor.fetchone()[0])
    if marked:
        # As scoping.scope_statement does when it sees a `set` that outlives its transaction.
        connection.pgbroker_session_changed = True


def fork() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that other threads run is the point
        if (child := os.fork()) != 0:
            children.append(child)


@job(name="tests.hostile.forks", queue_name="hostile")
def forks() -> None:
    fork()


@job(name="tests.hostile.forks_async", queue_name="hostile")
async def forks_async() -> None:
    fork()


@job(name="tests.hostile.forks_and_raises", queue_name="hostile", max_attempts=1)
def forks_and_raises() -> None:
    fork()
    raise ValueError("in both")


def worker(*, concurrency: int = 4, **options) -> Worker:
    return Worker(
        WorkerOptions(queues=("hostile",), concurrency=concurrency, burst=True, poll_interval=0.1, **options)
    )


def attempt_of(result) -> Execution:
    return Execution.objects.get(job_id=result.id)


def test_an_error_of_ours_with_an_odd_code_is_recorded_by_its_class() -> None:
    odd = [odd_code.enqueue(number) for number in range(len(ODD_CODES))]
    others = [fine.enqueue() for _ in range(3)]

    assert worker().run() == 0

    assert {attempt_of(each).error_code for each in odd} == {f"{__name__}.OddCode"}
    assert {attempt_of(each).state for each in others} == {AttemptState.COMPLETED}


def test_work_that_is_done_outlives_passing_refusals_of_its_outcome() -> None:
    done = fine.enqueue()
    refusals = [
        CheckViolation("no partition"),
        CheckViolation("no partition"),
        CheckViolation("no partition"),
    ]

    def refuse(moment: str, name: str) -> None:
        if (moment, name) == ("before", "settle") and refusals:
            raise refusals.pop()

    with fault(refuse):
        assert worker().run() == 0

    assert attempt_of(done).state == AttemptState.COMPLETED
    assert not refusals


def test_a_schema_that_takes_no_outcome_is_told_and_fails_no_attempt() -> None:
    jobs = [enqueue_one() for _ in range(2)]
    settler = Worker(WorkerOptions()).settler
    for lease in claim_many():
        attempt = Attempt(lease, lookup(fine.key), time.monotonic(), settler.worker.settings)
        settler.put(attempt, attempt.completed(None, settler.worker.settings))

    def refuse(moment: str, name: str) -> None:
        if (moment, name) == ("before", "settle"):
            raise UndefinedTable("no such table")

    with fault(refuse), pytest.raises(UndefinedTable):
        settler.step()
    settler.step()
    settler.session.drop()

    assert [attempt_states(each) for each in jobs] == [[AttemptState.COMPLETED]] * 2
    assert settler.settled_count == 2


def in_process(task, lease: Lease) -> Attempt:
    return Attempt(lease, lookup(task.key), time.monotonic(), Settings())


@pytest.mark.parametrize(
    "stored", [10**400, 1e300, float("nan"), float("inf"), -1, 0, True, "9", [9], {"s": 9}, 31 * 86400]
)
def test_a_stored_timeout_that_means_nothing_is_read_as_absent(stored: object) -> None:
    enqueue_one()
    (lease,) = claim_many()

    assert in_process(patient, lease._replace(options={"timeout": stored})).timeout == 7.0


@pytest.mark.parametrize("stored", ["five", 5, [1], {"base": "x"}, {"base": 10**400}, {"odd": 1}])
def test_a_stored_backoff_that_means_nothing_is_read_as_absent(stored: object) -> None:
    enqueue_one()
    (lease,) = claim_many()
    attempt = in_process(patient, lease._replace(options={"backoff": stored}))

    assert attempt.backoff(ValueError(), Settings()) == timedelta(seconds=11)


def test_a_lease_that_cannot_be_taken_in_fails_alone() -> None:
    jobs = [enqueue_one() for _ in range(2)]
    odd, plain = claim_many()
    taker = Worker(WorkerOptions(burst=True))
    taker.prepare()
    taker.board.close()
    taker.catalogue.types[odd.job_type_id] = lookup(fine.key)

    take_in(taker, [odd._replace(deadline_at="tomorrow"), plain], time.monotonic())
    taker.settler.step()
    taker.settler.session.drop()

    assert [attempt.lease.job_id for attempt in taker.board.attempts()] == [plain.job_id]
    assert attempt_states(odd.job_id) == [AttemptState.FAILED]
    assert {odd.job_id, plain.job_id} == set(jobs)


@pytest.mark.own_session
def test_a_connection_whose_session_a_handler_changed_serves_no_other() -> None:
    backends.clear()
    for marked in (False, True, False, False):
        changes_session.enqueue(marked)

    assert worker(concurrency=1).run() == 0

    first, second, third, fourth = backends
    assert first == second != third == fourth


@pytest.mark.parametrize("task", [forks, forks_async, forks_and_raises])
def test_a_child_that_a_handler_forked_ends_when_the_handler_returns_in_it(task) -> None:
    children.clear()
    forked = task.enqueue()

    assert worker().run() == 0

    (child,) = children
    assert exit_status(child) == 0
    assert attempt_of(forked).state == (
        AttemptState.FAILED if task is forks_and_raises else AttemptState.COMPLETED
    )


def exit_status(child: int) -> int | None:
    """Wait for a child for five seconds at most; None when it had to be killed."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def test_a_connection_that_somebody_made_for_himself_is_left_to_him():
    own = connection.copy()
    own.connect()
    try:
        own.set_autocommit(False)

        clean_connections()

        assert own.connection is not None
    finally:
        own.close()


def test_the_query_log_of_a_connection_that_a_handler_closed_is_emptied():
    connection.force_debug_cursor = True
    try:
        with connection.cursor() as cursor:
            cursor.execute("select 1")
        connection.close()
        assert connection.queries_log

        clean_connections()

        assert not connection.queries_log
    finally:
        connection.force_debug_cursor = False


def test_a_connection_that_comes_back_is_cleaned_again():
    connection.ensure_connection()
    # What tests before this one have done with it, by statements that change a session for one.
    clean_connections()
    for _ in range(2):
        connection.close()
        connection.ensure_connection()
        clean_connections()
        assert connection.connection is not None
        connection.set_autocommit(False)

        clean_connections()

        assert connection.connection is None


def test_a_connection_that_takes_the_place_of_djangos_is_cleaned_as_well():
    """Whoever opened it, and however: the next job gets it."""
    own = connection.copy()
    own.connect()
    former = connections["default"]
    connections["default"] = own
    try:
        own.set_autocommit(False)

        clean_connections()

        assert own.connection is None
    finally:
        own.close()
        connections["default"] = former


def test_a_raw_connection_that_commits_nothing_by_itself_is_closed():
    connection.ensure_connection()
    clean_connections()
    connection.ensure_connection()
    connection.connection.autocommit = False
    connection.connection.execute("select 1")
    connection.connection.commit()

    clean_connections()

    assert connection.connection is None


def test_a_session_that_was_closed_after_it_was_changed_is_nobodys_fault_any_more():
    with connection.cursor() as cursor:
        cursor.execute("set statement_timeout = 0")
    connection.close()
    connection.ensure_connection()

    clean_connections()

    assert connection.connection is not None


@job(name="tests.hostile.loses_connection", queue_name="hostile", max_attempts=1)
def loses_connection() -> None:
    """Go on though the server has ended this thread's connection, and say nothing."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        (pid,) = cursor.fetchone()
    with second_session() as killer:
        killer.execute("select pg_terminate_backend(%s, 5000)", [pid])


@job(name="tests.hostile.reads", queue_name="hostile", max_attempts=1)
def reads() -> int:
    return Execution.objects.count()


@pytest.mark.own_session
def test_a_connection_that_died_in_a_handler_does_not_reach_the_next_one() -> None:
    loses_connection.enqueue()
    after = [reads.enqueue() for _ in range(3)]

    assert worker(concurrency=1).run() == 0

    assert {attempt_of(each).state for each in after} == {AttemptState.COMPLETED}

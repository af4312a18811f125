"""How soon a worker starts what it may, and how little it asks while there is nothing to do."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from pgbroker.models import Job
from pgbroker.states import Status
from pgbroker.tenancy import scope_all
from tests.runtime import handlers
from tests.runtime.fleet import (
    POLL,
    Fleet,
    effects,
    executions_of,
    job,
    put,
    put_for_both,
    raw_session,
    status_of,
    wait_for_effect,
    wait_for_status,
)
from tests.support.sessions import InThread

pytestmark = pytest.mark.django_db(transaction=True)

DONE, DEAD = Status.COMPLETED, Status.DEAD_LETTER
# What a loaded machine may add.
MARGIN = 1.0


def delays(ids) -> list[float]:
    """From an enqueue's commit to the start of its handler, by the database's clock."""
    return [(executions_of(each)[-1].started_at - job(each).created_at).total_seconds() for each in ids]


def test_an_idle_worker_is_woken_by_a_notification_in_milliseconds(fleet: Fleet):
    worker = fleet.start(slots=2, POLL_SECONDS=30)
    ids = []
    for number in range(15):
        ids.append(put(handlers.nothing, number, tenant=("acme", "globex")[number % 2]))
        wait_for_status(ids[-1], DONE, of=worker)
        time.sleep(0.03)

    assert statistics.median(delays(ids)) < 0.1
    assert max(delays(ids)) < 2


@pytest.mark.parametrize("number", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_b128_no_single_enqueue_at_a_random_time_is_missed(fleet: Fleet, number: int):
    fleet.start(slots=4, POLL_SECONDS=10)
    dice = random.Random(128)
    ids = []
    for n in range(number):
        ids.append(put(handlers.nothing, n, tenant=("acme", "globex")[n % 2]))
        time.sleep(dice.random() * 0.1)
    wait_for_status(ids, DONE)

    found = sorted(delays(ids))
    assert found[int(len(found) * 0.97)] < 1 + MARGIN
    assert found[-1] < 11


def test_b130_a_job_that_nobody_told_of_starts_within_the_poll_interval(fleet: Fleet):
    worker = fleet.start(slots=2)
    with raw_session("acme") as session:
        session.execute(
            "select pgbroker.enqueue_many_1(%s)",
            (
                '[{"job_type": "tests.note", "queue": "default", "args": {"v": 1, "args": ["sql"], "kwargs": {}}}]',
            ),
        )
    began = time.monotonic()
    wait_for_effect("sql", of=worker)

    assert time.monotonic() - began < POLL + 1 + MARGIN


def test_a_scheduled_job_starts_at_its_time(fleet: Fleet):
    worker = fleet.start(slots=2, POLL_SECONDS=30)
    # It listens, has looked around, and knows of nothing.
    wait_for_status(put_for_both(handlers.note, "before"), DONE, of=worker)
    time.sleep(0.5)
    at = timezone.now() + timedelta(seconds=1.5)
    ids = put_for_both(handlers.note, "on time", run_after=at)

    wait_for_status(ids, DONE, of=worker)

    # The notification of the enqueue made it look for due times; no poll comes in between.
    late = [(executions_of(each)[-1].started_at - at).total_seconds() for each in ids]
    assert all(0 <= each < 0.3 + MARGIN for each in late)


def test_jobs_due_one_after_the_other_each_start_at_their_time(fleet: Fleet):
    """A look tells the first due time of a queue; the next one must not wait for the poll."""
    worker = fleet.start(slots=4, POLL_SECONDS=30)
    base = timezone.now() + timedelta(seconds=1.5)
    due = {}
    for number in range(6):
        at = base + timedelta(seconds=0.4 * number)
        due[put(handlers.note, f"n{number}", run_after=at, tenant=("acme", "globex")[number % 2])] = at

    wait_for_status(list(due), DONE, of=worker)

    late = [(executions_of(each)[-1].started_at - at).total_seconds() for each, at in due.items()]
    assert all(0 <= each < 0.3 + MARGIN for each in late), late


def test_a_retry_on_a_busy_worker_is_not_late(fleet: Fleet):
    worker = fleet.start(slots=4, POLL_SECONDS=30)
    ids = put_for_both(handlers.retry_in, 1.0, max_attempts=4)
    until = time.monotonic() + 6
    number = 0
    while time.monotonic() < until:
        number += 1
        put(handlers.nothing, number)
        time.sleep(0.01)
    wait_for_status(ids, DEAD, of=worker)

    for each in ids:
        executions = executions_of(each)
        gaps = [
            (after.started_at - before.completed_at).total_seconds()
            for before, after in itertools.pairwise(executions)
        ]
        assert len(gaps) == 3
        assert all(0.99 < gap < 1.3 + MARGIN for gap in gaps), gaps


def test_an_idle_worker_asks_little(fleet: Fleet, superuser):
    worker = fleet.start(slots=4, POLL_SECONDS=1, HEARTBEAT_SECONDS=1, REAP_SECONDS=1, LEADER_SECONDS=10)
    wait_for_status(put_for_both(handlers.nothing, 1), DONE, of=worker)
    time.sleep(1)

    def transactions() -> int:
        superuser.execute("select pg_stat_clear_snapshot()")
        (count,) = superuser.execute(
            "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
        ).fetchone()
        return count

    def alone(seconds: float) -> int:
        before = transactions()
        time.sleep(seconds)
        return transactions() - before

    # A second: a look, a beat, a reap, an expire, a pass for those that wait and one for what they wait for by name,
    # half a renewal of the lead; every five seconds the queues. And what counting costs.
    # Autovacuum, at work after another test, counts too: the quietest of some spells tells.
    spells = (alone(6) for _ in range(5))
    assert any(used <= 6 * 7 + 10 for used in spells)


def test_b124_b126_fifty_thousand_jobs_in_one_transaction_send_few_notifications(fleet: Fleet):
    from pgbroker import enqueue_many

    with raw_session() as listener:
        listener.execute("listen pgbroker")
        began = time.monotonic()
        with transaction.atomic():
            calls = [handlers.nothing.options(tenant="acme").bind(number) for number in range(5_000)]
            for _ in range(2):
                enqueue_many(calls)
        took = time.monotonic() - began
        heard = list(listener.notifies(timeout=1.0))

    assert took < 20
    assert 1 <= len(heard) <= 3
    with scope_all():
        assert Job.objects.count() == 10_000


@pytest.mark.parametrize("number", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_b126_writers_with_notifications_are_at_least_half_as_fast_as_without(
    fleet: Fleet, settings, number: int
):
    def write() -> None:
        for each in range(number):
            put(handlers.nothing, each)

    def speed(notify: bool) -> float:
        settings.PGBROKER = {"NOTIFY": notify}
        writers = [InThread(write).start() for _ in range(8)]
        began = time.monotonic()
        for writer in writers:
            writer.result()
        return 8 * number / (time.monotonic() - began)

    # In turns, so that whatever else the machine does falls on both.
    rounds = [(speed(True), speed(False)) for _ in range(3)]

    assert statistics.median(told / untold for told, untold in rounds) >= 0.5


def test_b124_a_large_payload_travels_in_no_notification(fleet: Fleet):
    ids = [put(handlers.echo_size, "x" * size) for size in (9_000, 200_000)]
    worker = fleet.start()

    wait_for_status(ids, DONE, of=worker)

    assert [executions_of(each)[0].result for each in ids] == [9_000, 200_000]


def test_a_queue_that_is_new_is_found_by_a_running_worker(fleet: Fleet):
    worker = fleet.start(slots=2)
    name = f"brand-new-{random.randrange(10**9)}"
    with connection.cursor() as cursor:
        cursor.execute("insert into pgbroker.queue (name) values (%s)", (name,))

    ids = put_for_both(handlers.note, "found", queue_name=name)

    wait_for_status(ids, DONE, of=worker)


# ------------------------------------------------------------------ other people's locks


def test_b185_a_long_transaction_with_a_key_holds_up_nothing_else(fleet: Fleet):
    worker = fleet.start(slots=4)
    with raw_session("acme") as session, session.transaction():
        session.execute(
            "select pgbroker.enqueue_many_1(%s)",
            (
                '[{"job_type": "tests.note", "queue": "default", "idempotency_key": "u", '
                '"args": {"v": 1, "args": ["locked"], "kwargs": {}}}]',
            ),
        )
        times = []
        ids = []
        for number in range(30):
            began = time.monotonic()
            ids.append(
                put(
                    handlers.note,
                    "other",
                    idempotency_key=f"k{number}",
                    tenant=("acme", "globex")[number % 2],
                )
            )
            times.append(time.monotonic() - began)
        wait_for_status(ids, DONE, of=worker)
        assert effects("locked") == []
    assert statistics.median(times) < 0.2
    wait_for_effect("locked", of=worker)


def test_b189_no_session_of_a_worker_keeps_a_transaction_open_while_a_job_runs(fleet: Fleet, superuser):
    worker = fleet.start(slots=4)
    ids = [*put_for_both(handlers.work, 4), *put_for_both(handlers.work_async, 4)]
    for each in ids:
        wait_for_effect("enter", each, of=worker)

    longest = 0.0
    while any(status_of(each) == Status.RUNNING for each in ids):
        (seconds,) = superuser.execute(
            "select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::float "
            "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
            "and backend_type = 'client backend' and state like 'idle in transaction%%'"
        ).fetchone()
        longest = max(longest, seconds)
        time.sleep(0.2)

    assert longest < 1
    wait_for_status(ids, DONE, of=worker)


@pytest.mark.parametrize("number", [400, pytest.param(2000, marks=pytest.mark.slow)])
def test_b187_four_workers_and_busy_reapers_do_each_job_once(fleet: Fleet, number: int):
    workers = [fleet.start(slots=4, REAP_SECONDS=0.1) for _ in range(4)]
    ids = [put(handlers.nothing, n, tenant=("acme", "globex")[n % 2]) for n in range(number)]

    wait_for_status(ids, DONE, of=workers[0])

    with raw_session() as session:
        found = session.execute(
            "select count(*), count(distinct job_id) from pgbroker.execution where state = 1"
        ).fetchone()
    assert found == (number, number)
    assert [each.exit_code for each in workers] == [None] * 4

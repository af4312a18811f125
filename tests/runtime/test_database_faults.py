"""PostgreSQL restarts, refuses, turns read-only, loses every notification: nothing is lost, stuck or doubled."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connection, connections

from pgbroker import cancel, tenant_context
from pgbroker.states import AttemptState, Status
from testproject import embedded_pg
from testproject.database import django_database
from tests.runtime import handlers
from tests.runtime.fleet import (
    LEASE,
    Fleet,
    count_by_status,
    effects,
    executions_of,
    job,
    make_effects_table,
    put,
    put_for_both,
    states_of,
    status_of,
    wait_for_effect,
    wait_for_status,
    wait_until,
)

pytestmark = pytest.mark.django_db(transaction=True)

DONE, DEAD = Status.COMPLETED, Status.DEAD_LETTER


@pytest.fixture(scope="session")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded_pg.Running]:
    """A server that may be restarted: nobody else uses it."""
    running = embedded_pg.ensure_running("test", base=tmp_path_factory.mktemp("own"))
    yield running
    running.release()


@pytest.fixture
def own(fleet: Fleet, own_server: embedded_pg.Running) -> Iterator[embedded_pg.Running]:
    """Point Django, and the workers that are started, at the server of our own, with our tables in it."""
    from django.core.management import call_command

    settings = connections.settings["default"]
    before = dict(settings)
    connections["default"].close()
    name = f"faults_{os.getpid()}"
    with psycopg.connect(own_server.superuser_dsn(), autocommit=True) as session:
        session.execute(f"drop database if exists {name} with (force)")
        session.execute(f"create database {name} owner {embedded_pg.ROLE}")
    wanted = django_database(own_server.dsn)
    live = connections["default"].settings_dict
    live_before = dict(live)
    live.update({**wanted, "NAME": name})
    try:
        call_command("migrate", verbosity=0)
        make_effects_table()
        yield own_server
        fleet.kill_all()
    finally:
        connections["default"].close()
        live.clear()
        live.update(live_before)
        settings.update(before)


def superuser_of(own: embedded_pg.Running) -> psycopg.Connection:
    return psycopg.connect(own.superuser_dsn(database=connection.settings_dict["NAME"]), autocommit=True)


def mixed(number: int) -> list:
    """Jobs of both tenants in both executors, some of which need a second attempt."""
    return [
        put(task, "e", tenant=tenant, max_attempts=10)
        for _ in range(number)
        for task in (handlers.note, handlers.note_async)
        for tenant in ("acme", "globex")
    ]


def check_all_done_once(ids) -> None:
    """Every job completed once, and an effect stands for every attempt that got so far."""
    for each in ids:
        states = states_of(each)
        assert states.count(AttemptState.COMPLETED) == 1
        assert states[-1] == AttemptState.COMPLETED
        others = len(states) - 1
        assert 1 <= len(effects("e", each)) <= 1 + others
    assert set(count_by_status()) == {DONE}


def reconnected(work, tries: int = 200):
    """Do something with the test's own connection, which breaks with the others."""
    for _ in range(tries):
        try:
            return work()
        except Exception:
            connections["default"].close()
            time.sleep(0.1)
    return work()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_b115_b163_a_restart_of_the_server_under_load_loses_and_doubles_nothing(fleet: Fleet, own, mode):
    first, second = fleet.start(slots=4), fleet.start(slots=4, database={"CONN_MAX_AGE": 600})
    ids = []
    for number in range(3):
        ids += mixed(15)
        if number == 0:
            wait_for_effect("e", of=first)
        connections["default"].close()
        own.restart(mode)
    more = mixed(5)
    began = time.monotonic()
    wait_for_status(more, DONE, of=first)

    assert time.monotonic() - began < 30
    wait_for_status(ids, DONE, seconds=60, of=second)
    check_all_done_once([*ids, *more])
    assert (first.exit_code, second.exit_code) == (None, None)
    assert (first.stop(), second.stop()) == (0, 0)


def test_b115_every_session_ended_again_and_again_loses_and_doubles_nothing(fleet: Fleet, own):
    workers = [fleet.start(slots=4, MAX_ATTEMPTS=20) for _ in range(2)]
    ids, over = [], threading.Event()

    def end_all() -> None:
        with superuser_of(own) as session:
            while not over.wait(0.15):
                session.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'pgbroker %' "
                    "and datname = current_database()"
                )

    killer = threading.Thread(target=end_all)
    killer.start()
    try:
        for _ in range(8):
            ids += mixed(10)
            time.sleep(0.5)
    finally:
        over.set()
        killer.join()

    wait_for_status(ids, DONE, seconds=60, of=workers[0])
    check_all_done_once(ids)
    assert [each.exit_code for each in workers] == [None, None]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_statements_that_fail_before_or_after_they_committed_lose_and_double_nothing(fleet: Fleet, seed: int):
    """A lost answer is the hard case: the claim, settle, release or heartbeat was done, and nobody was told."""
    ids = mixed(8)
    failing = [
        put(handlers.raise_it, "retry_soon", tenant=tenant, max_attempts=9) for tenant in ("acme", "globex")
    ]
    cancelled = [put(handlers.work, 30.0, tenant="acme") for _ in range(2)]
    workers = [fleet.start(slots=3, losses={"number": 4, "seed": 2 * seed + one}) for one in (0, 1)]
    for each in cancelled:
        wait_until(lambda each=each: status_of(each) == Status.RUNNING, "it runs", of=workers[0])
        with tenant_context("acme"):
            cancel(each)
    ids += mixed(8)

    wait_for_status(ids, DONE, seconds=90, of=workers[0])
    wait_for_status(failing, DEAD, seconds=90, of=workers[0])
    wait_for_status(cancelled, Status.CANCELLED, seconds=90, of=workers[0])

    for each in [*ids, *failing, *cancelled]:
        numbers = sorted(one.attempt_no for one in executions_of(each))
        assert numbers == [*range(1, job(each).attempt_count + 1)]
    for each in ids:
        states = states_of(each)
        assert states[-1] == AttemptState.COMPLETED
        assert states.count(AttemptState.COMPLETED) == 1
        assert len(effects("e", each)) <= len(states)
    assert [each.exit_code for each in workers] == [None, None]


def test_jobs_cut_off_by_a_restart_are_retried_and_waiting_ones_lose_no_attempt(fleet: Fleet, own):
    worker = fleet.start(slots=2)
    running = put_for_both(handlers.long_atomic, 2.0)
    for each in running:
        wait_until(lambda each=each: status_of(each) == Status.RUNNING, "it runs", of=worker)
    waiting = [put(handlers.note, "e", tenant=tenant) for tenant in ("acme", "globex") for _ in range(3)]
    time.sleep(0.3)
    connections["default"].close()
    own.restart("immediate")

    wait_for_status([*running, *waiting], DONE, seconds=60, of=worker)

    assert [states_of(each) for each in waiting] == [[AttemptState.COMPLETED]] * 6
    for each in running:
        assert states_of(each)[-1] == AttemptState.COMPLETED
        assert len(effects("enter", each)) == 1


def test_b183_a_database_that_turns_read_only_for_a_while_costs_no_waiting_job_an_attempt(fleet: Fleet, own):
    worker = fleet.start(slots=2)
    running = put_for_both(handlers.stubborn_quiet, 3.0)
    for each in running:
        wait_until(lambda each=each: status_of(each) == Status.RUNNING, "it runs", of=worker)
    waiting = [put(handlers.note, "e", tenant=tenant) for tenant in ("acme", "globex") for _ in range(3)]
    connections["default"].close()
    with superuser_of(own) as session:
        name = connection.settings_dict["NAME"]
        session.execute(
            f"alter role {embedded_pg.ROLE} in database {name} set default_transaction_read_only = on"
        )
        end_sessions_by(session)
        time.sleep(5)  # longer than the running jobs take
        session.execute(
            f"alter role {embedded_pg.ROLE} in database {name} reset default_transaction_read_only"
        )
        began = time.monotonic()
        # What reconnected meanwhile stays read-only until it is told so by an error.
    wait_for_status([*running, *waiting], DONE, seconds=60, of=worker)

    assert time.monotonic() - began < 20
    assert [states_of(each) for each in waiting] == [[AttemptState.COMPLETED]] * 6
    assert all(states_of(each).count(AttemptState.COMPLETED) == 1 for each in running)
    assert worker.exit_code is None


def end_sessions_by(session: psycopg.Connection) -> None:
    session.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
        "and pid <> pg_backend_pid() and backend_type = 'client backend'"
    )


def test_b123_a_connection_limit_is_not_besieged_and_burns_no_attempt(fleet: Fleet, own):
    ids = mixed(5)
    connections["default"].close()
    with superuser_of(own) as session:
        session.execute(f"alter role {embedded_pg.ROLE} connection limit 2")
        log = Path(own.cluster.log)
        before = log.read_text(errors="replace").count("too many connections")
        try:
            worker = fleet.start(slots=8)
            time.sleep(10)
            tries = log.read_text(errors="replace").count("too many connections") - before
        finally:
            session.execute(f"alter role {embedded_pg.ROLE} connection limit -1")
    assert 0 < tries < 20
    began = time.monotonic()
    wait_for_status(ids, DONE, of=worker)

    assert time.monotonic() - began < 15
    assert [states_of(each) for each in ids] == [[AttemptState.COMPLETED]] * len(ids)


def test_outcomes_wait_in_memory_while_the_server_is_away_and_settle_once(fleet: Fleet, own):
    worker = fleet.start(slots=4, LEASE_SECONDS=30, HEARTBEAT_SECONDS=1)
    ids = put_for_both(handlers.stubborn_quiet, 1.5)
    for each in ids:
        wait_until(lambda each=each: status_of(each) == Status.RUNNING, "it runs", of=worker)
    connections["default"].close()
    with superuser_of(own) as session:
        session.execute(f"alter role {embedded_pg.ROLE} nologin")
        end_sessions_by(session)
        time.sleep(3)
        session.execute(f"alter role {embedded_pg.ROLE} login")

    wait_for_status(ids, DONE, of=worker)

    assert [states_of(each) for each in ids] == [[AttemptState.COMPLETED]] * 2


def test_leases_that_ran_out_while_the_server_was_away_are_no_crashes_of_their_workers(fleet: Fleet, own):
    """Nobody could have renewed them: a job that outlives a few failovers must not become a dead letter for it."""
    workers = [fleet.start(slots=2) for _ in range(2)]
    ids = [put(handlers.stubborn_quiet, 9.0, tenant=tenant) for tenant in ("acme", "globex") * 2]
    for each in ids:
        wait_until(lambda each=each: status_of(each) == Status.RUNNING, "it runs", of=workers[0])
    connections["default"].close()
    with superuser_of(own) as session:
        session.execute(f"alter role {embedded_pg.ROLE} nologin")
        end_sessions_by(session)
        time.sleep(LEASE + 2)  # how long it is away is what is tested
        session.execute(f"alter role {embedded_pg.ROLE} login")

    wait_until(lambda: all(states_of(each) for each in ids), "they were taken back", of=workers[0])

    assert [states_of(each)[0] for each in ids] == [AttemptState.LEASE_EXPIRED] * 4
    assert [job(each).crash_count for each in ids] == [0] * 4


# ------------------------------------------------------------------ notifications


@pytest.mark.parametrize("how", ["off", "killed", "spurious", "doubled"])
def test_b130_lost_doubled_and_false_notifications_change_nothing_but_the_time(fleet: Fleet, superuser, how):
    worker = fleet.start(slots=4, NOTIFY=how != "off")
    over = threading.Event()

    def disturb() -> None:
        while not over.wait(0.05):
            if how == "killed":
                superuser.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where datname = current_database() and application_name = 'pgbroker listen'"
                )
            elif how == "spurious":
                superuser.execute(
                    "select pg_notify('pgbroker', 'default'), pg_notify('pgbroker', 'no-such-queue')"
                )
                superuser.execute("select pg_notify('pgbroker', repeat('x', 7000))")

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        ids = mixed(10)
        if how == "doubled":
            for _ in range(20):
                superuser.execute("notify pgbroker, 'default'")
        wait_for_status(ids, DONE, of=worker)
    finally:
        over.set()
        disturber.join()

    for each in ids:
        assert [AttemptState(one.state) for one in executions_of(each)] == [AttemptState.COMPLETED]
    assert worker.exit_code is None

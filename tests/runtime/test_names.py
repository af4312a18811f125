"""A worker's own name: one process at a time, by the database's clock, whatever happens to its holder."""

from __future__ import annotations

import os
import signal
import time
import warnings
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from pgbroker import telemetry
from pgbroker.errors import InvalidOption
from pgbroker.management.start import limited_start
from pgbroker.models import Leader
from pgbroker.runtime.exclusive import PREFIX
from pgbroker.states import AttemptState, Status
from pgbroker.worker import BackgroundWorker, WorkerOptions
from tests.runtime import handlers
from tests.runtime.fleet import (
    Fleet,
    WorkerProcess,
    put,
    states_of,
    wait_for_effect,
    wait_for_status,
    wait_until,
    workers,
)

pytestmark = pytest.mark.django_db(transaction=True)

LEASE = 5.0
NAMED = ("--name", "importer")
TIMES = {"LEASE_SECONDS": LEASE, "HEARTBEAT_SECONDS": 0.5}


def named(fleet: Fleet, *flags: str, **how) -> WorkerProcess:
    return fleet.start(*NAMED, *flags, **TIMES, **how)


def lease() -> Leader:
    return Leader.objects.get(duty=f"{PREFIX}importer")


def has_run_out() -> bool:
    return Leader.objects.filter(duty=f"{PREFIX}importer", expires_at__lte=Now()).exists()


def is_kept_by(worker: WorkerProcess) -> bool:
    holder = {str(each.id): each.pid for each in workers()}
    return not has_run_out() and holder.get(str(lease().holder)) == worker.pid


def test_a_second_start_fails_while_the_first_lives_and_the_first_goes_on(fleet: Fleet):
    first = named(fleet)
    held = lease()

    second = named(fleet, wait=False)

    assert second.wait() == 1
    assert "[worker_name_taken] another worker named 'importer' lives" in second.log
    assert "worker started" not in second.log
    assert first.exit_code is None
    assert (lease().holder, lease().epoch) == (held.holder, held.epoch)
    assert {each.name for each in workers()} == {"importer"}


def test_b003_after_a_kill_the_same_name_starts_again_and_the_lost_job_is_recovered(fleet: Fleet):
    first = named(fleet)
    lost = put(handlers.work, 60)
    wait_for_effect("enter", lost, of=first)
    first.kill()
    runs_out = lease().expires_at

    second = named(fleet)

    assert timedelta(0) <= lease().since - runs_out < timedelta(seconds=2)
    wait_until(
        lambda: states_of(lost)[:1] in ([AttemptState.CRASHED], [AttemptState.LEASE_EXPIRED]),
        "it is reaped",
        of=second,
    )
    wait_for_effect("enter", lost, count=2, of=second)
    assert len(workers()) == 2
    assert lease().epoch == 2
    wait_until(lambda: is_kept_by(second), "it has the name", of=second)


@pytest.mark.slow
def test_of_two_that_wait_for_a_dead_ones_name_one_gets_it(fleet: Fleet):
    named(fleet).kill()

    waiting = [named(fleet, wait=False) for _ in range(2)]

    wait_until(lambda: [each.exit_code for each in waiting].count(None) == 1, "one of them has failed")
    loser, winner = sorted(waiting, key=lambda each: each.exit_code is None)
    winner.wait_until_started()
    assert loser.exit_code == 1
    assert "[worker_name_taken]" in loser.log
    wait_until(lambda: is_kept_by(winner), "it has the name", of=winner)


def test_a_holder_that_stood_still_and_lost_its_name_notices_and_ends(fleet: Fleet):
    first = named(fleet)
    first.signal(signal.SIGSTOP)
    second = named(fleet)

    first.signal(signal.SIGCONT)

    assert first.wait() == 1
    assert "another worker has taken this one's name" in first.log
    done = put(handlers.note, "n")
    wait_for_status(done, Status.COMPLETED, of=second)
    assert second.exit_code is None
    wait_until(lambda: is_kept_by(second), "it has the name", of=second)


@pytest.mark.slow
def test_a_holder_that_stood_still_and_lost_nothing_goes_on(fleet: Fleet):
    first = named(fleet)
    first.signal(signal.SIGSTOP)
    wait_until(has_run_out, "its lease has run out")

    first.signal(signal.SIGCONT)

    wait_until(lambda: is_kept_by(first), "it has its name again", of=first)
    assert first.exit_code is None
    assert first.stop() == 0


def test_a_clean_end_frees_the_name_at_once(fleet: Fleet):
    first = named(fleet)
    assert first.stop() == 0

    assert has_run_out()
    again = named(fleet)
    wait_until(lambda: is_kept_by(again), "it has the name", of=again)


def test_a_signal_while_it_waits_for_its_name_ends_it_clean(fleet: Fleet):
    fleet.start(*NAMED, LEASE_SECONDS=60).kill()
    waiting = named(fleet, wait=False)
    wait_until(lambda: "starting: " in waiting.log, "it starts", of=waiting)
    with connection.cursor() as cursor:
        wait_until(lambda: _asks(cursor), "it asks for the name", of=waiting)

    code = waiting.stop()

    assert code == 0
    assert not has_run_out()
    assert "worker started" not in waiting.log


def _asks(cursor) -> bool:
    cursor.execute(
        "select exists (select from pg_stat_activity where datname = current_database() "
        "and application_name = 'pgbroker heartbeat')"
    )
    return cursor.fetchone()[0]


def test_the_limit_of_a_start_leaves_room_for_the_wait_and_counts_anew_after_it():
    """In a process of its own, which it ends."""

    def code_of(waits: float, seconds: float) -> int:
        with warnings.catch_warnings():
            # Of threads: the child has none and ends soon.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with limited_start(0.3):
                telemetry.emit("worker.name_awaited", seconds=waits)
                time.sleep(seconds)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert code_of(waits=60.0, seconds=0.8) == 0
    assert code_of(waits=0.1, seconds=5.0) == 3


@pytest.mark.parametrize("name", ["", "a b", "x" * 101, "naïve", 7])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(InvalidOption, match="name is "):
        BackgroundWorker(WorkerOptions(name=name))

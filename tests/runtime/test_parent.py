"""`--processes N`: a parent that starts workers, starts again what ends, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from pgbroker.states import AttemptState, Status
from tests.runtime import handlers
from tests.runtime.fleet import (
    Fleet,
    WorkerProcess,
    effects,
    put,
    put_for_both,
    states_of,
    status_of,
    wait_for_effect,
    wait_until,
    workers,
)
from tests.support.processes import alive, descendants_of, parents, sockets_of

pytestmark = pytest.mark.django_db(transaction=True)

DONE = Status.COMPLETED
CHILDREN = ("--executor", "process")


def processes_of(parent: WorkerProcess) -> set[int]:
    """The worker processes of a parent."""
    return {pid for pid, above in parents().items() if above == parent.pid} & alive(parents())


def start(fleet: Fleet, *flags: str, **settings: object) -> WorkerProcess:
    parent = fleet.start("--processes", "2", *flags, slots=2, **settings)
    wait_until(lambda: parent.log.count("worker started") >= 2, "all have started", of=parent)
    return parent


def test_what_dies_is_started_again_and_all_drain_at_the_end(fleet: Fleet):
    parent = start(fleet)
    first = processes_of(parent)
    # So no connection to the database either.
    assert sockets_of(parent.pid) == []

    victim = min(first)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(processes_of(parent) - {victim}) == 2, "it was replaced", of=parent)
    wait_until(lambda: parent.log.count("worker started") == 3, "the new one works", of=parent)
    job_id = put(handlers.work, 1.0)
    wait_for_effect("enter", job_id, of=parent)
    everyone = first | processes_of(parent)

    assert parent.stop() == 0

    assert status_of(job_id) == DONE
    assert alive(everyone) == set()
    assert "exit_code=-9" in parent.log


def test_workers_drain_when_their_parent_is_killed(fleet: Fleet):
    parent = start(fleet, *CHILDREN)
    job_id = put(handlers.work, 1.0)
    wait_for_effect("enter", job_id, of=parent)
    family = descendants_of(parent.pid)
    assert len(family) >= 5

    parent.kill()

    wait_until(lambda: not alive(family), "all are gone", of=parent)
    assert states_of(job_id) == [AttemptState.COMPLETED]


def test_a_signal_to_the_parent_and_all_workers_at_once_is_one(fleet: Fleet):
    """So service managers stop a unit; each worker hears it twice."""
    parent = start(fleet, *CHILDREN)
    job_id = put(handlers.work, 2.0)
    wait_for_effect("enter", job_id, of=parent)
    everyone = descendants_of(parent.pid)
    assert len(everyone) >= 5

    for pid in (*everyone, parent.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    assert parent.wait() == 0
    assert states_of(job_id) == [AttemptState.COMPLETED]
    assert alive(everyone) == set()


def test_a_ctrl_c_of_a_terminal_lets_running_jobs_end(fleet: Fleet):
    parent = start(fleet, *CHILDREN, group=True)
    alone = fleet.start(*CHILDREN, slots=2, group=True)
    ids = [put(handlers.work, 2.0) for _ in range(4)]
    for each in ids:
        wait_for_effect("enter", each, of=alone)

    for each in (parent, alone):
        os.killpg(each.pid, signal.SIGINT)

    assert (parent.wait(), alone.wait()) == (0, 0)
    assert {tuple(states_of(each)) for each in ids} == {(AttemptState.COMPLETED,)}
    assert effects("stopped") == []


def test_the_second_signal_ends_all_at_once(fleet: Fleet):
    parent = start(fleet, SHUTDOWN_TIMEOUT_SECONDS=60)
    put(handlers.stubborn, 600)
    wait_for_effect("enter", of=parent)
    everyone = processes_of(parent)

    parent.signal(signal.SIGTERM)
    wait_until(lambda: "drains" in parent.log, "the first was heard", of=parent)
    began = time.monotonic()
    parent.signal(signal.SIGTERM)

    assert parent.wait() == 1
    assert time.monotonic() - began < 20
    assert alive(everyone) == set()


def test_a_burst_ends_once_every_process_has_nothing_left(fleet: Fleet):
    ids = put_for_both(handlers.note, "burst")

    parent = fleet.start("--processes", "2", "--burst", slots=2, wait=False)

    assert parent.wait() == 0
    assert [status_of(each) for each in ids] == [DONE] * 2
    assert parent.log.count("worker started") == 2


def test_what_no_restart_heals_ends_the_parent_with_its_code(fleet: Fleet):
    parent = fleet.start("--processes", "2", "--queues", "no_such_queue", slots=2, wait=False)

    assert parent.wait() == 2
    assert "no_such_queue" in parent.log


def test_a_process_that_asks_for_it_is_started_again_at_once_and_each_has_its_file(
    fleet: Fleet, tmp_path: Path
):
    parent = start(fleet, "--max-rss", "250M", "--heartbeat-file", str(tmp_path / "alive"), "--name", "box")
    put(handlers.grow, 200)

    wait_until(lambda: parent.log.count("worker started") == 3, "it was started again", of=parent)

    assert "exit_code=75 starts_again_in_seconds=0" in parent.log
    assert {each.name for each in tmp_path.iterdir()} == {"alive.1", "alive.2"}
    assert {each.name for each in workers()} == {"box.1", "box.2"}
    assert parent.exit_code is None

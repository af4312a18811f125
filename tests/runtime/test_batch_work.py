"""How Linux schedules a worker: as work that takes its turn, unless whoever started it has chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command

from pgbroker.states import Status
from tests.runtime import handlers
from tests.runtime.fleet import Fleet, put_for_both, wait_for_status
from tests.support.processes import descendants_of

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(sys.platform != "linux", reason="a policy of Linux"),
]
BE = "import os; from pgbroker.runtime.batch_work import be_batch_work as be"
TELL = "be(); print(os.sched_getscheduler(0))"


def policies(pid: int) -> set[int]:
    return {os.sched_getscheduler(int(thread.name)) for thread in Path(f"/proc/{pid}/task").iterdir()}


def policy_after(*before: str) -> int:
    """Ask for it in a process of its own, after *before*."""
    code = "; ".join([BE, *before, TELL])
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


def test_every_thread_of_a_worker_is_batch_work(fleet: Fleet):
    ids = put_for_both(handlers.work, 0.0) + put_for_both(handlers.work_async, 0.0)
    worker = fleet.start("--metrics-port", "0", slots=2)
    wait_for_status(ids, Status.COMPLETED, of=worker)

    assert policies(worker.pid) == {os.SCHED_BATCH}


def test_so_is_every_process_that_runs_its_jobs(fleet: Fleet):
    ids = put_for_both(handlers.work, 0.0)
    worker = fleet.start("--executor", "process", slots=2)
    wait_for_status(ids, Status.COMPLETED, of=worker)

    children = descendants_of(worker.pid)
    assert len(children) >= 2
    assert set().union(*map(policies, children)) == {os.SCHED_BATCH}


def test_a_policy_that_was_chosen_stays():
    assert policy_after("os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))") == os.SCHED_IDLE
    assert policy_after() == os.SCHED_BATCH


def test_a_system_that_refuses_is_left_alone():
    refuse = "os.sched_setscheduler = lambda *_: exec('raise PermissionError')"

    assert policy_after(refuse) == os.SCHED_OTHER


def test_a_process_that_calls_the_command_is_left_alone():
    before = os.sched_getscheduler(0)

    call_command("broker_worker", burst=True, queues="default")

    assert before == os.sched_getscheduler(0) == os.SCHED_OTHER

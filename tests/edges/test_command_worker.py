"""broker_worker as a process: exit codes, signals at any moment, and what it leaves behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from pgbroker import control
from pgbroker.lifecycle.declare import declare_queues
from pgbroker.models import Execution, Job, Queue, Worker
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import tenant_context
from testproject.database import drop_database
from tests.support.jobs import enqueue_one, executions, guards_off, status
from tests.support.sessions import conninfo, environment_of_processes

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).parent.parent.parent
QUEUE = "handlers"
# How long a process may take to come up or go away on a busy machine; it decides no outcome.
PATIENCE_SECONDS = 60.0


class Process:
    """A worker process and what it wrote."""

    def __init__(
        self,
        log: Path,
        *flags: str,
        url: str | None = None,
        pgbroker: dict[str, Any] | None = None,
        apps: str = "",
    ) -> None:
        self.log = log
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            **({"DATABASE_URL": url} if url else environment_of_processes()),
            "DJANGO_SETTINGS_MODULE": "tests.support.worker_settings",
            "TEST_PGBROKER": json.dumps(pgbroker or {}),
            "TEST_APPS": apps,
        }
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "testproject/manage.py", "broker_worker", *flags],
                cwd=ROOT,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.02)

    def started(self) -> Process:
        self.until(lambda: "worker started" in self.said)
        return self

    def kill(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def code(self, seconds: float = PATIENCE_SECONDS) -> int:
        return self.process.wait(seconds)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start a worker on this test's database; none outlives the test."""
    begun: list[Process] = []

    def begin(*flags: str, **how: Any) -> Process:
        begun.append(Process(tmp_path / f"{len(begun)}.log", *flags, **how))
        return begun[-1]

    yield begin
    for each in begun:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def enqueue(name: str = "handlers.nothing", **kwargs: Any):
    return enqueue_one(job_type=name, queue=QUEUE, args={"v": 1, "args": [], "kwargs": kwargs})


def running(job: Any) -> Callable[[], bool]:
    return lambda: status(job) == Status.RUNNING


def nothing_is_held() -> bool:
    return not Job.objects.filter(status=Status.RUNNING).exists()


# ------------------------------------------------------------------ exit codes


def test_a_burst_works_off_what_is_ready_and_exits_clean(start):
    jobs = [enqueue() for _ in range(20)]

    worker = start("--burst", "--queues", QUEUE)

    assert worker.code() == 0, worker.said
    assert {status(job) for job in jobs} == {Status.COMPLETED}
    assert Worker.objects.get().stopped_at is not None


def test_a_worker_ends_after_so_many_jobs(start):
    jobs = [enqueue() for _ in range(10)]

    worker = start("--max-jobs", "3", "--queues", QUEUE)

    assert worker.code() == 0, worker.said
    assert [status(job) for job in jobs].count(Status.COMPLETED) == 3
    assert nothing_is_held()


def test_the_start_is_told_with_all_that_may_be_wrong(start):
    declare_queues(["fresh"])

    worker = start("--burst", "--queues", f"{QUEUE},fresh", "--concurrency", "3")

    assert worker.code() == 0, worker.said
    for told in (
        "database=test_",
        "alias=default",
        "migration=0001_initial",
        f"queues={QUEUE},fresh",
        "slots=3",
    ):
        assert told in worker.said


def test_wrong_settings_end_it_with_2(start):
    worker = start(pgbroker={"LEASE_SECONDS": "long", "POLL": 1})

    assert worker.code() == 2
    assert "pgbroker.E001" in worker.said
    assert "LEASE_SECONDS" in worker.said
    assert "POLL" in worker.said


def test_wrong_flags_end_it_with_2(start):
    worker = start("--concurrency", "0", "--queues", "a", "--exclude-queues", "b", "--lease-seconds", "soon")

    assert worker.code() == 2
    for flag in ("--concurrency", "--exclude-queues", "--lease-seconds"):
        assert f"[invalid_option] {flag} " in worker.said


def test_an_unreachable_database_ends_it_with_3(start):
    worker = start(url="postgresql://nobody@127.0.0.1:1/nothing")

    assert worker.code() == 3
    assert "[database_unreachable]" in worker.said
    assert "Traceback" not in worker.said


def test_a_database_without_migrations_ends_it_with_4(start):
    name = f"{connections['default'].settings_dict['NAME']}_empty"
    with psycopg.connect(conninfo(dbname="postgres"), autocommit=True) as server:
        server.execute(f'create database "{name}"')
        try:
            worker = start(url=conninfo(dbname=name))
            assert worker.code() == 4
        finally:
            drop_database(server, name)
    assert "[schema_too_old]" in worker.said
    assert "manage.py migrate pgbroker" in worker.said


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"concurrency": 1001}, "--concurrency"),
        ({"queues": "a b"}, "--queues"),
        ({"queues": ","}, "--queues"),
        ({"exclude_queues": "ü"}, "--exclude-queues"),
        ({"lease_seconds": "0.5"}, "--lease-seconds"),
        ({"poll_interval": "nan"}, "--poll-interval"),
        ({"shutdown_timeout": "-1"}, "--shutdown-timeout"),
        ({"max_jobs": "0"}, "--max-jobs"),
        ({"max_jobs_per_child": "0"}, "--max-jobs-per-child"),
        ({"max_rss": "512"}, "--max-rss"),
        ({"max_rss": "much"}, "--max-rss"),
        ({"max_rss": "2000000G"}, "--max-rss"),
        ({"max_rss": "32M"}, "--max-rss"),
        ({"processes": "65"}, "--processes"),
        ({"processes": "2"}, "--processes"),
        ({"heartbeat_file": "/no/such/folder/file"}, "--heartbeat-file"),
        ({"heartbeat_file": "/"}, "--heartbeat-file"),
        ({"database": "nowhere"}, "--database"),
    ],
)
def test_each_flag_is_refused_by_name(flags, field):
    with pytest.raises(CommandError) as caught:
        call_command("broker_worker", burst=True, **flags)

    assert caught.value.returncode == 2
    assert str(caught.value).startswith(f"[invalid_option] {field} ")


def test_a_limit_for_children_is_refused_where_nothing_runs_in_them(start):
    worker = start("--max-jobs-per-child", "5")

    assert worker.code() == 2
    assert "[invalid_option] --max-jobs-per-child " in worker.said


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="alone"),
        pytest.param(["--processes", "2"], id="under a parent", marks=pytest.mark.slow),
    ],
)
def test_a_project_that_starts_threads_while_it_loads_is_not_forked(start, more):
    """Every process is a fresh interpreter then, and the jobs are none the wiser."""
    jobs = [enqueue(), enqueue(name="handlers.deaf", seconds=0)]

    flags = ("--burst", "--queues", QUEUE, "--executor", "process", "--concurrency", "1", *more)
    worker = start(*flags, apps="tests.support.threaded.Threaded")

    assert worker.code() == 0, worker.said
    assert {status(job) for job in jobs} == {Status.COMPLETED}
    assert "Traceback" not in worker.said


def test_a_worker_called_from_code_makes_children_without_forking_its_caller():
    from tests.runtime import handlers

    result = handlers.tell_pid.enqueue(1)

    call_command("broker_worker", burst=True, queues="default", executor="process", concurrency=1)

    result.refresh()
    assert result.return_value != os.getpid()


def test_a_worker_runs_in_process_too():
    enqueue_one()

    call_command("broker_worker", burst=True, queues="default")

    assert not Job.objects.filter(status=Status.RUNNING).exists()


def test_the_end_of_a_burst_tells_of_what_is_scheduled_for_later(start):
    enqueue()
    for _ in range(2):
        enqueue_one(job_type="handlers.nothing", queue=QUEUE, available_at="2999-01-01T00:00:00Z")
    enqueue_one(available_at="2999-01-01T00:00:00Z")
    with tenant_context("acme"):
        enqueue_one(job_type="handlers.nothing", queue=QUEUE, available_at="2999-01-01T00:00:00Z")

    worker = start("--burst", "--queues", QUEUE)

    assert worker.code() == 0, worker.said
    assert "3 jobs are scheduled for later" in worker.said.splitlines()[-1]


def test_the_end_of_a_burst_tells_of_what_is_paused(start):
    enqueue_one(job_type="handlers.nothing", queue=QUEUE)
    with tenant_context("acme"):
        enqueue_one(job_type="handlers.nothing", queue=QUEUE)
    control.pause(tenant="acme")

    worker = start("--burst", "--queues", QUEUE)

    assert worker.code() == 0, worker.said
    assert "1 job is left ready: paused" in worker.said.splitlines()[-1]


def test_a_burst_that_leaves_nothing_says_nothing_of_later(start):
    enqueue()

    worker = start("--burst", "--queues", QUEUE)

    assert worker.code() == 0, worker.said
    assert "for later" not in worker.said


# ------------------------------------------------------------------ queues


def test_a_queue_that_nobody_declared_or_made_is_refused_and_not_made():
    declare_queues(["reports"])

    with pytest.raises(CommandError) as caught:
        call_command("broker_worker", burst=True, queues="default,reprots,elsewhere")

    first, second = str(caught.value).splitlines()
    assert caught.value.returncode == 2
    assert first.startswith("[unknown_queue] there is no queue 'reprots'. Did you mean 'reports'?")
    assert "manage.py broker_queues create reprots" in first
    assert "'elsewhere'" in second
    assert "Did you mean" not in second
    assert not Queue.objects.filter(name__in=["reprots", "elsewhere"]).exists()


def test_a_queue_that_a_job_declares_is_made(start):
    with guards_off():
        Queue.objects.filter(name=QUEUE).delete()

    worker = start("--burst", "--queues", QUEUE)

    assert worker.code() == 0, worker.said
    assert Queue.objects.filter(name=QUEUE).exists()


def test_an_excluded_queue_that_nobody_knows_is_warned_of(start):
    worker = start("--burst", "--exclude-queues", "handlres")

    assert worker.code() == 0, worker.said
    assert "--exclude-queues leaves nothing out: there is no queue 'handlres'" in worker.said
    assert "Did you mean 'handlers'?" in worker.said


def test_excluded_queues_are_left_alone(start):
    served, left = enqueue(), enqueue_one()

    assert start("--burst", "--exclude-queues", "default").code() == 0

    assert (status(served), status(left)) == (Status.COMPLETED, Status.READY)


# ------------------------------------------------------------------ signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_leaves_at_once_and_clean(start, number):
    worker = start("--queues", QUEUE, "--poll-interval", "30").started()

    began = time.monotonic()
    worker.kill(number)

    assert worker.code() == 0, worker.said
    assert time.monotonic() - began < 10
    assert "Traceback" not in worker.said
    assert Worker.objects.get().stopped_at is not None


def test_a_drain_waits_for_what_runs(start):
    job = enqueue("handlers.deaf", seconds=1.5)
    worker = start("--queues", QUEUE)
    worker.until(running(job))

    worker.kill()

    assert worker.code() == 0, worker.said
    assert status(job) == Status.COMPLETED


def test_what_does_not_end_in_time_is_handed_back_unharmed(start):
    job = enqueue("handlers.deaf", seconds=120)
    worker = start("--queues", QUEUE, "--shutdown-timeout", "0.3")
    worker.until(running(job))

    worker.kill()

    assert worker.code() == 0, worker.said
    assert status(job) == Status.READY
    assert [each.state for each in executions(job)] == [AttemptState.RELEASED]


def test_a_second_signal_exits_at_once(start):
    job = enqueue("handlers.deaf", seconds=120)
    worker = start("--queues", QUEUE, "--shutdown-timeout", "600")
    worker.until(running(job))

    worker.kill()
    worker.until(lambda: "drains" in worker.said)
    worker.kill()

    assert worker.code(10) == 1
    assert "second signal" in worker.said
    # Its lease runs out; another worker takes it then.
    assert status(job) == Status.RUNNING


@pytest.mark.slow
@pytest.mark.parametrize("round_no", range(6))
def test_a_signal_at_any_moment_of_the_start_ends_it_soon_and_holds_nothing(start, round_no):
    jobs = [enqueue() for _ in range(5)]
    worker = start("--queues", QUEUE)

    time.sleep(random.uniform(0.0, 3.0))
    worker.kill()

    # Before the command is loaded the signal's default applies: nothing was begun yet.
    assert worker.code() in (0, -signal.SIGTERM), worker.said
    assert "Traceback" not in worker.said
    assert {status(job) for job in jobs} <= {Status.READY, Status.COMPLETED}
    assert Execution.objects.filter(state=AttemptState.COMPLETED).count() == [
        status(job) for job in jobs
    ].count(Status.COMPLETED)


def test_the_heartbeat_file_is_touched_while_the_loop_turns(start, tmp_path):
    file = tmp_path / "beat"
    worker = start("--queues", QUEUE, "--heartbeat-file", str(file), "--poll-interval", "30").started()

    worker.until(file.exists)
    first = file.stat().st_mtime
    worker.until(lambda: file.stat().st_mtime > first)
    worker.kill()

    assert worker.code() == 0

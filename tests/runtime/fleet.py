"""Real worker processes for tests, and the questions tests ask about jobs and effects."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from django.db import connection, connections, transaction

from pgbroker.lifecycle.declare import declare_queues
from pgbroker.models import Execution, Job, Worker
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import scope_all
from tests.support.processes import alive, descendants_of
from tests.support.sessions import conninfo, environment_of_processes

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
# How long a stage may take. It decides no outcome: running out of it is an error of the test.
PATIENCE_SECONDS = 40.0
LEASE, HEARTBEAT, POLL, REAP, LEADER = 4.0, 1.0, 1.0, 1.0, 2.0
SETTINGS = {
    "LEASE_SECONDS": LEASE,
    "HEARTBEAT_SECONDS": HEARTBEAT,
    "POLL_SECONDS": POLL,
    "REAP_SECONDS": REAP,
    "LEADER_SECONDS": LEADER,
    "SHUTDOWN_TIMEOUT_SECONDS": 5,
    "BACKOFF": 0.1,
}
TENANTS = ("acme", "globex")


class WorkerProcess:
    """One `broker_worker` or `broker_scheduler`, or the line of its successors where it is restarted."""

    def __init__(self, fleet: Fleet, number: int, log: Path) -> None:
        self.fleet, self.number, self.log_path = fleet, number, log

    def _look(self) -> dict[str, Any]:
        return self.fleet.ask({"do": "look", "number": self.number})

    @property
    def pid(self) -> int:
        """The process that runs now, or ran last."""
        return self._look()["pids"][-1]

    @property
    def starts(self) -> int:
        """How often it was started."""
        return len(self._look()["pids"])

    @property
    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        return self._look()["code"]

    @property
    def log(self) -> str:
        """What it wrote to stdout and stderr."""
        return self.log_path.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as the kernel's out-of-memory killer would."""
        self.fleet.ask({"do": "settle", "number": self.number})
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """Ask it to drain and wait for its end; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for its end; returns the exit code."""
        wait_until(lambda: self.exit_code is not None, f"worker {self.number} has ended", seconds, of=self)
        code = self.exit_code
        assert code is not None
        return code

    def wait_until_started(self) -> WorkerProcess:
        """Return once its loops turn."""
        wait_until(
            lambda: "worker started" in self.log or "scheduler started" in self.log,
            f"worker {self.number} has started",
            of=self,
        )
        return self


class Fleet:
    """All workers of a test run, forked from one zygote."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._count = 0
        self._workers: list[WorkerProcess] = []
        self._zygote = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.runtime.zygote"],
            cwd=ROOT,
            env={**os.environ, **environment_of_processes(), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._zygote.stdout is not None
        assert self._zygote.stdout.readline() == b"ready\n"

    def ask(self, request: dict[str, Any]) -> Any:
        """Send the zygote a request and return its answer."""
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        with self._lock:
            self._zygote.stdin.write(json.dumps(request).encode() + b"\n")
            self._zygote.stdin.flush()
            return json.loads(self._zygote.stdout.readline())

    def start(
        self,
        *flags: str,
        command: str = "broker_worker",
        slots: int = 4,
        debug: bool = False,
        restart: bool = False,
        handlers: bool = True,
        without: Sequence[Any] = (),
        group: bool = False,
        patch: dict[str, Any] | None = None,
        crash: dict[str, Any] | None = None,
        losses: dict[str, Any] | None = None,
        database: dict[str, Any] | None = None,
        storages: dict[str, Any] | None = None,
        wait: bool = True,
        **settings: Any,
    ) -> WorkerProcess:
        """Start a worker, or another *command*, with these flags and settings; returns once its loops turn."""
        self._count += 1
        log = self.directory / f"worker-{self._count}.log"
        log.touch()
        # Its own connection parameters: the zygote may have been made for another database.
        own = {
            name: connections["default"].settings_dict[name]
            for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT")
        }
        number = self.ask(
            {
                "do": "start",
                "spec": {
                    "command": command,
                    "flags": [*(["--concurrency", str(slots)] if command == "broker_worker" else []), *flags],
                    "settings": {**SETTINGS, **settings},
                    "log": str(log),
                    "debug": debug,
                    "restart": restart,
                    "handlers": handlers,
                    "group": group,
                    "patch": patch or {},
                    "without": [task.key for task in without],
                    "crash": crash,
                    "losses": losses,
                    "storages": storages,
                    "database": {**own, **(database or {})},
                },
            }
        )
        worker = WorkerProcess(self, number, log)
        self._workers.append(worker)
        return worker.wait_until_started() if wait else worker

    def kill_all(self) -> None:
        """End every worker at once, and what it started: that would go on for a while, into the next test."""
        for worker in self._workers:
            if worker.exit_code is None:
                started = descendants_of(worker.pid)
                with contextlib.suppress(ProcessLookupError):
                    worker.signal(signal.SIGCONT)
                worker.kill()
                for pid in started:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                wait_until(lambda started=started: not alive(started), "what it started is gone")
        self._workers.clear()

    def close(self) -> None:
        """End the zygote and whatever it forked."""
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.close()
        self._zygote.wait(10)
        self._zygote.stdout.close()


def wait_until(
    done: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS, *, of: WorkerProcess | None = None
) -> T:
    """Return what *done* answers once it is true."""
    until = time.monotonic() + seconds
    while True:
        answer = done()
        if answer:
            return answer
        if time.monotonic() > until:
            raise AssertionError(f"not in {seconds:g} s: {what}\n{of.log[-6000:] if of else ''}")
        time.sleep(0.02)


# ------------------------------------------------------------------ jobs


def put(task: Any, *args: Any, tenant: str = TENANTS[0], **options: Any) -> UUID:
    """Enqueue one call for a tenant; *options* are pgbroker's, or Django's `using()` options."""
    using = {name: options.pop(name) for name in ("priority", "queue_name", "run_after") if name in options}
    chosen = task.using(**using) if using else task
    return UUID(chosen.options(tenant=tenant, **options).enqueue(*args).id)


def make_queues(*names: str) -> None:
    """Make queues that no code declares."""
    declare_queues(names)


def put_together(*calls: tuple[Any, ...], **options: Any) -> list[UUID]:
    """Enqueue calls (task, tenant, *args) in one transaction: one claim sees them all."""
    with transaction.atomic():
        return [put(task, *args, tenant=tenant, **options) for task, tenant, *args in calls]


def put_for_both(task: Any, *args: Any, **options: Any) -> list[UUID]:
    """Enqueue one call for each of the two tenants."""
    return [put(task, *args, tenant=tenant, **options) for tenant in TENANTS]


def job(job_id: UUID) -> Job:
    """Read a job, of whichever tenant."""
    with scope_all():
        return Job.objects.get(pk=job_id)


def status_of(job_id: UUID) -> Status:
    """Read where a job is now."""
    with scope_all():
        return Status(Job.objects.values_list("status", flat=True).get(pk=job_id))


def executions_of(job_id: UUID) -> list[Execution]:
    """List the ended attempts of a job, in order."""
    with scope_all():
        return list(Execution.objects.filter(job=job_id).order_by("attempt_no", "completed_at"))


def states_of(job_id: UUID) -> list[AttemptState]:
    """List how a job's attempts ended, without those that were handed back."""
    states = [AttemptState(each.state) for each in executions_of(job_id)]
    return [state for state in states if state != AttemptState.RELEASED]


def count_by_status() -> dict[Status, int]:
    """Count all jobs by status."""
    with connection.cursor() as cursor, scope_all():
        cursor.execute("select status, count(*) from pgbroker.job group by status")
        return {Status(status): count for status, count in cursor.fetchall()}


def wait_for_status(
    job_ids: UUID | Sequence[UUID],
    *statuses: Status,
    seconds: float = PATIENCE_SECONDS,
    of: WorkerProcess | None = None,
) -> None:
    """Return once every one of those jobs has one of those statuses; default: any terminal one."""
    wanted = set(statuses) or {Status.COMPLETED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED}
    ids = [job_ids] if isinstance(job_ids, UUID) else list(job_ids)

    def seen() -> dict[UUID, Status]:
        with scope_all():
            return {
                key: Status(status)
                for key, status in Job.objects.filter(pk__in=ids).values_list("id", "status")
            }

    def done() -> bool:
        return set(seen().values()) <= wanted

    try:
        wait_until(done, f"{[status.label for status in wanted]}", seconds, of=of)
    except AssertionError as error:
        slow = {
            str(key): (status.label, states_of(key)) for key, status in seen().items() if status not in wanted
        }
        raise AssertionError(f"{dict(list(slow.items())[:5])} of {len(slow)}: {error}") from None


def workers() -> list[Worker]:
    """List the workers' rows."""
    return list(Worker.objects.order_by("started_at"))


# ------------------------------------------------------------------ effects


def make_effects_table() -> None:
    """Make the plain table that handlers write to, or empty it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "create table if not exists public.runtime_effect ("
            "id bigint generated always as identity, what text not null, job_id uuid, tenant text, detail text, "
            "pid int not null, at timestamptz not null default clock_timestamp())"
        )
        cursor.execute("delete from public.runtime_effect")


def effects(what: str | None = None, job_id: UUID | None = None) -> list[dict[str, Any]]:
    """List what handlers wrote, in order."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select what, job_id, tenant, detail, pid, at from public.runtime_effect "
            "where (%(what)s::text is null or what = %(what)s) and (%(job)s::uuid is null or job_id = %(job)s) "
            "order by id",
            {"what": what, "job": job_id},
        )
        names = [column.name for column in cursor.description]
        return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]


def wait_for_effect(
    what: str, job_id: UUID | None = None, *, count: int = 1, of: WorkerProcess | None = None
) -> list[dict[str, Any]]:
    """Return the effects of that name once there are so many."""
    wait_until(lambda: len(effects(what, job_id)) >= count, f"{count} effects {what!r}", of=of)
    return effects(what, job_id)


def end_sessions(superuser: psycopg.Connection, like: str = "%") -> int:
    """End all sessions on the test's database but this process's; *like* is for the application's name."""
    connection.ensure_connection()
    own = connection.connection.info.backend_pid
    (count,) = superuser.execute(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() "
        "and backend_type = 'client backend' and pid not in (pg_backend_pid(), %s) and application_name like %s",
        (own, like),
    ).fetchone()
    return count


@contextlib.contextmanager
def raw_session(tenant: str | None = None) -> Iterator[psycopg.Connection]:
    """Open another connection to the test's database, in autocommit; without *tenant* it sees all of them."""
    with psycopg.connect(conninfo(direct=True), autocommit=True) as session:
        session.execute(
            "select set_config('pgbroker.scope', %s, false), set_config('pgbroker.tenant_id', %s, false)",
            ("" if tenant else "all", tenant or ""),
        )
        yield session

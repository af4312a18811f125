"""Handlers for the tests of the runtime. Each writes what it did to a plain table, on its own connection."""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from typing import Any

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, transaction

from pgbroker import Discard, JobContext, Retry, Snooze, correlation, job
from pgbroker.runtime.isolation import current_attempt
from pgbroker.tenancy import scope_all

# Whose value a leak would carry to the next job.
left_behind: ContextVar[str] = ContextVar("left_behind", default="")


def effect(what: str, detail: str = "") -> None:
    """Write one row, as an application would."""
    lease = correlation.current_lease.get()
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into public.runtime_effect (what, job_id, tenant, detail, pid) values (%s, %s, %s, %s, %s)",
            (what, lease and lease.job_id, lease and lease.tenant_id, detail, os.getpid()),
        )


effect_async = sync_to_async(effect)


@job
def note(what: str) -> None:
    effect(what)


@job
async def note_async(what: str) -> None:
    await effect_async(what)


@job(max_attempts=1)
def needs_note(what: str) -> None:
    """Fail when what another job noted cannot be seen."""
    with connection.cursor() as cursor:
        cursor.execute("select count(*) from public.runtime_effect where what = %s", (what,))
        if cursor.fetchone()[0] != 1:
            raise Discard(f"{what} is not there")


@job
def nothing(number: int) -> int:
    return number


@job
async def nothing_async(number: int) -> int:
    return number


@job(takes_context=True)
def work(context: JobContext, seconds: float) -> str:
    """Work that looks whether it should stop."""
    effect("enter")
    context.wait(seconds)
    if context.cancelled:
        effect("stopped", context.stop_reason or "")
        context.raise_if_cancelled()
    effect("leave")
    return "done"


@job(takes_context=True)
def leave_early(context: JobContext) -> None:
    """Work that hands itself back once its worker drains."""
    effect("enter")
    while not context.shutting_down:
        context.wait(0.05)
    effect("left early")
    raise Snooze(0, "the worker shuts down")


@job(takes_context=True)
async def work_async(context: JobContext, seconds: float) -> str:
    await effect_async("enter")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        await effect_async("stopped", context.stop_reason or "")
        # A clean-up that takes longer than a heartbeat, and must not be cancelled in turn.
        await asyncio.sleep(1.5)
        await effect_async("cleaned")
        raise
    await effect_async("leave")
    return "done"


@job(takes_context=True)
async def query_async(context: JobContext, seconds: float) -> None:
    """Work whose awaits are all in Django's thread, where asgiref swallows a cancel."""
    await effect_async("enter")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await sync_to_async(time.sleep)(0.3)
        await asyncio.sleep(0.1)
    await effect_async("leave")


@job
def query_for(seconds: float) -> None:
    """Work that is one long query."""
    effect("enter")
    with connection.cursor() as cursor:
        cursor.execute("select pg_sleep(%s)", (seconds,))


@job
def copy_for(seconds: float) -> None:
    """Work that feeds the server slowly."""
    effect("enter")
    with connection.cursor() as cursor:
        cursor.execute("create temporary table if not exists fed (n int)")
        with cursor.copy("copy fed from stdin") as copy:
            for number in range(4):
                time.sleep(seconds / 4)
                copy.write_row((number,))


@job
def pause_in_pipeline(seconds: float) -> None:
    """Work that sends the server a part of what it wants, and the rest later."""
    effect("enter")
    raw = connection.connection
    with raw.pipeline():
        raw.execute("select 1")
        raw.pgconn.send_flush_request()
        raw.pgconn.flush()
        time.sleep(seconds)
        raw.execute("select 2")
    effect("leave")


@job
def stubborn(seconds: float) -> str:
    """Work that knows of no stop signal."""
    effect("enter")
    time.sleep(seconds)
    effect("leave")
    return "late"


@job
async def stubborn_async(seconds: float) -> str:
    await effect_async("enter")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            continue
    await effect_async("leave")
    return "late"


@job
async def stubborn_thread(seconds: float) -> None:
    """A coroutine that waits for a thread which cannot be stopped."""
    await effect_async("enter")
    await sync_to_async(time.sleep)(seconds)


@job
def burn(seconds: float) -> None:
    """Pure Python that never waits."""
    effect("enter")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        math.factorial(50)
    effect("leave")


@job(max_attempts=4)
def hold_the_gil(letters: int) -> None:
    """One call that never lets another thread run: a regular expression gone wild. The first time only."""
    effect("enter")
    lease = correlation.current_lease.get()
    assert lease is not None
    if lease.attempt_count == 1:
        re.match(r"(a+)+$", "a" * letters + "b")
    effect("leave")


@job
def die(code: int) -> None:
    """End the process, without a word."""
    effect("enter")
    os._exit(code)


@job
def die_or_raise(*ways: str) -> None:
    """Attempt n ends as the nth way says."""
    effect("enter")
    lease = correlation.current_lease.get()
    assert lease is not None
    if ways[lease.attempt_count - 1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("this time an error")


@job(max_attempts=5)
def fail_before(attempt: int) -> None:
    """Raise until that attempt."""
    lease = correlation.current_lease.get()
    assert lease is not None
    if lease.attempt_count < attempt:
        raise ValueError("not yet")


@job
def fail_slowly(seconds: float) -> None:
    """Raise after a while."""
    time.sleep(seconds)
    raise ValueError("at last")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class Exits(Exception):
    def __str__(self) -> str:
        sys.exit("even this")


def chain(length: int) -> Exception:
    error = ValueError("the root")
    for number in range(length):
        outer = RuntimeError(f"link {number}")
        outer.__cause__ = error
        error = outer
    return error


def raised(kind: str) -> BaseException:
    match kind:
        case "value_error":
            return ValueError("the message")
        case "base_exception":
            return BaseException("bare")
        case "system_exit":
            return SystemExit(3)
        case "keyboard_interrupt":
            return KeyboardInterrupt()
        case "cancelled_error":
            return asyncio.CancelledError()
        case "generator_exit":
            return GeneratorExit()
        case "unprintable":
            return Unprintable()
        case "exits_in_str":
            return Exits()
        case "huge":
            return ValueError("x" * 50_000_000)
        case "long_chain":
            return chain(10_000)
        case "nul_and_surrogate":
            return ValueError("a\x00b\udc80c")
        case "stop_iteration":
            return StopIteration("stop")
        case "retry":
            return Retry(3600, "not yet")
        case "retry_soon":
            return Retry(0.1)
        case "retry_by_backoff":
            return Retry()
        case "snooze":
            return Snooze(3600, "zz\x00z")
        case "snooze_for_ages":
            return Snooze(86400 * 365 * 1000)
        case "retry_in_ages":
            return Retry(86400 * 365 * 1000)
        case "odd_verdict":
            verdict = Retry(1)
            verdict.delay = "soon"  # type: ignore[assignment]
            return verdict
        case "discard":
            return Discard("never")
        case "group":
            return BaseExceptionGroup("many", [ValueError("one"), KeyboardInterrupt()])
    raise AssertionError(kind)


def returned(kind: str) -> Any:
    match kind:
        case "nan":
            return math.nan
        case "infinite_inside":
            return {"a": [1.0, math.inf]}
        case "not_json":
            return object()
        case "too_large":
            return "x" * 300_000
        case "nul":
            return "a\x00b"
        case "surrogate":
            return "\udc80"
        case "recursive":
            value: list[Any] = []
            value.append(value)
            return value
        case "deep":
            deep: Any = 1
            for _ in range(100_000):
                deep = [deep]
            return deep
        case "fine":
            return {"rows": [1, 2.5, None, "ü"]}
        case "retry" | "snooze" | "discard":
            return raised(kind)
    raise AssertionError(kind)


@job
def raise_it(kind: str) -> None:
    raise raised(kind)


@job
async def raise_it_async(kind: str) -> None:
    await asyncio.sleep(0)
    raise raised(kind)


@job
def return_it(kind: str) -> Any:
    return returned(kind)


@job
async def return_it_async(kind: str) -> Any:
    return returned(kind)


@job(backoff=lambda error, result: sys.exit("a backoff that exits"))
def raise_with_bad_backoff() -> None:
    raise ValueError("the message")


@job
async def leave_a_task_that_exits() -> None:
    """A task of the handler's own ends with SystemExit, after the handler."""

    async def later() -> None:
        raise SystemExit("from a task")

    kept.append(asyncio.get_running_loop().create_task(later()))


kept: list[Any] = []


@job
def write_log(lines: int) -> None:
    import logging

    log = logging.getLogger("application")
    for number in range(lines):
        log.warning("line %d", number)
    logging.getLogger("pgbroker.something").warning("not the handler's")


@job(takes_context=True)
def tell_context(context: JobContext, number: int) -> dict[str, Any]:
    return {
        "attempt": context.attempt,
        "job_id": str(context.job_id),
        "tenant_id": context.tenant_id,
        "correlation_id": context.correlation_id,
        "last": context.is_last_attempt,
        "cancelled": context.cancelled,
        "stop_reason": context.stop_reason,
        "deadline": context.deadline_at is not None,
        "task": context.task_result.id,
        "status": context.task_result.status.value,
        "args": list(context.task_result.args),
    }


def around() -> dict[str, Any]:
    """What a handler finds around itself."""
    attempt = current_attempt.get()
    return {
        "left_behind": left_behind.get(),
        "tenant": correlation.tenant.get(),
        "everything": correlation.scope_all.get(),
        "correlation_id": correlation.current_correlation_id(),
        "attempt": str(attempt.lease.job_id) if attempt else None,
    }


def leave_things() -> None:
    left_behind.set("by the job before")
    correlation.tenant.set("nobody")
    correlation.correlation_id.set("of the job before")
    scope_all().__enter__()


@job
def look_around(leave: bool) -> dict[str, Any]:
    found = around()
    if leave:
        leave_things()
    return found


@job
async def look_around_async(leave: bool) -> dict[str, Any]:
    found = around()
    if leave:
        leave_things()
    return found


def visible_jobs() -> list[str]:
    from pgbroker.models import Job

    return sorted({each.tenant_id for each in Job.objects.all()})


@job
def look_at_jobs() -> list[str]:
    """The tenants whose jobs the ORM shows."""
    note.enqueue("child")
    return visible_jobs()


@job
async def look_at_jobs_async() -> list[str]:
    await note.aenqueue("child")
    return await sync_to_async(visible_jobs)()


@job
def spoil_connection(how: str) -> str:
    """Leave Django's connection in a state that no other job should meet."""
    match how:
        case "caught inside atomic":
            with transaction.atomic():
                try:
                    with connection.cursor() as cursor:
                        cursor.execute("select 1/0")
                except Exception:
                    return "caught"
        case "bad sql":
            with connection.cursor() as cursor:
                cursor.execute("selekt 1")
        case "autocommit off and broken":
            transaction.set_autocommit(False)
            with connection.cursor() as cursor:
                cursor.execute("select 1/0")
        case "autocommit off and forgotten":
            transaction.set_autocommit(False)
            effect("uncommitted")
            return "forgotten"
        case "atomic never left":
            transaction.atomic().__enter__()
            effect("uncommitted")
            return "never left"
        case "integrity error":
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("insert into pgbroker.queue (name) values (null)")
        case "session setting":
            with connection.cursor() as cursor:
                cursor.execute("select set_config('pgbroker.scope', 'all', false)")
            return "set"
        case "killed":
            with connection.cursor() as cursor:
                cursor.execute("select pg_terminate_backend(pg_backend_pid())")
        case "raw begin":
            with connection.cursor() as cursor:
                cursor.execute("begin")
            effect("uncommitted")
            return "begun"
        case "closed":
            connection.ensure_connection()
            connection.connection.close()
            return "closed"
    raise IntegrityError("unreachable")


@job
def count_queries() -> dict[str, int]:
    """Make some queries, and tell how many the log of DEBUG has."""
    with connection.cursor() as cursor:
        for _ in range(5):
            cursor.execute("select 1")
    return {"queries": len(connection.queries_log), "backend": connection.connection.info.backend_pid}


@job
def long_atomic(seconds: float) -> None:
    with transaction.atomic():
        effect("enter")
        time.sleep(seconds)


@job
def thread_count() -> int:
    return threading.active_count()


@job
def raise_text(text: str) -> None:
    raise ValueError(text)


@job
def heavy(size: int) -> str:
    return "x" * size


@job
def sometimes_slow(seconds: float) -> None:
    if seconds:
        time.sleep(seconds)
        effect("slow")


@job
def fail_after(seconds: float) -> None:
    effect("enter")
    time.sleep(seconds)
    raise ValueError("after all")


@job
def stubborn_quiet(seconds: float) -> None:
    """Work that asks the database nothing."""
    time.sleep(seconds)


@job
def enter_queue(name: str, seconds: float) -> None:
    effect(name)
    time.sleep(seconds)


@job
def retry_in(seconds: float) -> None:
    raise Retry(seconds)


@job
def echo_size(text: str) -> int:
    return len(text)


# ------------------------------------------------------------------ bodies


@job(takes_context=True)
def measure(context: JobContext, text: str) -> str:
    """Tell how long the arguments are, as the handler and as Django's task result have them."""
    effect("measured", f"{len(text)} {len(context.task_result.args[0])}")
    return text


@job(takes_context=True)
async def measure_async(context: JobContext, text: str) -> str:
    await effect_async("measured", f"{len(text)} {len(context.task_result.args[0])}")
    return text


@job(takes_context=True)
def produce(context: JobContext, length: int, seconds: float = 0.0) -> str:
    """Return a large result, in the end."""
    effect("producing")
    time.sleep(seconds)
    return "x" * length


# ------------------------------------------------------------------ child processes


@job
def segfault() -> None:
    """End the process as a broken extension does."""
    effect("enter")
    ctypes.string_at(0)


@job
def kill_itself(number: int) -> None:
    effect("enter")
    os.kill(os.getpid(), number)
    time.sleep(600)


@job(executor="process")
def die_in_child(code: int) -> None:
    effect("enter")
    os._exit(code)


@job(executor="process")
async def die_in_child_async(code: int) -> None:
    await effect_async("enter")
    os._exit(code)


@job(executor="thread")
def note_in_thread(what: str) -> None:
    effect(what)


@job
def tell_pid(number: int) -> int:
    return os.getpid()


@job
def grow(megabytes: int) -> int:
    """Take memory and keep it."""
    kept.append(b"x" * (1024**2 * megabytes))
    return os.getpid()


@job
def leave_a_program(seconds: int) -> None:
    """Start a program, and wait for it."""
    program = subprocess.Popen(["sleep", str(seconds)])
    effect("program", str(program.pid))
    program.wait()


@job
def run_out_of_memory(megabytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (megabytes * 1024**2, resource.RLIM_INFINITY))
    try:
        bytearray(16 * megabytes * 1024**2)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@job
def enter_slowly(slow: bool) -> None:
    """Quick as a rule; the first attempt of a slow one waits to be killed."""
    lease = correlation.current_lease.get()
    assert lease is not None
    if slow and lease.attempt_count == 1:
        effect("slow")
        time.sleep(600)


@job
def die_slowly() -> None:
    effect("enter")
    lease = correlation.current_lease.get()
    assert lease is not None
    if lease.attempt_count == 1:
        time.sleep(600)


@job
def meet(number: int) -> None:
    """Wait until so many of its kind have begun."""
    effect("meet")
    until = time.monotonic() + 20
    with connection.cursor() as cursor:
        while time.monotonic() < until:
            cursor.execute("select count(*) from public.runtime_effect where what = 'meet'")
            if cursor.fetchone()[0] >= number:
                return
            time.sleep(0.05)
    raise AssertionError("alone")


@job
def tick(seconds: float) -> None:
    """Leave a mark all the time, and hear nothing."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        effect("tick")
        time.sleep(0.05)


@job(takes_context=True)
def tick_of(context: JobContext) -> None:
    """Tell of which tick it is the job."""
    effect("tick", "" if context.scheduled_for is None else context.scheduled_for.isoformat())

"""Hooks around enqueue, run and settle: in order, in the right thread and task, and no harm to the work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from django.db import connection, transaction

from pgbroker import Retry, enqueue_many, get_job, hooks, job
from pgbroker.compat import task_enqueued
from pgbroker.errors import EnqueueRefused, InvalidOption
from pgbroker.models import Execution, Job
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import scope_all
from pgbroker.testing import run_jobs
from pgbroker.worker import BackgroundWorker, WorkerOptions
from tests.runtime.fleet import wait_until
from tests.support.jobs import status
from tests.support.sessions import second_session

pytestmark = pytest.mark.usefixtures("no_process_types")

QUEUE = "hooked"
inside: ContextVar[tuple[str, ...]] = ContextVar("inside", default=())
seen: list[Any] = []


@job(name="tests.hooks.note", queue_name=QUEUE)
def note(text: str) -> str:
    seen.append(("note", inside.get(), threading.get_ident()))
    if text == "fail":
        raise LookupError("no such thing")
    if text == "retry":
        raise Retry(3600)
    return text


@job(name="tests.hooks.note_async", queue_name=QUEUE)
async def note_async(text: str) -> str:
    seen.append(("note_async", inside.get(), threading.get_ident()))
    return text


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@pytest.fixture
def register() -> Iterator[Callable[..., Any]]:
    """Register a hook for one test."""
    registered = []

    def add(kind: Callable[..., Any], hook: Any) -> Any:
        registered.append(kind(hook))
        return hook

    yield add
    for hook in registered:
        hooks.remove(hook)


# ------------------------------------------------------------------ before and after enqueue


@pytest.mark.django_db
@pytest.mark.parametrize("bulk", [False, True], ids=["one", "many"])
def test_hooks_before_enqueue_change_a_call_one_after_the_other(register, bulk):
    def stamp(call):
        return call.task.options(correlation_id="req-7").bind(*call.args, **call.kwargs)

    def shout(call):
        seen.append(call.task.call_options.correlation_id)
        return call.task.using(priority=9).bind(call.args[0].upper())

    register(hooks.before_enqueue, stamp)
    register(hooks.before_enqueue, shout)
    register(hooks.before_enqueue, lambda call: None)

    made = enqueue_many([note.bind("a")])[0].job_id if bulk else note.enqueue("a").id

    stored = get_job(made)
    assert (stored.correlation_id, stored.priority, stored.call["args"]) == ("req-7", 9, ["A"])
    assert seen == ["req-7"]


@pytest.mark.django_db
def test_a_hook_that_moves_a_call_to_a_tenant_gives_its_caller_that_tenants_result(register):
    register(hooks.before_enqueue, lambda call: call.task.options(tenant="acme").bind(*call.args))

    result = note.enqueue("a")
    result.refresh()

    with scope_all():
        assert Job.objects.get(pk=result.id).tenant_id == "acme"


@pytest.mark.django_db
def test_a_hook_refuses_a_call_and_in_bulk_that_call_alone(register):
    def closed(call):
        if call.args == ("late",):
            raise EnqueueRefused("closed", "the shop is closed")

    register(hooks.before_enqueue, closed)

    with pytest.raises(EnqueueRefused, match="the shop is closed"):
        note.enqueue("late")
    outcomes = enqueue_many([note.bind("a"), note.bind("late"), note.bind("b")])

    assert [each.outcome for each in outcomes] == ["created", "enqueue_refused", "created"]
    assert outcomes[1].error.reason == "closed"
    assert Job.objects.count() == 2


@pytest.mark.django_db
def test_another_error_of_a_hook_is_the_callers_and_nothing_is_stored(register):
    def broken(call):
        if call.args == ("b",):
            raise ZeroDivisionError

    register(hooks.before_enqueue, broken)

    with pytest.raises(ZeroDivisionError):
        enqueue_many([note.bind("a"), note.bind("b")])
    assert not Job.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("answer", [42, note_async.bind("a")], ids=["no call", "another job"])
def test_what_a_hook_may_not_return_is_refused_by_its_name(register, answer):
    def careless(call):
        return answer

    register(hooks.before_enqueue, careless)

    with pytest.raises(InvalidOption, match="careless"):
        note.enqueue("a")


@pytest.mark.django_db
def test_after_enqueue_hears_of_new_jobs_alone_and_harms_nobody(register, caplog):
    def broken(made):
        raise ZeroDivisionError

    register(hooks.after_enqueue, broken)
    register(hooks.after_enqueue, seen.append)
    keyed = note.options(idempotency_key="one")

    first = keyed.enqueue("a")
    keyed.enqueue("a")
    many = enqueue_many([note.bind("b"), keyed.bind("a")])

    assert [(str(each.job_id), each.job_type, each.queue) for each in seen] == [
        (first.id, "tests.hooks.note", QUEUE),
        (str(many[0].job_id), "tests.hooks.note", QUEUE),
    ]
    assert "a telemetry listener failed on job.enqueued" in caplog.text


@pytest.mark.django_db
def test_djangos_own_signal_comes_as_before(register):
    def heard(sender, task_result, **_):
        seen.append(task_result.id)

    register(hooks.after_enqueue, lambda made: seen.append(str(made.job_id)))
    task_enqueued.connect(heard)
    try:
        result = note.enqueue("a")
    finally:
        task_enqueued.disconnect(heard)

    assert seen == [result.id, result.id]


# ------------------------------------------------------------------ around a run


def naming(name: str):
    """Make a hook that is told in the context variable, and tells when it is left."""

    def hook(context):
        @contextmanager
        def around():
            token = inside.set((*inside.get(), name))
            try:
                yield
            except BaseException as error:
                seen.append((name, "raised", type(error).__name__))
                raise
            finally:
                inside.reset(token)
                seen.append((name, "left", threading.get_ident()))

        return around()

    return hook


def naming_async(name: str):
    def hook(context):
        @asynccontextmanager
        async def around():
            token = inside.set((*inside.get(), name))
            try:
                yield
            finally:
                inside.reset(token)

        return around()

    return hook


@contextmanager
def worker() -> Iterator[None]:
    options = WorkerOptions(queues=(QUEUE,), concurrency=2, poll_interval=0.2)
    with BackgroundWorker(options):
        yield


def run_in_worker() -> None:
    """Run what is ready in a worker's threads and event loop."""
    with worker():
        until = time.monotonic() + 20
        while Job.objects.filter(status__in=(Status.READY, Status.RUNNING)).exists():
            assert time.monotonic() < until
            time.sleep(0.02)


each_way = pytest.mark.parametrize("run", [run_jobs, run_in_worker], ids=["in a test", "in a worker"])


@pytest.mark.django_db(transaction=True)
@each_way
def test_hooks_are_entered_in_order_in_the_handlers_own_thread_and_left_in_reverse(register, run):
    for name in ("outer", "inner"):
        register(hooks.around_run, naming(name))
    register(hooks.around_run, lambda context: None)
    done = [note.enqueue("a").id, note_async.enqueue("a").id]

    run()

    assert [status(each) for each in done] == [Status.COMPLETED] * 2
    for name in ("note", "note_async"):
        place = next(place for place, each in enumerate(seen) if each[0] == name)
        thread = seen[place][2]
        assert seen[place : place + 3] == [
            (name, ("outer", "inner"), thread),
            ("inner", "left", thread),
            ("outer", "left", thread),
        ]


@pytest.mark.django_db(transaction=True)
@each_way
def test_an_asynchronous_hook_is_for_coroutines_alone(register, run):
    register(hooks.around_run, naming_async("async"))
    note.enqueue("a")
    note_async.enqueue("a")

    run()

    assert {each[0]: each[1] for each in seen} == {"note": (), "note_async": ("async",)}


@pytest.mark.django_db(transaction=True)
@each_way
def test_a_hook_sees_what_the_handler_raises_and_a_verdict_stays_one(register, run):
    register(hooks.around_run, naming("hook"))
    failed = note.options(max_attempts=1).enqueue("fail").id
    again = note.enqueue("retry").id

    run()

    # A worker has the two side by side.
    assert sorted(each[2] for each in seen if each[1] == "raised") == ["LookupError", "Retry"]
    assert (status(failed), status(again)) == (Status.DEAD_LETTER, Status.SCHEDULED)


@pytest.mark.django_db(transaction=True)
@each_way
def test_a_hook_that_fails_fails_the_attempt_and_unwinds_those_before_it(register, run):
    def broken(context):
        raise ConnectionRefusedError("no tracing today")

    register(hooks.around_run, naming("first"))
    register(hooks.around_run, broken)
    ids = [task.options(max_attempts=1).enqueue("a").id for task in (note, note_async)]

    run()

    assert [status(each) for each in ids] == [Status.DEAD_LETTER] * 2
    assert [each[:2] for each in seen] == [("first", "raised"), ("first", "left")] * 2
    assert {each.error_code for each in Execution.objects.all()} == {"builtins.ConnectionRefusedError"}


@pytest.mark.django_db
def test_a_generator_without_contextmanager_is_named_as_the_mistake_it_is(register):
    def forgot(context):
        yield

    register(hooks.around_run, forgot)
    note.options(max_attempts=1).enqueue("a")

    (ran,) = run_jobs()

    assert ran.state == AttemptState.FAILED
    assert "forgot" in str(ran.error)
    assert "@contextmanager" in str(ran.error)


# ------------------------------------------------------------------ after settle


@pytest.mark.django_db(transaction=True)
@each_way
def test_after_settle_hears_of_every_attempt_once_it_is_committed(register, run):
    rows: list[Any] = []

    def heard(attempt):
        seen.append(attempt)
        rows.append(status(attempt.job_id))

    def broken(attempt):
        raise ZeroDivisionError

    register(hooks.after_settle, broken)
    register(hooks.after_settle, heard)
    with transaction.atomic():
        for text in ("fine", "fail", "retry"):
            note.options(max_attempts=1 if text == "fail" else 5).enqueue(text)

    run()

    told = {each.error_code: each for each in seen if isinstance(each, hooks.SettledAttempt)}
    assert {each.status for each in told.values()} == {"completed", "dead_letter", "scheduled"}
    lost = told["builtins.LookupError"]
    assert (lost.outcome, lost.attempt_no, lost.queue, lost.error) == ("failed", 1, QUEUE, "no such thing")
    assert isinstance(lost.exception, LookupError)
    assert sorted(rows) == [Status.SCHEDULED, Status.COMPLETED, Status.DEAD_LETTER]


@pytest.mark.own_session
@pytest.mark.django_db(transaction=True)
def test_a_hook_that_asks_the_database_gets_over_a_lost_connection_and_leaves_none_behind(register):
    pids: list[int] = []

    def heard(attempt):
        with connection.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            pids.append(cursor.fetchone()[0])

    register(hooks.after_settle, heard)
    with second_session() as session:
        with worker():
            for number in (1, 2):
                note.enqueue("a")
                wait_until(lambda number=number: len(pids) == number, "the hook was called")
                session.execute("select pg_terminate_backend(%s, 5000)", (pids[0],))
        left = session.execute(
            "select count(*) from pg_stat_activity where pid = any (%s)", (pids,)
        ).fetchone()

    assert len(set(pids)) == 2
    assert left == (0,)


def test_what_was_removed_is_called_no_more_and_twice_registered_is_called_once():
    hook = naming("x")
    for kind in (hooks.before_enqueue, hooks.around_run, hooks.after_enqueue, hooks.after_settle):
        kind(hook)
        kind(hook)
    registered = (list(hooks._before_enqueue), list(hooks._around_run))

    hooks.remove(hook)

    assert registered == ([hook], [hook])
    assert not hooks.any_around_run()

"""Child processes: a handler can end its own process and nobody else's, and what ends it is told at once."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pgbroker import cancel, tenant_context
from pgbroker.models import Job
from pgbroker.states import AttemptState, Status
from pgbroker.testing import guards_off
from tests.runtime import handlers
from tests.runtime.fleet import (
    HEARTBEAT,
    TENANTS,
    Fleet,
    WorkerProcess,
    effects,
    executions_of,
    job,
    make_queues,
    put,
    put_together,
    states_of,
    status_of,
    wait_for_effect,
    wait_for_status,
    wait_until,
)
from tests.support.processes import alive, descendants_of, parents, sockets_of, state_of
from tests.support.storages import LARGE, LIMIT, body_storage, files_in, storages_setting

pytestmark = pytest.mark.django_db(transaction=True)

DONE, DEAD, CANCELLED = Status.COMPLETED, Status.DEAD_LETTER, Status.CANCELLED
CHILDREN = ("--executor", "process")
GRACE = 2.0
# What a loaded machine may add to a time that is bounded.
MARGIN = 5.0


def nursery_of(worker: WorkerProcess) -> int:
    """The process that makes a worker's children."""
    (nursery,) = [pid for pid, parent in parents().items() if parent == worker.pid]
    return nursery


def result_of(job_id: Any) -> Any:
    return executions_of(job_id)[-1].result


# ------------------------------------------------------------------ the same as in a thread


def told(job_id: Any) -> tuple[Any, ...]:
    """What is recorded of a job's one attempt, without what names the job."""
    (execution,) = executions_of(job_id)
    # What the driver says of a broken pipeline depends on which of the two noticed first.
    log = [line for line in (execution.log_tail or "").splitlines() if " psycopg: " not in line]
    text = repr((execution.result, execution.error, log))
    text = re.sub(r"[0-9a-f-]{36}|\d{4}-\d\d-\d\d \S+|process\w*|thread\w*", "…", text)
    lines = [line for line in (execution.traceback or "").splitlines() if "handlers.py" in line]
    return (
        status_of(job_id).label,
        execution.state,
        execution.error_code,
        text,
        lines,
        job(job_id).available_at is None,
    )


def test_a_child_records_what_a_thread_or_the_event_loop_records(fleet: Fleet):
    calls = [
        (handlers.tell_context, 5),
        (handlers.look_around, True),
        (handlers.look_around, False),
        (handlers.look_around_async, True),
        (handlers.look_around_async, False),
        (handlers.look_at_jobs,),
        (handlers.look_at_jobs_async,),
        (handlers.write_log, 3),
        (handlers.raise_with_bad_backoff,),
        *[(handlers.spoil_connection, how) for how in ("bad sql", "atomic never left", "closed")],
        (handlers.note, "on a clean connection"),
        *[(handlers.return_it, kind) for kind in ("fine", "nan", "surrogate", "deep", "snooze")],
        *[
            (handlers.raise_it, kind)
            for kind in (
                "value_error",
                "system_exit",
                "exits_in_str",
                "nul_and_surrogate",
                "retry",
                "discard",
            )
        ],
        *[(handlers.raise_it_async, kind) for kind in ("keyboard_interrupt", "cancelled_error", "huge")],
    ]
    make_queues("in_threads", "in_children")
    ids = {
        queue: [
            put(task, *args, queue_name=queue, max_attempts=1, correlation_id="c-1", deadline=3600)
            for task, *args in calls
        ]
        for queue in ("in_threads", "in_children")
    }
    settings = {"MAX_ERROR_BYTES": 2000, "MAX_RESULT_BYTES": 10_000}
    fleet.start("--queues", "in_threads", slots=1, **settings)
    worker = fleet.start("--queues", "in_children", *CHILDREN, slots=1, **settings)

    for each in (*ids["in_threads"], *ids["in_children"]):
        wait_until(lambda each=each: executions_of(each), "it has ended", of=worker)

    for call, in_thread, in_child in zip(calls, ids["in_threads"], ids["in_children"], strict=True):
        assert told(in_child) == told(in_thread), call
    assert worker.pid not in {each["pid"] for each in effects()}


def test_bodies_are_read_and_saved_in_the_child(fleet: Fleet, tmp_path: Path):
    with body_storage(tmp_path / "bodies"):
        ids = [put(task, LARGE) for task in (handlers.measure, handlers.measure_async)]
        worker = fleet.start(
            *CHILDREN,
            storages=storages_setting(tmp_path / "bodies", "django.core.files.storage.FileSystemStorage"),
            BODY_STORAGE="bodies",
            MAX_PAYLOAD_BYTES=LIMIT,
            MAX_RESULT_BYTES=LIMIT,
        )

        wait_for_status(ids, DONE, of=worker)

        assert {each["detail"] for each in effects("measured")} == {"1000 1000"}
        assert worker.pid not in {each["pid"] for each in effects("measured")}
        assert len(files_in(tmp_path / "bodies")) == 4


def test_arguments_and_results_of_any_size_pass(fleet: Fleet):
    sizes = [0, 8_000, 9_000, 200_000, 3_000_000]
    ids = [put(handlers.heavy, size) for size in sizes]
    ids += [put(handlers.echo_size, "y" * size) for size in sizes[:4]]
    worker = fleet.start(*CHILDREN, slots=2, MAX_RESULT_BYTES=4_000_000)

    wait_for_status(ids, DONE, of=worker)

    assert [len(result_of(each)) for each in ids[:5]] == sizes
    assert [result_of(each) for each in ids[5:]] == sizes[:4]


@pytest.mark.parametrize("options", [{}, {"pool": {"min_size": 1, "max_size": 2}}], ids=["plain", "pool"])
def test_b117_no_connection_is_open_where_children_are_forked(fleet: Fleet, options: dict[str, Any]):
    """Upkeep is at work all the time; what forks has one socket, to its worker."""
    worker = fleet.start(
        *CHILDREN, slots=3, REAP_SECONDS=0.1, database={"OPTIONS": options, "CONN_MAX_AGE": 0}
    )
    nursery = nursery_of(worker)
    # More while it passes the sockets of a child on.
    wait_until(lambda: len(sockets_of(nursery)) == 1, "it has one socket", of=worker)

    ids = [put(handlers.note, "worked", tenant=TENANTS[n % 2]) for n in range(60)]
    ids += [put(handlers.die, 1, max_attempts=1)]
    wait_for_status(ids[:-1], DONE, of=worker)
    wait_for_status(ids[-1], DEAD, of=worker)

    assert len(effects("worked")) == 60
    assert worker.stop() == 0
    assert "connection lost" not in worker.log
    assert "Traceback" not in worker.log.replace("pgbroker.errors.ChildCrashed", "")


def test_the_type_says_where_it_runs_and_the_worker_for_those_that_do_not(fleet: Fleet):
    in_thread = put(handlers.note_in_thread, "thread")
    dying = [
        put(handlers.die_in_child, 3, max_attempts=1),
        put(handlers.die_in_child_async, 4, max_attempts=1),
    ]
    threads = fleet.start()
    wait_for_status([in_thread, *dying], DONE, DEAD, of=threads)
    assert threads.exit_code is None
    threads.stop()

    children = fleet.start(*CHILDREN)
    wait_for_status([put(handlers.note_in_thread, "thread"), put(handlers.note, "child")], DONE, of=children)

    assert [each["pid"] for each in effects("thread")] == [threads.pid, children.pid]
    assert {each["pid"] for each in effects("child")} & {children.pid} == set()
    assert [executions_of(each)[0].error for each in dying] == [
        "the child process ended under the job: it exited with code 3",
        "the child process ended under the job: it exited with code 4",
    ]


# ------------------------------------------------------------------ crashes


def test_a_child_that_dies_is_a_crash_of_its_attempt_at_once_and_of_nothing_else(fleet: Fleet):
    ways = {
        "signal 11 (SIGSEGV)": put(handlers.segfault, max_attempts=10),
        "signal 9 (SIGKILL)": put(handlers.kill_itself, 9, max_attempts=10),
        "signal 6 (SIGABRT)": put(handlers.kill_itself, 6, max_attempts=10),
        "code 0": put(handlers.die, 0, max_attempts=10),
    }
    beside = [put(handlers.work, 1.0, tenant=tenant) for tenant in ("acme", "globex")]
    # Leases so long that nothing here can be the reaper's doing.
    worker = fleet.start(*CHILDREN, slots=6, LEASE_SECONDS=600, BACKOFF=0)
    began = time.monotonic()

    wait_for_status(list(ways.values()), DEAD, of=worker)
    took = time.monotonic() - began
    wait_for_status(beside, DONE, of=worker)

    for how, each in ways.items():
        assert states_of(each) == [AttemptState.CRASHED] * 3
        assert job(each).crash_count == job(each).attempt_count == 3
        assert {(one.error_code, how in one.error) for one in executions_of(each)} == {
            ("child_crashed", True)
        }
        assert len(effects("enter", each)) == 3
    assert took < 30
    assert [states_of(each) for each in beside] == [[AttemptState.COMPLETED]] * 2
    assert worker.stop() == 0


def test_the_first_crash_is_tried_again_at_once_and_later_ones_wait(fleet: Fleet):
    job_id = put(handlers.die, 1, max_attempts=10)
    worker = fleet.start(*CHILDREN, slots=1, BACKOFF={"base": 3600, "jitter": False})

    wait_until(lambda: job(job_id).crash_count == 2, "it crashed twice", of=worker)

    assert status_of(job_id) == Status.SCHEDULED
    assert (job(job_id).available_at - executions_of(job_id)[-1].completed_at).total_seconds() > 3000


def test_memory_that_is_refused_is_an_error_of_the_handler(fleet: Fleet):
    job_id = put(handlers.run_out_of_memory, 4096, max_attempts=1)
    worker = fleet.start(*CHILDREN, slots=1)

    wait_for_status(job_id, DEAD, of=worker)

    assert executions_of(job_id)[0].error_code.endswith("MemoryError")
    assert states_of(job_id) == [AttemptState.FAILED]


# What lies behind a slow job stays there, so that a test can see what becomes of it.
LEFT_BEHIND = {"pgbroker.runtime.executors.processes.QUICK_SECONDS": 600.0}


def put_around(task: Any, slow: Any, quick: Any, count: int = 20) -> tuple[Any, list[Any]]:
    """Enqueue quick jobs with a slow one among them; whoever comes to it has taken some that stand behind it."""
    ids = put_together(*[(task, "acme", slow if n == count // 2 else quick) for n in range(count)])
    return ids[count // 2], [*ids[: count // 2], *ids[count // 2 + 1 :]]


def test_a_child_that_is_killed_from_outside_takes_only_what_it_ran(fleet: Fleet):
    """What lay ahead in it never started: it goes to another, and nothing is burned."""
    worker = fleet.start(*CHILDREN, slots=1, patch=LEFT_BEHIND)
    wait_for_status([put(handlers.enter_slowly, False) for _ in range(30)], DONE, of=worker)
    slow, others = put_around(handlers.enter_slowly, True, False)
    (entered,) = wait_for_effect("slow", slow, of=worker)
    held = [each for each in others if status_of(each) == Status.RUNNING]

    os.kill(entered["pid"], signal.SIGKILL)
    wait_until(lambda: job(slow).crash_count == 1, "the crash is told", of=worker)
    wait_for_status(others, DONE, of=worker)

    assert len(held) > 3
    assert {tuple(states_of(each)) for each in others} == {(AttemptState.COMPLETED,)}
    assert {job(each).attempt_count for each in others} == {1}
    assert executions_of(slow)[0].error.endswith("signal 9 (SIGKILL)")


def test_jobs_do_not_wait_behind_a_slow_one_while_another_child_is_free(fleet: Fleet):
    worker = fleet.start(*CHILDREN, slots=2)
    wait_for_status([put(handlers.sometimes_slow, 0) for _ in range(30)], DONE, of=worker)
    slow, quick = put_around(handlers.sometimes_slow, 10.0, 0, 40)

    wait_for_status(quick, DONE, of=worker)

    assert status_of(slow) == Status.RUNNING


def test_what_lies_ahead_is_handed_back_before_the_one_that_runs_is_waited_for(fleet: Fleet):
    worker = fleet.start(*CHILDREN, slots=1, patch=LEFT_BEHIND, SHUTDOWN_TIMEOUT_SECONDS=20)
    wait_for_status([put(handlers.sometimes_slow, 0) for _ in range(30)], DONE, of=worker)
    slow, others = put_around(handlers.sometimes_slow, 5.0, 0)
    wait_until(
        lambda: sum(status_of(each) == DONE for each in others) == 10, "it is at the slow one", of=worker
    )

    worker.signal(signal.SIGTERM)
    wait_until(lambda: all(status_of(each) != Status.RUNNING for each in others), "they are back", of=worker)

    assert status_of(slow) == Status.RUNNING
    assert worker.wait() == 0
    assert status_of(slow) == DONE
    back = [each for each in others if status_of(each) == Status.READY]
    assert len(back) == 9
    assert {one.error_code for each in back for one in executions_of(each)} == {"drain"}


def test_a_job_that_is_handed_back_runs_nowhere_when_it_starts_elsewhere(fleet: Fleet):
    first = fleet.start(*CHILDREN, slots=1, SHUTDOWN_TIMEOUT_SECONDS=0.5)
    job_id = put(handlers.tick, 30.0)
    (began, *_) = wait_for_effect("tick", job_id, of=first)
    second = fleet.start(*CHILDREN, slots=1)

    first.signal(signal.SIGTERM)
    wait_until(
        lambda: {each["pid"] for each in effects("tick")} != {began["pid"]}, "it runs there", of=second
    )
    assert first.wait() == 0

    ticks = effects("tick", job_id)
    there = min(each["at"] for each in ticks if each["pid"] != began["pid"])
    assert max(each["at"] for each in ticks if each["pid"] == began["pid"]) < there
    assert executions_of(job_id)[0].error_code == "shutdown"


def test_suspects_run_side_by_side_where_nothing_runs_in_the_worker_itself(fleet: Fleet):
    ids = [put(handlers.meet, 2, max_attempts=10) for _ in range(2)]
    with guards_off():
        Job.objects.update(attempt_count=2, crash_count=2)

    worker = fleet.start(*CHILDREN, slots=2, without=(handlers.note_in_thread,))
    wait_for_status(ids, DONE, of=worker)

    assert [states_of(each) for each in ids] == [[AttemptState.COMPLETED]] * 2


def test_the_process_that_makes_children_may_be_killed(fleet: Fleet):
    worker = fleet.start(*CHILDREN, slots=1)
    job_id = put(handlers.die_slowly, max_attempts=10)
    wait_for_effect("enter", job_id, of=worker)
    before = descendants_of(worker.pid)

    os.kill(nursery_of(worker), signal.SIGKILL)
    wait_until(lambda: job(job_id).crash_count == 1, "its child is gone", of=worker)
    wait_for_status(put(handlers.note, "after"), DONE, of=worker)

    assert alive(before) == set()
    assert "how is not known" in executions_of(job_id)[0].error


# ------------------------------------------------------------------ timeouts, cancels, lost leases


def test_what_ignores_its_timeout_is_killed_with_all_it_started_and_the_slot_is_used_again(fleet: Fleet):
    worker = fleet.start(*CHILDREN, slots=3)
    began = time.monotonic()
    ids = [
        put(handlers.leave_a_program, 600, timeout=1, max_attempts=1),
        put(handlers.hold_the_gil, 40, timeout=1, max_attempts=1),
        put(handlers.stubborn_async, 600, timeout=1, max_attempts=1),
    ]
    (program,) = wait_for_effect("program", of=worker)

    wait_for_status(ids, DEAD, of=worker)
    took = time.monotonic() - began
    wait_for_status([put(handlers.note, "after") for _ in range(4)], DONE, of=worker)

    assert took < 1 + GRACE + MARGIN
    for each in ids:
        (execution,) = executions_of(each)
        assert (AttemptState(execution.state), execution.error_code) == (AttemptState.TIMED_OUT, "timed_out")
        assert job(each).crash_count == 0
    assert alive([int(program["detail"])]) == set()
    assert worker.log.count("its child process was killed") == 3


def test_what_looks_stops_by_itself_and_its_child_lives_on(fleet: Fleet):
    worker = fleet.start(*CHILDREN, slots=1)
    ids = [put(task, 600, timeout=1, max_attempts=1) for task in (handlers.work, handlers.work_async)]

    wait_for_status(ids, DEAD, of=worker)
    wait_for_status(put(handlers.note, "after"), DONE, of=worker)

    assert [each["detail"] for each in effects("stopped")] == ["timed_out"] * 2
    assert len({each["pid"] for each in effects()}) == 1
    assert {executions_of(each)[0].error_code for each in ids} == {"timed_out"}


def test_a_cancel_is_told_to_the_handler_and_then_ends_its_process(fleet: Fleet):
    worker = fleet.start(*CHILDREN, slots=2)
    looks, deaf = put(handlers.work, 600), put(handlers.stubborn, 600, tenant="globex")
    for each in (looks, deaf):
        wait_for_effect("enter", each, of=worker)
    began = time.monotonic()

    for each, tenant in ((looks, "acme"), (deaf, "globex")):
        with tenant_context(tenant):
            cancel(each)
    wait_for_status([looks, deaf], CANCELLED, of=worker)

    assert time.monotonic() - began < HEARTBEAT + GRACE + MARGIN
    assert [each["detail"] for each in effects("stopped")] == ["cancelled"]
    assert [executions_of(each)[0].error for each in (looks, deaf)] == [
        "the attempt was asked to stop: cancelled",
        "the attempt was asked to stop: cancelled; it did not in 2 s, and its process was killed",
    ]
    assert states_of(deaf) == [AttemptState.CANCELLED]


def test_a_lost_lease_is_told_and_ends_the_process_and_nothing_is_recorded(fleet: Fleet):
    worker = fleet.start(*CHILDREN, slots=2)
    ids = [put(handlers.work, 600), put(handlers.stubborn, 600)]
    pids = [wait_for_effect("enter", each, of=worker)[0]["pid"] for each in ids]

    with guards_off():
        Job.objects.filter(pk__in=ids).update(lease_token=100)
    wait_for_effect("stopped", ids[0], of=worker)
    wait_until(lambda: pids[1] not in alive(pids), "the deaf one is killed", of=worker)
    wait_for_status([put(handlers.note, "after") for _ in range(2)], DONE, of=worker)

    assert [each["detail"] for each in effects("stopped")] == ["lease_lost"]
    assert [states_of(each) for each in ids] == [[], []]


def test_a_child_that_was_stopped_is_killed_at_its_timeout(fleet: Fleet):
    worker = fleet.start(*CHILDREN, slots=1)
    job_id = put(handlers.work, 600, timeout=2, max_attempts=1)
    (entered,) = wait_for_effect("enter", job_id, of=worker)

    os.kill(entered["pid"], signal.SIGSTOP)
    wait_for_status(job_id, DEAD, of=worker)
    wait_for_status(put(handlers.note, "after"), DONE, of=worker)

    assert states_of(job_id) == [AttemptState.TIMED_OUT]
    assert effects("stopped") == []


# ------------------------------------------------------------------ the end


def test_what_still_runs_at_the_end_is_killed_and_handed_back_unharmed(fleet: Fleet):
    worker = fleet.start(*CHILDREN, slots=3, SHUTDOWN_TIMEOUT_SECONDS=2)
    short, early, long = put(handlers.work, 1.0), put(handlers.leave_early), put(handlers.stubborn, 600)
    for each in (short, early, long):
        wait_for_effect("enter", each, of=worker)
    family = descendants_of(worker.pid)

    assert worker.stop() == 0

    assert [status_of(each) for each in (short, long)] == [DONE, Status.READY]
    assert states_of(early) == [AttemptState.SNOOZED]
    assert [(one.state, one.error_code) for one in executions_of(long)] == [
        (AttemptState.RELEASED, "shutdown")
    ]
    assert job(long).max_attempts - job(long).attempt_count == 5
    assert job(long).crash_count == 0
    assert alive(family) == set()
    assert len(family) >= 4


def test_nothing_outlives_a_worker_that_was_killed(fleet: Fleet):
    worker = fleet.start(*CHILDREN, slots=3)
    for task, argument in ((handlers.stubborn, 600), (handlers.hold_the_gil, 40)):
        wait_for_effect("enter", put(task, argument), of=worker)
    family = descendants_of(worker.pid)

    worker.kill()

    assert len(family) >= 4
    wait_until(lambda: not alive(family), "all of them are gone")


def test_nothing_outlives_a_worker_whose_nursery_was_stopped_and_has_another_death_to_tell(fleet: Fleet):
    """It is woken by a SIGHUP then, and there is nobody to tell: the busy child has to be killed all the same."""
    worker = fleet.start(*CHILDREN, slots=2)
    wait_for_effect("enter", put(handlers.hold_the_gil, 40), of=worker)
    (nursery,) = [pid for pid, parent in parents().items() if parent == worker.pid]
    wait_until(lambda: len(descendants_of(nursery)) == 2, "an idle child is there as well")
    family = descendants_of(worker.pid)
    (idle,) = [pid for pid in descendants_of(nursery) if state_of(pid) == "S"]
    os.kill(nursery, signal.SIGSTOP)
    # The system wakes what is stopped when its parent dies, not what is about to stop.
    wait_until(lambda: state_of(nursery) == "T", "the nursery is stopped")
    os.kill(idle, signal.SIGKILL)
    wait_until(lambda: idle not in alive(family), "the idle child has ended")

    worker.kill()

    wait_until(lambda: not alive(family), "all of them are gone")


def test_children_are_replaced_between_jobs_after_so_many_or_so_much_memory(fleet: Fleet):
    worker = fleet.start(*CHILDREN, "--max-jobs-per-child", "4", "--max-rss", "250M", slots=1)
    ids = [put(handlers.tell_pid, n) for n in range(10)]
    wait_for_status(ids, DONE, of=worker)
    pids = [result_of(each) for each in ids]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [4, 4, 2]

    large = put(handlers.grow, 200)
    wait_for_status(large, DONE, of=worker)
    after = put(handlers.tell_pid, 0)
    wait_for_status(after, DONE, of=worker)

    assert result_of(large) == pids[-1] != result_of(after)
    assert {tuple(states_of(each)) for each in ids} == {(AttemptState.COMPLETED,)}
    assert worker.exit_code is None


def test_a_worker_that_holds_too_much_drains_and_asks_to_be_started_again(fleet: Fleet):
    worker = fleet.start("--max-rss", "250M", slots=2, SHUTDOWN_TIMEOUT_SECONDS=20)
    running = put(handlers.work, 2.0)
    wait_for_effect("enter", running, of=worker)
    put(handlers.grow, 200)

    assert worker.wait() == 75

    assert status_of(running) == DONE
    assert "holds more memory than --max-rss" in worker.log

"""Whatever a handler raises or returns is an outcome with bounded text, and the worker goes on."""

from __future__ import annotations

import pytest

from pgbroker.models import JobPayload
from pgbroker.states import AttemptState, Status
from tests.runtime import handlers
from tests.runtime.fleet import (
    Fleet,
    executions_of,
    job,
    put,
    put_for_both,
    states_of,
    wait_for_status,
    wait_until,
)
from tests.support.jobs import guards_off

pytestmark = pytest.mark.django_db(transaction=True)

FAILED, DEAD, DONE, LATER = Status.FAILED, Status.DEAD_LETTER, Status.COMPLETED, Status.SCHEDULED

# kind -> where the job ends with a single attempt, how the attempt ended, its error code.
RAISED = {
    "value_error": (DEAD, "failed", "builtins.ValueError"),
    "base_exception": (DEAD, "failed", "builtins.BaseException"),
    "system_exit": (DEAD, "failed", "builtins.SystemExit"),
    "keyboard_interrupt": (DEAD, "failed", "builtins.KeyboardInterrupt"),
    "cancelled_error": (DEAD, "failed", "asyncio.exceptions.CancelledError"),
    "generator_exit": (DEAD, "failed", "builtins.GeneratorExit"),
    "unprintable": (DEAD, "failed", "tests.runtime.handlers.Unprintable"),
    "exits_in_str": (DEAD, "failed", "tests.runtime.handlers.Exits"),
    "huge": (DEAD, "failed", "builtins.ValueError"),
    "long_chain": (DEAD, "failed", "builtins.RuntimeError"),
    "nul_and_surrogate": (DEAD, "failed", "builtins.ValueError"),
    "group": (DEAD, "failed", "builtins.BaseExceptionGroup"),
    "retry": (DEAD, "failed", "retry"),
    "retry_by_backoff": (DEAD, "failed", "retry"),
    "retry_in_ages": (DEAD, "failed", "retry"),
    "odd_verdict": (DEAD, "failed", "outcome_not_described"),
    "snooze": (LATER, "snoozed", None),
    "snooze_for_ages": (LATER, "snoozed", None),
    "discard": (FAILED, "failed", "discarded"),
}
RETURNED = {
    "nan": (DEAD, "failed", "result_not_serializable"),
    "infinite_inside": (DEAD, "failed", "result_not_serializable"),
    "not_json": (DEAD, "failed", "result_not_serializable"),
    "too_large": (DEAD, "failed", "result_too_large"),
    "nul": (DEAD, "failed", "result_not_serializable"),
    "surrogate": (DEAD, "failed", "result_not_serializable"),
    "recursive": (DEAD, "failed", "result_not_serializable"),
    "deep": (DEAD, "failed", "result_not_serializable"),
    "fine": (DONE, "completed", None),
    "retry": (DEAD, "failed", "retry"),
    "snooze": (LATER, "snoozed", None),
    "discard": (FAILED, "failed", "discarded"),
}


def check(fleet: Fleet, tasks, expected) -> None:
    worker = fleet.start(slots=2)
    wanted = {
        put(task, kind, tenant=tenant, max_attempts=1): (kind, *how)
        for task, tenant in zip(tasks, ("acme", "globex"), strict=True)
        for kind, how in expected.items()
    }
    after = put_for_both(handlers.note, "after")

    wait_for_status(list(wanted), DONE, FAILED, DEAD, LATER, seconds=90, of=worker)
    wait_for_status(after, DONE, of=worker)

    for job_id, (kind, status, state, code) in wanted.items():
        (execution,) = executions_of(job_id)
        found = (kind, job(job_id).status, AttemptState(execution.state).label, execution.error_code)
        assert found == (kind, status, state, code)
        assert len((execution.error or "").encode()) <= 64 * 1024
        assert len((execution.traceback or "").encode()) <= 64 * 1024
        assert job(job_id).tenant_id == ("acme" if job_id in list(wanted)[: len(expected)] else "globex")
    assert worker.starts == 1
    assert worker.exit_code is None


def test_b021_whatever_a_handler_raises_is_an_outcome_and_the_next_job_runs(fleet: Fleet):
    check(fleet, (handlers.raise_it, handlers.raise_it_async), RAISED)


def test_b145_whatever_a_handler_returns_is_an_outcome_and_the_next_job_runs(fleet: Fleet):
    check(fleet, (handlers.return_it, handlers.return_it_async), RETURNED)


def test_b021_a_message_of_50_megabytes_is_stored_cut_with_a_marker(fleet: Fleet):
    fleet.start()
    job_id = put(handlers.raise_it, "huge", max_attempts=1)

    wait_for_status(job_id, DEAD)

    (execution,) = executions_of(job_id)
    assert len(execution.error.encode()) <= 64 * 1024
    assert "cut" in execution.error[-100:]


def test_a_backoff_callable_that_exits_costs_its_job_an_attempt_and_nothing_else(fleet: Fleet):
    worker = fleet.start(slots=1)
    job_id = put(handlers.raise_with_bad_backoff, max_attempts=2)
    behind = put(handlers.note, "behind", tenant="globex")

    wait_for_status(behind, DONE, of=worker)
    wait_for_status(job_id, DEAD, of=worker)

    assert states_of(job_id) == [AttemptState.FAILED] * 2


def test_a_task_that_a_handler_left_behind_cannot_end_the_event_loop(fleet: Fleet):
    worker = fleet.start(slots=1)
    first = put(handlers.leave_a_task_that_exits)
    wait_for_status(first, of=worker)

    second = put(handlers.note_async, "after", tenant="globex")

    wait_for_status(second, DONE, of=worker)


def test_b151_arguments_that_do_not_fit_the_handler_fail_in_sight(fleet: Fleet):
    one, two = (
        put(handlers.nothing, 1, max_attempts=1),
        put(handlers.nothing_async, 2, tenant="globex", max_attempts=1),
    )
    lost = put(handlers.nothing, 3, max_attempts=1)
    with guards_off():
        JobPayload.objects.filter(job__in=[one, two]).update(
            args={"v": 1, "args": [], "kwargs": {"letter": "x"}}
        )
        JobPayload.objects.filter(job=lost).delete()
    worker = fleet.start()

    wait_for_status([one, two, lost], DEAD, of=worker)

    for job_id in (one, two, lost):
        (execution,) = executions_of(job_id)
        assert execution.error_code == "undecodable_argument"
        assert execution.error


def test_options_that_were_written_by_hand_and_mean_nothing_are_read_as_absent(fleet: Fleet):
    ids = [put(handlers.raise_it, "value_error", max_attempts=1) for _ in range(4)]
    with guards_off():
        for job_id, options in zip(
            ids, ([1, 2], {"timeout": "soon"}, {"backoff": {"speed": 9}}, {"backoff": 7}), strict=True
        ):
            JobPayload.objects.filter(job=job_id).update(options=options)
    worker = fleet.start()

    wait_for_status(ids, DEAD, of=worker)

    assert worker.exit_code is None


def test_the_tail_of_what_a_handler_logged_is_stored_with_its_attempt(fleet: Fleet):
    fleet.start(MAX_LOG_BYTES=2000)
    job_id = put(handlers.write_log, 3000)

    wait_for_status(job_id, DONE)

    (execution,) = executions_of(job_id)
    assert execution.log_tail.endswith("application: line 2999")
    assert len(execution.log_tail.encode()) <= 2000
    assert "not the handler's" not in execution.log_tail


def test_a_handler_is_told_about_its_attempt(fleet: Fleet):
    fleet.start()
    job_id = put(
        handlers.tell_context, 7, tenant="globex", correlation_id="order-7", deadline=3600, max_attempts=1
    )

    wait_for_status(job_id, DONE)

    (execution,) = executions_of(job_id)
    assert execution.result == {
        "attempt": 1,
        "job_id": str(job_id),
        "tenant_id": "globex",
        "correlation_id": "order-7",
        "last": True,
        "cancelled": False,
        "stop_reason": None,
        "deadline": True,
        "task": str(job_id),
        "status": "RUNNING",
        "args": [7],
    }


def test_an_outcome_that_the_database_refuses_fails_alone(fleet: Fleet, superuser):
    superuser.execute(
        "alter table pgbroker.execution add constraint refuse check (error is distinct from 'one')"
    )
    try:
        refused = [put(handlers.raise_text, "one", max_attempts=1) for _ in range(2)]
        others = [put(handlers.raise_text, "two", tenant="globex", max_attempts=1) for _ in range(20)]
        worker = fleet.start(slots=4)

        wait_for_status([*refused, *others], DEAD, of=worker)

        assert {executions_of(each)[0].error_code for each in refused} == {"outcome_not_stored"}
        assert {executions_of(each)[0].error for each in others} == {"two"}
    finally:
        superuser.execute("alter table pgbroker.execution drop constraint refuse")


def test_results_heavier_than_one_message_are_settled_in_several(fleet: Fleet):
    ids = [put(handlers.heavy, 200_000) for _ in range(60)]
    worker = fleet.start(slots=30)

    wait_for_status(ids, DONE, of=worker)

    wait_until(lambda: worker.exit_code is None, "the worker lives")

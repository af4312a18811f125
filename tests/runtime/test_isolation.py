"""Nothing of one job reaches the next: no context, no tenant, no transaction, no connection state."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from pgbroker.models import Job
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import scope_all
from tests.runtime import handlers
from tests.runtime.fleet import (
    Fleet,
    effects,
    end_sessions,
    executions_of,
    put,
    put_for_both,
    states_of,
    wait_for_status,
    wait_until,
)

pytestmark = pytest.mark.django_db(transaction=True)

DONE, DEAD = Status.COMPLETED, Status.DEAD_LETTER


def result_of(job_id):
    return executions_of(job_id)[-1].result


@pytest.mark.parametrize("task", [handlers.look_around, handlers.look_around_async], ids=["thread", "async"])
def test_b139_what_a_job_sets_in_its_context_does_not_reach_the_next(fleet: Fleet, task):
    ids = [put(task, True, tenant=tenant) for _ in range(5) for tenant in ("acme", "globex")]
    worker = fleet.start(slots=1)

    wait_for_status(ids, DONE, of=worker)

    tenants = ["acme", "globex"] * 5
    for job_id, tenant in zip(ids, tenants, strict=True):
        assert result_of(job_id) == {
            "left_behind": "",
            "tenant": tenant,
            "everything": False,
            "correlation_id": str(job_id),
            "attempt": str(job_id),
        }


def test_a_job_takes_nothing_over_from_a_job_of_the_other_executor(fleet: Fleet):
    tasks = [handlers.look_around, handlers.look_around_async] * 4
    ids = [put(task, True) for task in tasks]
    worker = fleet.start(slots=1)

    wait_for_status(ids, DONE, of=worker)

    assert {result_of(each)["left_behind"] for each in ids} == {""}
    assert [result_of(each)["attempt"] for each in ids] == [str(each) for each in ids]


@pytest.mark.parametrize(
    "task", [handlers.look_at_jobs, handlers.look_at_jobs_async], ids=["thread", "async"]
)
def test_b139_the_orm_shows_a_handler_its_tenant_alone_and_what_it_enqueues_belongs_there(fleet: Fleet, task):
    ids = [put(task, tenant=tenant, correlation_id=f"from-{tenant}") for tenant in ("acme", "globex", "acme")]
    worker = fleet.start(slots=1)

    wait_for_status(ids, DONE, of=worker)

    assert [result_of(each) for each in ids] == [["acme"], ["globex"], ["acme"]]
    with scope_all():
        children = Job.objects.exclude(pk__in=ids).order_by("created_at")
        found = {(each.tenant_id, each.payload.correlation_id) for each in children}
        assert children.count() == 3
    assert found == {("acme", "from-acme"), ("globex", "from-globex")}


SPOILT = {
    "caught inside atomic": (DONE, None),
    "bad sql": (DEAD, "django.db.utils.ProgrammingError"),
    "autocommit off and broken": (DEAD, "django.db.utils.DataError"),
    "autocommit off and forgotten": (DONE, None),
    "atomic never left": (DONE, None),
    "integrity error": (DEAD, "django.db.utils.IntegrityError"),
    "session setting": (DONE, None),
    "killed": (DEAD, "django.db.utils.OperationalError"),
    "raw begin": (DONE, None),
    "closed": (DONE, None),
}


@pytest.mark.parametrize("keep", [0, 600], ids=["CONN_MAX_AGE=0", "CONN_MAX_AGE=600"])
def test_b111_a_connection_that_a_job_spoilt_is_not_met_by_the_next(fleet: Fleet, keep):
    ids = []
    for how in SPOILT:
        ids.append(put(handlers.spoil_connection, how, max_attempts=1))
        ids.append(put(handlers.look_at_jobs, tenant="globex", max_attempts=1))
    worker = fleet.start(slots=1, database={"CONN_MAX_AGE": keep})

    wait_for_status(ids, DONE, DEAD, of=worker)

    found = {how: (executions_of(each)[0].error_code) for how, each in zip(SPOILT, ids[::2], strict=True)}
    assert found == {how: code for how, (_, code) in SPOILT.items()}
    assert [result_of(each) for each in ids[1::2]] == [["globex"]] * len(SPOILT)
    assert effects("uncommitted") == []


def test_b119_the_query_log_of_debug_does_not_grow(fleet: Fleet):
    ids = [put(handlers.count_queries) for _ in range(100)]
    worker = fleet.start(slots=1, debug=True, database={"CONN_MAX_AGE": 600})

    wait_for_status(ids, DONE, of=worker)

    results = [result_of(each) for each in ids]
    # The first one also counts what Django asks a new connection; each query brings its scope along.
    assert {each["queries"] for each in results[1:]} == {results[1]["queries"]}
    assert results[1]["queries"] <= 15
    assert len({each["backend"] for each in results}) == 1


@pytest.mark.parametrize("keep", [0, 600], ids=["CONN_MAX_AGE=0", "CONN_MAX_AGE=600"])
def test_jobs_that_follow_each_other_share_a_connection(fleet: Fleet, keep):
    ids = [put(handlers.count_queries) for _ in range(20)]
    worker = fleet.start(slots=1, database={"CONN_MAX_AGE": keep})

    wait_for_status(ids, DONE, of=worker)

    assert len({result_of(each)["backend"] for each in ids}) == 1


def test_a_slot_without_work_keeps_no_connection_where_django_keeps_none(fleet: Fleet, superuser):
    ids = [*put_for_both(handlers.note, "x"), *put_for_both(handlers.note_async, "y")]
    worker = fleet.start(slots=4)

    wait_for_status(ids, DONE, of=worker)

    names = superuser.execute(
        "select application_name from pg_stat_activity where datname = current_database() "
        "and pid <> pg_backend_pid() and application_name like 'pgbroker %%' "
        # This process's own, which wakes the worker.
        "and application_name <> 'pgbroker notify'"
    ).fetchall()
    assert len(names) <= 5
    # This test's own, and none of the four slots', soon after their last job.
    wait_until(
        lambda: (
            superuser.execute(
                "select count(*) from pg_stat_activity where datname = current_database() "
                "and pid <> pg_backend_pid() and application_name not like 'pgbroker %%' "
                "and backend_type = 'client backend'"
            ).fetchone()[0]
            <= 2
        ),
        "the slots have let go of their connections",
    )


def test_b115_idle_connections_that_were_killed_cost_no_job_an_attempt(fleet: Fleet, superuser):
    worker = fleet.start(slots=2, database={"CONN_MAX_AGE": 600})
    for task in (handlers.note, handlers.note_async):
        wait_for_status([put(task, "warm") for _ in range(6)], DONE, of=worker)
    end_sessions(superuser)

    ids = [
        put(task, "after", tenant="globex") for task in (handlers.note, handlers.note_async) for _ in range(3)
    ]
    wait_for_status(ids, DONE, of=worker)

    assert [states_of(each) for each in ids] == [[AttemptState.COMPLETED]] * 6


@pytest.mark.slow
def test_b119_a_worker_with_debug_on_does_not_grow(fleet: Fleet):
    worker = fleet.start(slots=4, debug=True, POLL_SECONDS=0.05)

    def resident() -> int:
        return int(Path(f"/proc/{worker.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def run(number: int) -> None:
        ids = [put(handlers.note, "x", tenant=("acme", "globex")[each % 2]) for each in range(number)]
        wait_for_status(ids, DONE, seconds=120, of=worker)

    run(500)
    before = resident()
    run(4_500)
    time.sleep(60)  # a thousand polls

    assert resident() - before < 30_000_000

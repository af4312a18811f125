"""A worker reads a body where the attempt runs, and whatever is wrong with one is that attempt's trouble alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pgbroker import cancel, get_job, retry
from pgbroker.bodies import Reference
from pgbroker.states import AttemptState, Status
from pgbroker.tenancy import tenant_context
from tests.runtime import handlers
from tests.runtime.fleet import (
    TENANTS,
    Fleet,
    WorkerProcess,
    effects,
    executions_of,
    put,
    put_for_both,
    raw_session,
    states_of,
    status_of,
    wait_for_effect,
    wait_for_status,
    wait_until,
)
from tests.support.storages import LARGE, LIMIT, body_storage, files_in, storages_setting

pytestmark = pytest.mark.django_db(transaction=True)

FLAWED = "tests.support.storages."
PLAIN = "django.core.files.storage.FileSystemStorage"
BOTH = pytest.mark.parametrize("task", [handlers.measure, handlers.measure_async], ids=["sync", "async"])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with body_storage(tmp_path / "bodies"):
        yield tmp_path / "bodies"


def start(fleet: Fleet, folder: Path, kind: str = PLAIN, **more: Any) -> WorkerProcess:
    limits = {"BODY_STORAGE": "bodies", "MAX_PAYLOAD_BYTES": LIMIT, "MAX_RESULT_BYTES": LIMIT}
    return fleet.start(storages=storages_setting(folder, kind), **{**limits, **more})


def file_of(folder: Path, job_id: UUID) -> Path:
    (name,) = [name for name in files_in(folder) if str(job_id) in name]
    return folder / name


def result_of(job_id: UUID, tenant: str = TENANTS[0]) -> Any:
    with tenant_context(tenant):
        return get_job(job_id).result


@BOTH
def test_a_worker_runs_jobs_of_two_tenants_whose_arguments_and_results_are_bodies(
    fleet: Fleet, folder: Path, task: Any
) -> None:
    ids = put_for_both(task, LARGE)
    worker = start(fleet, folder)

    wait_for_status(ids, Status.COMPLETED, of=worker)

    assert [each["detail"] for each in effects("measured")] == ["1000 1000"] * 2
    assert len(files_in(folder)) == 4
    for job_id, tenant in zip(ids, TENANTS, strict=True):
        (execution,) = executions_of(job_id)
        assert execution.result_body.startswith(f"pgbroker/{tenant}/results/")
        assert set(execution.result) == {"v", "sha256", "bytes"}
        assert result_of(job_id, tenant) == LARGE
        with tenant_context(tenant):
            found = task.get_backend().get_result(str(job_id))
            assert (found.return_value, found.args) == (LARGE, [LARGE])
            assert isinstance(get_job(job_id).stored_result, Reference)


@BOTH
@pytest.mark.parametrize(("damage", "code"), [("missing", "body_missing"), ("corrupt", "body_damaged")])
def test_a_body_that_is_not_there_as_it_was_fails_the_attempt_and_is_tried_again(
    fleet: Fleet, folder: Path, task: Any, damage: str, code: str
) -> None:
    spoilt, healthy = put(task, LARGE, max_attempts=2), put(task, LARGE, tenant="globex")
    path = file_of(folder, spoilt)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content.replace(b"x", b"y"))
    worker = start(fleet, folder)

    wait_for_status(spoilt, Status.DEAD_LETTER, of=worker)
    wait_for_status(healthy, Status.COMPLETED, of=worker)

    assert states_of(spoilt) == [AttemptState.FAILED] * 2
    assert {each.error_code for each in executions_of(spoilt)} == {code}
    assert effects("measured", spoilt) == []

    # An operator puts the file back and retries.
    path.write_bytes(content)
    with tenant_context(TENANTS[0]):
        retry(spoilt)
    wait_for_status(spoilt, Status.COMPLETED, of=worker)
    assert [each["detail"] for each in effects("measured", spoilt)] == ["1000 1000"]


@BOTH
def test_a_storage_that_is_down_fails_the_jobs_that_need_it_and_no_other(
    fleet: Fleet, folder: Path, task: Any
) -> None:
    needing, other = put(task, LARGE, max_attempts=1), put(handlers.note, "other")
    worker = start(fleet, folder, FLAWED + "Refusing")

    wait_for_status([needing, other], of=worker)

    assert (status_of(needing), status_of(other)) == (Status.DEAD_LETTER, Status.COMPLETED)
    (execution,) = executions_of(needing)
    assert execution.error_code == "body_unreadable"
    assert "connection refused" in execution.error


def test_a_worker_without_the_setting_says_so_with_the_attempt(fleet: Fleet, folder: Path) -> None:
    job_id = put(handlers.measure, LARGE, max_attempts=1)
    worker = start(fleet, folder, BODY_STORAGE=None)

    wait_for_status(job_id, Status.DEAD_LETTER, of=worker)

    (execution,) = executions_of(job_id)
    assert execution.error_code == "body_unreadable"
    assert "BODY_STORAGE" in execution.error


@BOTH
def test_a_result_that_the_storage_refuses_fails_the_attempt(fleet: Fleet, folder: Path, task: Any) -> None:
    job_id = put(task, "x" * (LIMIT - 50), max_attempts=1)
    worker = start(fleet, folder, FLAWED + "Refusing", MAX_RESULT_BYTES=64)

    wait_for_status(job_id, Status.DEAD_LETTER, of=worker)

    assert [each.error_code for each in executions_of(job_id)] == ["body_not_stored"]
    assert files_in(folder) == []


@BOTH
def test_an_attempt_whose_storage_hangs_times_out_and_others_run_meanwhile(
    fleet: Fleet, folder: Path, task: Any
) -> None:
    hanging = put(task, LARGE, max_attempts=1, timeout=0.5)
    worker = start(fleet, folder, FLAWED + "Hanging", slots=2)
    others = put_for_both(handlers.note, "meanwhile") + put_for_both(handlers.note_async, "meanwhile")

    wait_for_status(others, Status.COMPLETED, of=worker)
    wait_for_status(hanging, Status.DEAD_LETTER, of=worker)

    assert states_of(hanging) == [AttemptState.TIMED_OUT]
    (folder / "answer").touch()
    after = put(task, LARGE)
    wait_for_status(after, Status.COMPLETED, of=worker)
    assert effects("measured", hanging) == []
    assert worker.stop() == 0


@BOTH
def test_a_job_that_is_cancelled_while_its_body_is_read_does_not_run(
    fleet: Fleet, folder: Path, task: Any
) -> None:
    job_id = put(task, LARGE)
    worker = start(fleet, folder, FLAWED + "Hanging")
    wait_for_status(job_id, Status.RUNNING, of=worker)
    with tenant_context(TENANTS[0]):
        assert cancel(job_id).outcome == "requested"
    # A heartbeat brings the request; the storage answers after it.
    wait_until(lambda: handed_over(job_id), "the request has been told to the worker", of=worker)
    (folder / "answer").touch()

    wait_for_status(job_id, Status.CANCELLED, of=worker)

    assert effects("measured", job_id) == []


def handed_over(job_id: UUID) -> bool:
    """Two heartbeats since the request: the first may have been on its way."""
    with raw_session() as session:
        ((extended,),) = session.execute(
            "select lease_expires_at > cancel_requested_at + interval '6.5 s' from pgbroker.job where id = %s",
            (job_id,),
        ).fetchall()
    return bool(extended)


def lose_a_lease_while_it_runs(worker: WorkerProcess, job_id: UUID) -> None:
    """Take the lease from a job that produces a result; the worker has ended when its outcome was refused."""
    wait_for_effect("producing", job_id, of=worker)
    with raw_session() as session:
        # As a reap by another worker would, but that the job stays where it is.
        session.execute(
            "update pgbroker.job set lease_token = lease_token + 1, lease_expires_at = now() + interval '1 d' "
            "where id = %s",
            (job_id,),
        )
    wait_until(lambda: "outcome was refused" in worker.log, "the outcome is refused", of=worker)
    assert worker.stop() == 0


def test_the_body_of_a_result_that_lost_its_lease_is_removed(fleet: Fleet, folder: Path) -> None:
    job_id = put(handlers.produce, 1000, 2.0)

    lose_a_lease_while_it_runs(start(fleet, folder), job_id)

    assert files_in(folder) == []
    assert executions_of(job_id) == []


def test_a_worker_that_ends_tells_the_bodies_that_a_hanging_storage_keeps(fleet: Fleet, folder: Path) -> None:
    job_id = put(handlers.produce, 1000, 2.0)
    worker = start(fleet, folder, FLAWED + "HangingDelete")

    lose_a_lease_while_it_runs(worker, job_id)

    (name,) = files_in(folder)
    assert worker.log.count("a body stays in the storage") == 1
    assert name in worker.log


def test_the_body_of_a_result_whose_attempt_was_given_up_is_removed(fleet: Fleet, folder: Path) -> None:
    job_id = put(handlers.produce, 1000, 4.0, timeout=0.3, max_attempts=1)
    worker = start(fleet, folder)

    wait_for_status(job_id, Status.DEAD_LETTER, of=worker)
    after = put(handlers.work, 4.5)
    wait_for_status(after, Status.COMPLETED, of=worker)
    assert worker.stop() == 0

    assert states_of(job_id) == [AttemptState.TIMED_OUT]
    assert files_in(folder) == []


def test_a_large_result_needs_no_large_arguments_and_small_ones_stay_in_the_row(
    fleet: Fleet, folder: Path
) -> None:
    large, small = put(handlers.produce, 1000), put(handlers.produce, 10)
    worker = start(fleet, folder)

    wait_for_status([large, small], Status.COMPLETED, of=worker)

    (name,) = files_in(folder)
    assert json.loads((folder / name).read_text()) == "x" * 1000
    assert [each.result_body for each in executions_of(small)] == [None]
    assert result_of(small) == "x" * 10

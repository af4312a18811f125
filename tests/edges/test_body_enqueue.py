"""Arguments too large for a row lie in the storage exactly as long as a row names them."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, connection, transaction
from django.test import TestCase

from pgbroker import db, enqueue_many, get_job, job, telemetry, tenant_context, testing
from pgbroker.errors import (
    BodyDamaged,
    BodyMissing,
    BodyNotStored,
    BodyUnreadable,
    IdempotencyConflict,
    InvalidSetting,
    PayloadTooLarge,
    UnknownQueue,
)
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.models import Job, JobPayload
from pgbroker.policy.body_names import stub_of
from pgbroker.removals import removals
from pgbroker.tenancy import scope_all
from tests.support.sessions import second_session
from tests.support.storages import LARGE, LIMIT, body_storage, files_in

pytestmark = pytest.mark.django_db(transaction=True)

FLAWED = "tests.support.storages."


@job(name="tests.bodies.echo", max_attempts=2)
def echo(text: str, more: dict[str, int] | None = None) -> str:
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with body_storage(tmp_path / "bodies"):
        yield tmp_path / "bodies"


class Undone(Exception):
    """What ends a transaction that is to be rolled back."""


@contextmanager
def rolled_back(**how: bool) -> Iterator[None]:
    with suppress(Undone), transaction.atomic(**how):
        yield
        raise Undone


@pytest.fixture
def told() -> Iterator[list[str]]:
    """The names of bodies that are told to be left."""
    names: list[str] = []
    unsubscribe = telemetry.subscribe(
        lambda event, keys: names.append(keys["name"]), wants=lambda event: event == "body.left"
    )
    yield names
    unsubscribe()


@contextmanager
def interrupted() -> Iterator[None]:
    """Let the caller hear of trouble once the statement has done its work, as of a time limit by signal."""

    def wrapper(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        answer = execute(sql, params, many, context)
        if "enqueue_many" in str(sql):
            raise Undone
        return answer

    with suppress(Undone), connection.execute_wrapper(wrapper):
        yield


def payloads() -> list[JobPayload]:
    with scope_all():
        return list(JobPayload.objects.all())


# ------------------------------------------------------------------ what is stored


def test_large_arguments_lie_in_the_storage_and_the_row_names_them(folder: Path) -> None:
    result = echo.enqueue(LARGE)

    (payload,) = payloads()
    (name,) = files_in(folder)
    assert payload.args_body == name
    assert name.startswith("pgbroker/default/arguments/20")
    assert str(result.id) in name
    body = (folder / name).read_bytes()
    assert json.loads(body) == {"v": 1, "args": [LARGE], "kwargs": {}}
    assert payload.args["bytes"] == len(body)
    assert set(payload.args) == {"v", "sha256", "bytes"}
    assert get_job(result).call == json.loads(body)


def test_small_arguments_stay_in_the_row(folder: Path) -> None:
    echo.enqueue("x" * (LIMIT - len('{"v":1,"args":[""],"kwargs":{}}')))

    (payload,) = payloads()
    assert (payload.args_body, files_in(folder)) == (None, [])


def test_one_more_statement_is_not_needed(folder: Path, django_assert_num_queries: object) -> None:
    echo.enqueue("warm")
    counts = []
    for text in ("small", LARGE):
        with transaction.atomic(), django_assert_num_queries(1, exact=False) as seen:  # type: ignore[operator]
            echo.enqueue(text)
        counts.append(len(seen))

    assert counts[0] == counts[1]


def test_without_a_storage_the_refusal_names_it(settings: object) -> None:
    with pytest.raises(PayloadTooLarge, match="set BODY_STORAGE"):
        echo.enqueue("x" * 300_000)


def test_what_no_body_may_have_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pgbroker.bodies", "pgbroker.payload"):
        monkeypatch.setattr(f"{module}.LARGEST_BYTES", 2000)

    with pytest.raises(
        PayloadTooLarge, match=r"more than 2000, the most a body may have\. Store the data and pass its id\.$"
    ):
        echo.enqueue("x" * 2000)
    assert files_in(folder) == []


def test_async_code_saves_a_body_too(folder: Path) -> None:
    async def view() -> str:
        return str((await echo.aenqueue(LARGE)).id)

    job_id = async_to_sync(view)()

    assert get_job(job_id).call["args"] == [LARGE]


def test_a_task_result_reads_the_body_only_when_it_is_asked(folder: Path) -> None:
    made = echo.enqueue(LARGE)
    backend = echo.get_backend()
    (name,) = files_in(folder)

    assert made.args == [LARGE]
    found = backend.get_result(made.id)
    assert (found.args, found.kwargs) == ([LARGE], {})
    (folder / name).unlink()
    again = backend.get_result(made.id)
    assert not again.is_finished
    assert made.id in repr(again)
    with pytest.raises(BodyMissing):
        _ = again.args


# ------------------------------------------------------------------ nothing is left behind


def test_the_body_of_a_transaction_that_rolls_back_is_removed(folder: Path) -> None:
    with rolled_back():
        echo.enqueue(LARGE)
        assert len(files_in(folder)) == 1

    assert (files_in(folder), payloads()) == ([], [])


@pytest.mark.parametrize("durable", [False, True])
def test_the_body_of_a_transaction_that_commits_stays(folder: Path, durable: bool) -> None:
    with transaction.atomic(durable=durable):
        echo.enqueue(LARGE)
    gc.collect()

    assert files_in(folder) == [each.args_body for each in payloads()] != []


def test_the_body_of_a_savepoint_that_rolls_back_is_removed_and_the_others_stay(folder: Path) -> None:
    with transaction.atomic():
        kept = [echo.enqueue(LARGE).id]
        with rolled_back():
            echo.enqueue(LARGE)
            with transaction.atomic():
                echo.enqueue(LARGE)
            assert len(files_in(folder)) == 3
        assert len(files_in(folder)) == 1
        with transaction.atomic():
            kept.append(echo.enqueue(LARGE).id)

    assert files_in(folder) == sorted(each.args_body for each in payloads())
    assert {str(each.job_id) for each in payloads()} == set(kept)


@pytest.mark.parametrize("commits", [False, True])
def test_of_a_savepoint_that_is_rolled_back_by_hand_only_the_transaction_tells(
    folder: Path, commits: bool
) -> None:
    """Django tells its hooks of savepoints of atomic() only: the body is an orphan then, for the sweep."""
    with transaction.atomic():
        savepoint = connection.savepoint()
        echo.enqueue(LARGE)
        connection.savepoint_rollback(savepoint)
        transaction.set_rollback(not commits)

    assert (len(files_in(folder)), payloads()) == (int(commits), [])


def test_the_body_of_a_transaction_that_cannot_commit_is_removed(folder: Path) -> None:
    with connection.cursor() as cursor:
        cursor.execute("create table public.late (id int unique deferrable initially deferred)")
    try:
        with suppress(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("insert into public.late values (1), (1)")
            echo.enqueue(LARGE)
            assert len(files_in(folder)) == 1
    finally:
        with connection.cursor() as cursor:
            cursor.execute("drop table public.late")

    assert (files_in(folder), payloads()) == ([], [])


def test_the_body_of_a_connection_that_is_closed_in_its_transaction_stays_and_is_told(
    folder: Path, told: list[str]
) -> None:
    """Django drops its hooks before it closes: that looks like a list that was emptied by hand."""
    with transaction.atomic():
        echo.enqueue(LARGE)
        connection.close()

    assert (files_in(folder), payloads()) == (told, [])
    assert len(told) == 1


def test_a_body_is_kept_when_another_hook_of_the_commit_raises(folder: Path) -> None:
    """Django drops what stands behind it: dropped is not rolled back."""

    def broken() -> None:
        raise Undone

    with suppress(Undone), transaction.atomic():
        transaction.on_commit(broken)
        echo.enqueue(LARGE)
    gc.collect()

    assert files_in(folder) == [each.args_body for each in payloads()] != []


@pytest.mark.own_session
def test_a_body_is_kept_when_the_connection_is_lost_at_the_commit(folder: Path) -> None:
    """The server may have committed: an orphan is swept later, a job without its arguments is lost."""
    with second_session() as other, suppress(DatabaseError), transaction.atomic():
        echo.enqueue(LARGE)
        backend = (connection.connection.info.backend_pid,)
        other.execute("select pg_terminate_backend(%s)", backend)
        while other.execute("select from pg_stat_activity where pid = %s", backend).fetchone():
            pass
    connection.close()

    assert len(files_in(folder)) == 1
    assert payloads() == []


def test_a_fork_that_ends_removes_nothing_of_its_parents(folder: Path) -> None:
    with transaction.atomic():
        echo.enqueue(LARGE)
        child = os.fork()
        if child == 0:
            connection.run_on_commit = []
            os._exit(0)
        os.waitpid(child, 0)
        assert len(files_in(folder)) == 1

    assert len(files_in(folder)) == 1


def test_the_body_of_a_call_that_the_database_refuses_is_removed(folder: Path) -> None:
    with pytest.raises(UnknownQueue):
        echo.using(queue_name="nowhere-at-all").enqueue(LARGE)

    assert files_in(folder) == []


def test_a_second_call_with_the_same_large_body_finds_the_first(folder: Path) -> None:
    keyed = echo.options(idempotency_key="k")
    first = keyed.enqueue(text=LARGE, more={"b": 1, "a": 2})

    second = keyed.enqueue(more={"a": 2, "b": 1}, text=LARGE)

    assert second.id == first.id
    assert second.kwargs == {"text": LARGE, "more": {"a": 2, "b": 1}}
    assert len(files_in(folder)) == 1
    with pytest.raises(IdempotencyConflict):
        keyed.enqueue(text=LARGE + "y", more={"a": 2, "b": 1})
    with pytest.raises(IdempotencyConflict):
        keyed.options(on_conflict="reject").enqueue(text=LARGE, more={"a": 2, "b": 1})
    assert files_in(folder) == [each.args_body for each in payloads()]


def test_the_body_of_a_statement_that_fails_is_removed(folder: Path) -> None:
    with suppress(DatabaseError), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("set local statement_timeout to 1")
            cursor.execute("create function pg_temp.slow() returns trigger language plpgsql as "
                           "$$ begin perform pg_sleep(1); return new; end $$")  # fmt: skip
            cursor.execute("create trigger slow before insert on pgbroker.job_payload "
                           "for each row execute function pg_temp.slow()")  # fmt: skip
        with pytest.raises(DatabaseError):
            echo.enqueue(LARGE)

    assert (files_in(folder), payloads()) == ([], [])


def test_the_body_of_a_call_in_autocommit_that_fails_is_removed(folder: Path) -> None:
    def fail(moment: str, name: str) -> None:
        if (moment, name) == ("before", "enqueue_many"):
            raise psycopg.errors.DiskFull("no")

    db.fault = fail
    try:
        with pytest.raises(psycopg.errors.DiskFull):
            echo.enqueue(LARGE)
    finally:
        db.fault = None

    assert files_in(folder) == []


def test_a_body_is_kept_when_only_the_answer_of_its_statement_was_lost(folder: Path) -> None:
    def fail(moment: str, name: str) -> None:
        if (moment, name) == ("after", "enqueue_many"):
            raise psycopg.OperationalError("gone")

    db.fault = fail
    try:
        with pytest.raises(psycopg.OperationalError):
            echo.enqueue(LARGE)
    finally:
        db.fault = None

    assert files_in(folder) == [each.args_body for each in payloads()] != []


@pytest.mark.parametrize("many", [False, True])
def test_a_body_is_kept_when_its_statement_was_interrupted_and_its_transaction_commits(
    folder: Path, told: list[str], many: bool
) -> None:
    with transaction.atomic(), interrupted():
        enqueue_many([echo.bind(LARGE)]) if many else echo.enqueue(LARGE)

    # An atomic block of enqueue_many's own that failed makes Django roll the caller's back.
    assert len(payloads()) == int(not many)
    assert files_in(folder) == [each.args_body for each in payloads()]
    assert told == []


def test_the_body_of_an_interrupted_statement_is_removed_when_its_transaction_rolls_back(
    folder: Path, told: list[str]
) -> None:
    with rolled_back():
        with interrupted():
            echo.enqueue(LARGE)
        assert len(files_in(folder)) == 1

    assert (files_in(folder), payloads(), told) == ([], [], [])


def test_the_body_of_an_interrupted_statement_is_removed_when_its_savepoint_was_rolled_back_by_hand(
    folder: Path,
) -> None:
    with transaction.atomic():
        savepoint = connection.savepoint()
        with interrupted():
            echo.enqueue(LARGE)
        connection.savepoint_rollback(savepoint)
        assert len(files_in(folder)) == 1

    assert (files_in(folder), payloads()) == ([], [])


@pytest.mark.parametrize("commits", [False, True])
def test_a_body_whose_hook_was_thrown_away_in_its_transaction_stays_and_is_told(
    folder: Path, told: list[str], commits: bool
) -> None:
    with transaction.atomic():
        echo.enqueue(LARGE)
        connection.run_on_commit = []
        assert files_in(folder) == told != []
        transaction.set_rollback(not commits)

    assert len(payloads()) == int(commits)
    assert files_in(folder) == told != []


def test_a_statement_whose_connection_was_replaced_leaves_its_body(folder: Path, told: list[str]) -> None:
    def wrapper(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        execute(sql, params, many, context)
        connection.close()
        raise Undone

    with suppress(Undone, DatabaseError), connection.execute_wrapper(wrapper):
        echo.enqueue(LARGE)

    assert files_in(folder) == told != []


def test_a_database_that_is_away_leaves_no_body(
    folder: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.close()
    with monkeypatch.context() as away:
        away.setitem(connection.settings_dict, "PORT", "1")
        with pytest.raises(DatabaseError):
            echo.enqueue(LARGE)

    assert (files_in(folder), told) == ([], [])


def test_a_rollback_does_not_wait_for_the_storage_whoever_drops_the_body(tmp_path: Path) -> None:
    folder = tmp_path / "bodies"
    kept: list[BaseException] = []

    def roll_back() -> None:
        try:
            with transaction.atomic():
                echo.enqueue(LARGE)
                raise Undone
        except Undone as error:
            # A cycle with this frame: only the collector ends it, in whatever thread.
            kept.append(error)
        connection.close()

    with body_storage(folder, FLAWED + "HangingDelete"):
        try:
            thread = threading.Thread(target=roll_back, daemon=True)
            thread.start()
            thread.join(10)
            kept.clear()
            gc.collect()
            with pytest.raises(TimeoutError):
                testing.settle_bodies(seconds=0.1)
            assert not thread.is_alive()
            assert len([path for path in folder.rglob("*") if path.is_file()]) == 1
        finally:
            (folder / "answer").touch()

        assert files_in(folder) == ["answer"]


def test_what_waits_for_the_storage_is_told_once_when_the_process_ends(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgbroker.removals.EXIT_SECONDS", 0.05)
    folder = tmp_path / "bodies"
    with body_storage(folder, FLAWED + "HangingDelete"):
        try:
            for _ in range(3):
                with rolled_back():
                    echo.enqueue(LARGE)
            removals.finish()
            removals.finish()
        finally:
            (folder / "answer").touch()

        assert len(told) == len(set(told)) == 3
        assert files_in(folder) == ["answer"]


def test_a_process_that_ends_removes_what_it_rolled_back_before(folder: Path) -> None:
    connection.close()
    child = os.fork()
    if child == 0:
        # After the fork, in a process that has no thread yet.
        with rolled_back():
            echo.enqueue(LARGE)
        removals.finish()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

    assert files_in(folder) == []


def test_what_waits_in_a_process_that_forks_is_the_parents(tmp_path: Path) -> None:
    folder = tmp_path / "bodies"
    with body_storage(folder, FLAWED + "HangingDelete"):
        try:
            with rolled_back():
                echo.enqueue(LARGE)
            child = os.fork()
            if child == 0:
                os._exit(0 if removals.settle(0.1) else 1)
            assert os.waitpid(child, 0)[1] == 0
        finally:
            (folder / "answer").touch()

        assert files_in(folder) == ["answer"]


def test_many_calls_of_every_kind_leave_the_bodies_of_stored_jobs_only(folder: Path) -> None:
    keyed = echo.options(idempotency_key="k")
    keyed.enqueue(LARGE)
    with transaction.atomic():
        outcomes = enqueue_many(
            [
                echo.bind("small"),
                echo.bind(LARGE),
                keyed.bind(LARGE),
                keyed.bind(LARGE + "y"),
                echo.using(queue_name="nowhere-at-all").bind(LARGE),
                echo.bind(7),  # type: ignore[arg-type]
                echo.options(tenant="acme").bind(LARGE),
                echo.options(idempotency_key="twice").bind(LARGE),
                echo.options(idempotency_key="twice").bind(LARGE),
            ]
        )

    assert [each.outcome for each in outcomes] == [
        "created", "created", "existing", "idempotency_conflict", "unknown_queue", "invalid_argument", "created",
        "created", "existing",
    ]  # fmt: skip
    named = sorted(each.args_body for each in payloads() if each.args_body)
    assert files_in(folder) == named
    assert len(named) == 4
    assert len([name for name in named if name.startswith("pgbroker/acme/")]) == 1


def test_many_calls_that_roll_back_leave_nothing(folder: Path) -> None:
    with rolled_back():
        enqueue_many([echo.bind(LARGE) for _ in range(5)])
        assert len(files_in(folder)) == 5

    assert files_in(folder) == []


def test_many_calls_whose_source_fails_leave_nothing(folder: Path) -> None:
    def calls() -> Iterator[object]:
        yield echo.bind(LARGE)
        yield echo.bind(LARGE)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        enqueue_many(calls())  # type: ignore[arg-type]

    assert files_in(folder) == []


class InATestCase(TestCase):
    """Django's own: it never commits."""

    def test_the_body_is_there_in_the_test_and_its_job_runs(self) -> None:
        with self.captureOnCommitCallbacks() as hooks:
            result = echo.enqueue(LARGE)
        del hooks
        (ran,) = testing.run_jobs()

        assert ran.error is None
        assert get_job(result).result == LARGE


@pytest.mark.django_db
def test_a_test_case_leaves_no_body(tmp_path: Path) -> None:
    with body_storage(tmp_path / "bodies"):
        with transaction.atomic():
            echo.enqueue(LARGE)
            testing.run_jobs()
            assert len(files_in(tmp_path / "bodies")) == 2
            transaction.set_rollback(True)

        assert files_in(tmp_path / "bodies") == []


# ------------------------------------------------------------------ storages that misbehave


def test_a_storage_that_takes_nothing_refuses_the_call_and_nothing_else(tmp_path: Path) -> None:
    with body_storage(tmp_path / "bodies", FLAWED + "Refusing"):
        with pytest.raises(BodyNotStored, match="no space left"):
            echo.enqueue(LARGE)
        outcomes = enqueue_many([echo.bind(LARGE), echo.bind("small")])

    assert [each.outcome for each in outcomes] == ["body_not_stored", "created"]
    assert files_in(tmp_path / "bodies") == []


def test_a_storage_that_deletes_nothing_is_told_and_not_raised(tmp_path: Path) -> None:
    told: list[object] = []
    unsubscribe = telemetry.subscribe(lambda event, keys: told.append((event, keys.get("error_code"))))
    try:
        with body_storage(tmp_path / "bodies", FLAWED + "Clinging"), rolled_back():
            echo.enqueue(LARGE)
        assert len(files_in(tmp_path / "bodies")) == 1
    finally:
        unsubscribe()

    assert ("body.left", "PermissionError") in told


def test_a_storage_that_puts_a_body_elsewhere_is_refused(tmp_path: Path) -> None:
    with body_storage(tmp_path, FLAWED + "Renaming") as storage:
        with pytest.raises(BodyNotStored, match="outside of the tenant's folder"):
            echo.enqueue(LARGE)

        assert storage.listdir("elsewhere") == ([], [])


def test_a_storage_that_does_not_say_where_it_saved_a_body_is_refused(tmp_path: Path) -> None:
    with body_storage(tmp_path / "bodies", FLAWED + "Nameless"):
        with pytest.raises(BodyNotStored, match="NoneType in place of a name"):
            echo.enqueue(LARGE)

        assert files_in(tmp_path / "bodies") == []


def test_a_storage_that_ends_the_thread_leaves_no_body(tmp_path: Path) -> None:
    with body_storage(tmp_path / "bodies", FLAWED + "Exiting"):
        with pytest.raises(SystemExit):
            echo.enqueue(LARGE)

        assert files_in(tmp_path / "bodies") == []


def test_a_storage_that_gives_no_bytes_gives_a_damaged_body(folder: Path) -> None:
    result = echo.enqueue(LARGE)

    with body_storage(folder, FLAWED + "Nameless"), pytest.raises(BodyDamaged, match="in place of bytes"):
        _ = get_job(result).call


def test_a_storage_in_memory_serves_as_well(tmp_path: Path) -> None:
    with body_storage(tmp_path, "django.core.files.storage.InMemoryStorage"):
        result = echo.enqueue(LARGE)

        assert get_job(result).call["args"] == [LARGE]


def test_an_alias_that_does_not_exist_is_told_as_the_setting_it_is(tmp_path: Path) -> None:
    with body_storage(tmp_path, BODY_STORAGE="nowhere"), pytest.raises(InvalidSetting, match="nowhere"):
        echo.enqueue(LARGE)


# ------------------------------------------------------------------ tenants, SQL, hand-written rows


@pytest.mark.parametrize("tenant", ["..", ".", "A.b", "a_2b", "-"])
def test_a_tenant_of_an_odd_name_has_a_folder_of_its_own(folder: Path, tenant: str) -> None:
    with tenant_context(tenant):
        result = echo.enqueue(LARGE)
        echo.options(tenant="acme").enqueue(LARGE)

        assert get_job(result).call["args"] == [LARGE]
    assert len({name.split("/")[1] for name in files_in(folder)}) == 2


def test_a_row_cannot_name_the_body_of_another_tenant(folder: Path) -> None:
    with tenant_context("acme"):
        echo.enqueue(LARGE)
    (name,) = files_in(folder)
    entry = {"job_type": "tests.bodies.echo", "args": payloads()[0].args, "args_body": name}

    with second_session("globex") as session:
        ((outcome, detail),) = session.execute(
            "select outcome, detail from pgbroker.enqueue_many_1(%s)", (json.dumps([entry]),)
        ).fetchall()
        with pytest.raises(psycopg.errors.CheckViolation):
            session.execute(
                "insert into pgbroker.job_payload (job_id, args, args_body) values (gen_random_uuid(), '{}', %s)",
                (name,),
            )
        with pytest.raises(psycopg.errors.UndefinedFunction):
            session.execute("select pgbroker.enqueue('tests.bodies.echo', args_body => 'x')")

    assert (outcome, "folder of this tenant" in detail) == ("invalid_option", True)
    assert len(payloads()) == 1


def test_a_stub_without_a_body_is_no_call_of_the_handler(folder: Path) -> None:
    echo.enqueue(LARGE)
    entry = {"job_type": "tests.bodies.echo", "args": payloads()[0].args}

    with second_session("default") as session:
        ((outcome,),) = session.execute(
            "select outcome from pgbroker.enqueue_many_1(%s)", (json.dumps([entry]),)
        ).fetchall()

    assert outcome == "invalid_argument"


def test_a_repeated_id_keeps_its_body(folder: Path) -> None:
    echo.enqueue(LARGE)
    (payload,) = payloads()
    row = {"id": str(payload.job_id), "job_type": "tests.bodies.echo", "args": payload.args}

    (answer,) = enqueue_rows([{**row, "args_body": payload.args_body}])

    assert answer.outcome == "existing"


@pytest.mark.parametrize("damage", ["missing", "longer", "shorter", "changed", "no_json"])
def test_a_body_that_is_not_what_was_saved_is_not_read(folder: Path, damage: str) -> None:
    result = echo.enqueue(LARGE)
    (name,) = files_in(folder)
    path = folder / name
    content = path.read_bytes()
    match damage:
        case "missing":
            path.unlink()
        case "longer":
            path.write_bytes(content + b" ")
        case "shorter":
            path.write_bytes(content[:-1])
        case "changed":
            path.write_bytes(content.replace(b"x", b"y"))
        case "no_json":
            path.write_bytes(b"\xff" * len(content))

    with pytest.raises(BodyUnreadable) as raised:
        _ = get_job(result).call

    assert raised.value.code == ("body_missing" if damage == "missing" else "body_damaged")
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    ("content", "stub", "code"),
    [
        (b"[1, 2]", {}, "undecodable_argument"),
        (b'{"v": 2}', {}, "undecodable_argument"),
        (b"\xff{", {}, "body_damaged"),
        (b"[" * 100_000, {}, "body_damaged"),
        (b"{}", {"bytes": 10**15}, "body_damaged"),
        (b"{}", {"sha256": 7}, "body_damaged"),
        (b"{}", {"more": 1}, "body_damaged"),
    ],
)
def test_a_body_that_sql_made_up_fails_its_own_attempt(
    folder: Path, content: bytes, stub: dict[str, object], code: str
) -> None:
    echo.enqueue("the type is declared")
    path = folder / "pgbroker" / "default" / "made-up"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    args = {**stub_of(content).as_json(), **stub}
    entry = {
        "job_type": "tests.bodies.echo",
        "args": args,
        "args_body": "pgbroker/default/made-up",
        "max_attempts": 1,
    }
    with second_session("default") as session:
        ((outcome,),) = session.execute(
            "select outcome from pgbroker.enqueue_many_1(%s)", (json.dumps([entry]),)
        ).fetchall()

    ran = testing.run_jobs()

    assert outcome == "created"
    assert [getattr(each.error, "code", None) for each in ran] == [None, code]

"""The embedded server, on clusters of its own: nothing here touches the server under the other tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import psycopg.pq
import psycopg.sql
import pytest

from testproject import embedded_pg, pg_account, pg_cluster, pg_server

HOLD = """
    import ctypes, pathlib, sys
    from testproject import embedded_pg
    # Become the parent of orphans, and reap none: PR_SET_CHILD_SUBREAPER. What dies becomes a zombie.
    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
    running = embedded_pg.ensure_running("test", base=pathlib.Path(sys.argv[1]))
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory that the server's account can enter: pytest's own tmp_path is closed to it."""
    path = Path(tempfile.mkdtemp(prefix="pgbroker-test-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def base(directory: Path) -> Iterator[Path]:
    """Where a server can be started; it does not run before or after the test."""
    yield directory
    pg_server.stop(embedded_pg.cluster("test", base=directory))


@pytest.fixture
def hold(base: Path) -> Iterator[Callable[..., embedded_pg.Running]]:
    """Hold a server until the end of the test, in this process."""
    with contextlib.ExitStack() as held:

        def start(base: Path = base) -> embedded_pg.Running:
            running = embedded_pg.ensure_running("test", base=base)
            held.callback(running.release)
            return running

        yield start


@pytest.fixture
def holder(base: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start processes that hold the server until their input ends."""
    started = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(HOLD), str(base)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        with process:  # closes its pipes and waits
            process.kill()


def is_held(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "held\n"


def let_go(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None
    process.stdin.close()
    return process.wait(timeout=30)


def answer(dsn: str, question: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(question).fetchone()
    assert row is not None
    return row[0]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def keep(number: int, running: embedded_pg.Running) -> None:
    with psycopg.connect(running.dsn, autocommit=True) as connection:
        connection.execute("drop table if exists kept")
        connection.execute(psycopg.sql.SQL("create table kept as select {} as n").format(number))


def test_the_server_starts_for_the_first_holder_and_stops_with_the_last(hold):
    first = hold()
    second = hold()

    first.release()
    first.release()
    assert answer(second.dsn, "select 1") == 1

    second.release()
    assert pg_server.running_pid(second.cluster) is None


def test_the_application_is_no_superuser_and_may_create_databases(base, hold):
    running = hold()

    rights = "select concat(rolsuper, rolbypassrls, rolcreatedb) from pg_roles where rolname = current_user"
    owner = "select pg_get_userbyid(datdba) from pg_database where datname = current_database()"

    assert answer(running.dsn, rights) == "fft"
    assert answer(running.dsn, owner) == embedded_pg.ROLE
    assert answer(running.superuser_dsn(), rights) == "ttt"
    assert answer(embedded_pg.superuser_dsn("test", base=base), rights) == "ttt"


def test_a_killed_server_runs_again_for_the_next_holder_with_its_data(hold):
    running = hold()
    keep(7, running)
    killed = pg_server.running_pid(running.cluster)

    os.kill(killed, signal.SIGKILL)
    again = hold()

    assert pg_server.running_pid(again.cluster) not in (killed, None)
    assert answer(running.dsn, "select n from kept") == 7


def test_a_zombie_is_not_taken_for_a_server(base, hold, holder):
    parent = holder()
    assert is_held(parent)
    zombie = pg_server.running_pid(embedded_pg.cluster("test", base=base))
    os.kill(zombie, signal.SIGKILL)
    wait_until(lambda: ") Z " in Path(f"/proc/{zombie}/stat").read_text())

    running = hold()

    assert answer(running.dsn, "select 1") == 1
    assert ") Z " in Path(f"/proc/{zombie}/stat").read_text()


def test_a_killed_server_is_waited_for_while_its_children_are_busy(hold):
    running = hold()
    busy = psycopg.pq.PGconn.connect(running.dsn.encode())
    # A child notices that its parent is gone when it waits for something; this one does not wait.
    busy.send_query(b"do $$ begin while clock_timestamp() < now() + interval '1.5 s' loop end loop; end $$")
    started = "select count(*) from pg_stat_activity where state = 'active' and query like 'do $$ %'"
    wait_until(lambda: answer(running.superuser_dsn(), started) == 1)

    os.kill(pg_server.running_pid(running.cluster), signal.SIGKILL)
    again = hold()

    assert answer(again.dsn, "select 1") == 1
    busy.finish()


def test_a_server_whose_socket_was_swept_away_is_restarted(hold):
    running = hold()
    shutil.rmtree(running.cluster.sockets)

    again = hold()

    assert answer(again.dsn, "select 1") == 1


def test_a_pid_that_belongs_to_another_program_is_not_our_server(hold):
    running = hold()
    running.release()
    (running.cluster.data / "postmaster.pid").write_text(f"{os.getpid()}\n{running.cluster.data}\n")

    again = hold()

    assert answer(again.dsn, "select 1") == 1


def test_two_processes_at_once_share_one_server(base, holder):
    processes = [holder() for _ in range(3)]
    assert all(is_held(process) for process in processes)

    place = embedded_pg.cluster("test", base=base)
    pid = pg_server.running_pid(place)
    assert [let_go(process) for process in processes[:2]] == [0, 0]
    assert pg_server.running_pid(place) == pid
    assert let_go(processes[2]) == 0
    assert pg_server.running_pid(place) is None


def test_a_killed_holder_leaves_no_count_behind(base, holder):
    killed, other = holder(), holder()
    assert is_held(killed)
    assert is_held(other)

    killed.kill()
    killed.wait()
    assert let_go(other) == 0

    assert pg_server.running_pid(embedded_pg.cluster("test", base=base)) is None


def test_the_first_holder_finds_no_databases_of_a_killed_run(base, hold, holder):
    killed = holder()
    assert is_held(killed)
    place = embedded_pg.cluster("test", base=base)
    with psycopg.connect(place.dsn(), autocommit=True) as connection:
        connection.execute("create database test_left_behind")
    killed.kill()
    killed.wait()

    running = hold()

    assert answer(running.dsn, "select count(*) from pg_database where datname like 'test%'") == 0


def test_the_first_holder_of_a_bench_finds_an_empty_database(base):
    def tables(running: embedded_pg.Running) -> object:
        return answer(running.dsn, "select count(*) from pg_tables where schemaname = 'public'")

    with contextlib.ExitStack() as held:
        for _ in range(2):
            running = embedded_pg.ensure_running("bench", base=base)
            held.callback(running.release)
            assert tables(running) == 0
            keep(1, running)
            second = embedded_pg.ensure_running("bench", base=base)
            held.callback(second.release)
            running.release()
            assert tables(second) == 1
            second.release()


def test_a_forked_child_does_not_let_go_for_its_parent(hold):
    running = hold()

    child = os.fork()
    if child == 0:
        running.release()
        os._exit(0)
    os.waitpid(child, 0)

    assert answer(running.dsn, "select 1") == 1


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_ends_every_session_and_keeps_the_data(hold, mode):
    running = hold()
    keep(7, running)

    with psycopg.connect(running.dsn, autocommit=True) as session:
        running.restart(mode)
        with pytest.raises(psycopg.OperationalError):
            session.execute("select 1")

    assert answer(running.dsn, "select n from kept") == 7


def test_a_damaged_test_cluster_is_made_anew(hold):
    running = hold()
    running.release()
    shutil.rmtree(running.cluster.data / "global")

    again = hold()

    assert answer(again.dsn, "select 1") == 1


def test_libpq_variables_do_not_lead_elsewhere(hold, monkeypatch):
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGPORT", "1")

    running = hold()

    assert answer(running.dsn, "select current_database()") == embedded_pg.DATABASE


def test_a_path_with_blanks_commas_and_quotes_works(base, hold):
    running = hold(base / "it's, odd")

    assert answer(running.dsn, "select 1") == 1
    running.release()
    shutil.rmtree(running.cluster.sockets)  # in /tmp, since libpq would split the path at the comma


def test_a_socket_path_that_is_too_long_moves_to_tmp(base):
    place = embedded_pg.cluster("test", base=base / ("long" * 30))

    assert place.sockets.parent == pg_account.SHARED_DIRECTORY
    assert place == embedded_pg.cluster("test", base=base / ("long" * 30))
    assert place.sockets != embedded_pg.cluster("test", base=base / ("long" * 31)).sockets


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another account")
def test_programs_and_directories_closed_to_the_account_are_not_opened(base, hold, monkeypatch):
    installation = embedded_pg.cluster("test", base=base).programs.bindir.parent
    if not (installation / "share").is_dir():
        pytest.skip(f"{installation} needs files elsewhere, so a copy of it would not run")
    private = base / "private"
    private.mkdir(mode=0o700)
    package = installation.parent
    shutil.copytree(installation, private / package.name / installation.name, symlinks=True)
    if (libraries := package.with_name(package.name + ".libs")).exists():
        shutil.copytree(libraries, private / libraries.name, symlinks=True)
    monkeypatch.setenv("PGBROKER_PG_BINDIR", str(private / package.name / installation.name / "bin"))

    running = hold(private / "files")

    assert running.cluster.directory.is_relative_to(pg_account.SHARED_DIRECTORY)
    assert answer(running.dsn, "select 1") == 1
    running.release()
    assert private.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(running.cluster.directory.parent)


def test_a_directory_that_somebody_else_put_in_tmp_is_refused(base, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: base.stat().st_uid + 1)
    pg_account.server_account.cache_clear()

    with pytest.raises(embedded_pg.EmbeddedPostgresError, match="another user"):
        pg_account.make_directory(base, 0o700, owned_by_server=True)

    monkeypatch.undo()
    pg_account.server_account.cache_clear()


def test_without_programs_the_error_says_what_was_tried(monkeypatch):
    monkeypatch.setenv("PGBROKER_PG_MAJOR", "7")

    with pytest.raises(embedded_pg.EmbeddedPostgresError, match="wanted 7"):
        pg_cluster.cluster("test")


def test_the_named_directory_is_the_only_one_tried(monkeypatch, tmp_path):
    monkeypatch.setenv("PGBROKER_PG_BINDIR", str(tmp_path))

    with pytest.raises(embedded_pg.EmbeddedPostgresError) as caught:
        pg_cluster.cluster("test")

    assert str(tmp_path) in str(caught.value)
    assert "pg_config" not in str(caught.value)

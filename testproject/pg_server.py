"""
Start, repair and stop one embedded server.

Every function here is called under the cluster's mutex; `embedded_pg` holds it. Authentication is `trust`,
so the server listens on a Unix socket in a 0700 directory and nowhere else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Literal

import psycopg
import psycopg.pq

from testproject.pg_account import give_to_server, make_directory, may_enter, run, server_account
from testproject.pg_cluster import DATABASE, ROLE, SUPERUSER, Cluster, Kind
from testproject.pg_programs import EmbeddedPostgresError

ShutdownMode = Literal["smart", "fast", "immediate"]

START_SECONDS = 60  # crash recovery of a large demo database can take long
DYING_SECONDS = 20  # how long the busy children of a killed postmaster may stay

COMMON = {
    "max_connections": "200",
    "shared_buffers": "256MB",
    "listen_addresses": "''",
    "timezone": "'UTC'",
    "log_timezone": "'UTC'",
}
DURABLE = {**COMMON, "fsync": "on"}
PARAMETERS: dict[Kind, dict[str, str]] = {
    # A test cluster is not used again after a reboot, so there is nothing to lose in a power cut.
    "test": {**COMMON, "fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"},
    "demo": DURABLE,
    "bench": DURABLE,
    "database": DURABLE,
    # Small, so that its connections can be used up.
    "chaos": {**DURABLE, "max_connections": "120"},
}


def make_directories(place: Cluster) -> None:
    """Make what the locks and the socket live in. The one function here that needs no mutex."""
    make_directory(place.directory.parent, 0o755, owned_by_server=False)
    make_directory(place.directory, 0o755, owned_by_server=True)
    make_directory(place.sockets, 0o700, owned_by_server=True)


def running_pid(place: Cluster) -> int | None:
    """
    Return the postmaster's pid; None when it is gone, whatever postmaster.pid says.

    After a kill -9 in a container whose process 1 reaps nobody, the postmaster stays a zombie: its pid
    exists, `kill -0` succeeds, and PostgreSQL would refuse to start for ever. And after a reboot the pid
    may be somebody else's. So ask whether it has its working directory in our data; a zombie has none.
    """
    try:
        pid = int((place.data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    if not Path("/proc/self").exists():
        status = run([place.programs.bindir / "pg_ctl", "status", "-D", place.data])
        return pid if status.returncode == 0 else None
    try:
        return pid if os.path.samefile(f"/proc/{pid}/cwd", place.data) else None
    except OSError:
        return None


def accepts(place: Cluster) -> bool:
    """
    Tell whether the server takes connections.

    Asked by a handshake, not by a connect: the socket of a server that is being killed, or of its busy
    children, still listens. A server whose socket's file was swept away does not answer either.
    """
    question = place.dsn(user=SUPERUSER, database="postgres") + " connect_timeout=10"
    return psycopg.pq.PGconn.ping(question.encode()) == psycopg.pq.Ping.OK


def start(place: Cluster) -> None:
    """Start the server afresh, whatever is left of an earlier one; return when it takes connections."""
    stop(place)
    if not (place.data / "PG_VERSION").exists():
        _initialise(place)
    _write_configuration(place)
    # Both files name a pid and PostgreSQL believes them, even if that process is a zombie: see running_pid.
    (place.data / "postmaster.pid").unlink(missing_ok=True)
    (place.sockets / f".s.PGSQL.{place.port}.lock").unlink(missing_ok=True)
    deadline = time.monotonic() + DYING_SECONDS
    while True:
        place.log.unlink(missing_ok=True)
        started = control(place, "start", f"--log={place.log}")
        if started.returncode == 0:
            break
        log = place.log.read_text(errors="replace") if place.log.exists() else ""
        # The children of a killed postmaster end by themselves, but a busy one takes a moment.
        if "is still in use" not in log or time.monotonic() > deadline:
            raise EmbeddedPostgresError(
                f"The embedded PostgreSQL did not start.\n{started.stdout}\n"
                f"The end of its log ({place.log}):\n{log[-3000:]}"
            )
        time.sleep(0.1)
    _create_role_and_database(place)


def start_tidy(place: Cluster) -> None:
    """
    Start a test cluster for its first holder, without the databases that killed runs left behind.

    It runs with fsync off, so its files mean nothing after a reboot, and are made anew then. Making them
    for every run would be simpler, and would cost each run more than a second.
    """
    boot = place.directory / "boot"
    if not boot.exists() or boot.read_text() != _boot_id():
        _start_over(place)
        boot.write_text(_boot_id())
    if not accepts(place):
        try:
            start(place)
        except EmbeddedPostgresError:
            _start_over(place)
            start(place)
    with psycopg.connect(place.dsn(user=SUPERUSER, database="postgres"), autocommit=True) as connection:
        left = connection.execute(r"select datname from pg_database where datname like 'test\_%'").fetchall()
        for (name,) in left:
            connection.execute(f'drop database "{name}" with (force)')


def stop(place: Cluster) -> None:
    """Stop the server if it runs: in an orderly way, or else by force."""
    pid = running_pid(place)
    if pid is None:
        return
    if control(place, "stop", "--mode=fast").returncode != 0 and running_pid(place) == pid:
        os.kill(pid, signal.SIGKILL)


def control(place: Cluster, action: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pg_ctl and wait until what it does is done."""
    program = _runnable(place) / "pg_ctl"
    always = [f"--pgdata={place.data}", "--wait", f"--timeout={START_SECONDS}"]
    return run([program, action, *always, *options], cwd=place.directory)


def _start_over(place: Cluster) -> None:
    stop(place)
    shutil.rmtree(place.data, ignore_errors=True)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return "unknown"


def _initialise(place: Cluster) -> None:
    """
    Make an empty cluster. It gets its name when it is whole, so a killed initdb leaves none behind.

    The name before that is new each time: an initdb outlives the killed process that waited for it.
    """
    shutil.rmtree(place.data, ignore_errors=True)
    for stale in place.directory.glob("unfinished-*"):
        shutil.rmtree(stale, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=place.directory))
    give_to_server(unfinished)
    made = run(
        [
            _runnable(place) / "initdb",
            f"--pgdata={unfinished}",
            f"--username={SUPERUSER}",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ],
        cwd=place.directory,
    )
    if made.returncode != 0:
        raise EmbeddedPostgresError(f"initdb failed:\n{made.stdout}")
    with (unfinished / "postgresql.conf").open("a") as configuration:
        configuration.write("\ninclude '../server.conf'\n")
    unfinished.rename(place.data)


def _write_configuration(place: Cluster) -> None:
    # This setting is a list, split at commas: hence the inner quotes.
    sockets = '"' + place.host.replace('"', '""') + '"'
    parameters = {
        **PARAMETERS[place.kind],
        "port": str(place.port),
        "unix_socket_directories": "'" + sockets.replace("'", "''") + "'",
    }
    path = place.directory / "server.conf"
    path.write_text("".join(f"{name} = {value}\n" for name, value in parameters.items()))
    path.chmod(0o644)


def empty_database(place: Cluster) -> None:
    """Make the database of a server that runs anew."""
    with psycopg.connect(place.dsn(user=SUPERUSER, database="postgres"), autocommit=True) as connection:
        connection.execute(f"drop database if exists {DATABASE} with (force)")
    _create_role_and_database(place)


def _create_role_and_database(place: Cluster) -> None:
    """Make sure of the plain role the application runs as: a superuser would see through row security."""
    with psycopg.connect(place.dsn(user=SUPERUSER, database="postgres"), autocommit=True) as connection:
        if not connection.execute("select 1 from pg_roles where rolname = %s", [ROLE]).fetchone():
            connection.execute(f"create role {ROLE}")
        connection.execute(f"alter role {ROLE} login createdb nosuperuser nocreaterole nobypassrls")
        if not connection.execute("select 1 from pg_database where datname = %s", [DATABASE]).fetchone():
            connection.execute(f"create database {DATABASE} owner {ROLE}")


def _runnable(place: Cluster) -> Path:
    """
    Return a bin directory that the server's account can execute, copying the programs when need be.

    As root with a virtual environment in a private home the account cannot reach them. Opening that home
    to everybody is not ours to do. The libraries beside the package are found by a relative path, so the
    copy keeps the same layout.
    """
    bindir = place.programs.bindir
    if server_account() is None or may_enter(bindir / "postgres"):
        return bindir
    installation = bindir.parent
    package = installation.parent
    label = hashlib.sha256(f"{bindir} {bindir.stat().st_mtime_ns}".encode()).hexdigest()[:10]
    copy = place.directory / f"programs-{place.programs.version}-{label}"
    if not copy.exists():
        for stale in place.directory.glob("programs-*"):
            shutil.rmtree(stale)
        unfinished = place.directory / "programs-unfinished"
        for part in (part for part in ("bin", "lib", "share") if (installation / part).is_dir()):
            source = installation / part
            shutil.copytree(source, unfinished / package.name / installation.name / part, symlinks=True)
        libraries = package.with_name(package.name + ".libs")
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        give_to_server(unfinished)
        unfinished.rename(copy)
    return copy / package.name / installation.name / "bin"

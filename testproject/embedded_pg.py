"""
Run a private PostgreSQL for development and tests; nothing has to be installed by hand.

Every process that uses the server holds a shared kernel lock on the file `holders`. The first one in
starts the server, the last one out stops it, and a holder that is killed leaves no count behind, since
the kernel drops its lock. Starting, stopping and repairing happen under an exclusive lock on `mutex`.

The programs come from a package or from the system (`pg_programs`). The managers that such packages bring
are not used: they count holders by process id, which a kill leaves wrong for ever, they take a zombie for a
postmaster, and as root they open parent directories to the whole world.

Importing this module starts nothing and needs no PostgreSQL.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from testproject import pg_server
from testproject.pg_cluster import DATABASE, ROLE, SUPERUSER, Cluster, Kind, cluster, superuser_dsn
from testproject.pg_programs import EmbeddedPostgresError
from testproject.pg_server import ShutdownMode

__all__ = [
    "DATABASE",
    "ROLE",
    "SUPERUSER",
    "Cluster",
    "EmbeddedPostgresError",
    "Kind",
    "Running",
    "cluster",
    "ensure_running",
    "superuser_dsn",
]


def ensure_running(kind: Kind, *, base: Path | None = None) -> Running:
    """
    Start the server of this *kind* unless it runs, hold it, and return when it takes connections.

    Safe in any number of processes at once, and after a kill -9 of the server or of any holder. The
    first holder of a test cluster finds no databases of earlier tests in it, that of a bench cluster an
    empty one: what is measured is the code as it is now. *base* is where the files go, `.pg` in the
    checkout by default. Raises `EmbeddedPostgresError`.
    """
    place = cluster(kind, base=base)
    pg_server.make_directories(place)
    with _mutex(place):
        descriptor = _open_lock(place.directory / "holders")
        try:
            first = _nobody_holds(descriptor)
            if first and kind == "test":
                pg_server.start_tidy(place)
            elif not pg_server.accepts(place):
                pg_server.start(place)
            if first and kind == "bench":
                pg_server.empty_database(place)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except BaseException:
            os.close(descriptor)
            raise
    running = Running(cluster=place, _descriptor=descriptor)
    atexit.register(running.release)
    return running


@dataclass(kw_only=True)
class Running:
    """A held server. It runs at least until `release()`, or until this process ends, however it ends."""

    cluster: Cluster
    _descriptor: int | None = field(repr=False)
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
            if not pg_server.accepts(self.cluster):
                pg_server.start(self.cluster)
                return
            done = pg_server.control(self.cluster, "restart", f"--mode={mode}", f"--log={self.cluster.log}")
            if done.returncode != 0:
                raise EmbeddedPostgresError(f"The embedded PostgreSQL did not restart.\n{done.stdout}")

    def release(self) -> None:
        """Let go of the server; the last one to do so stops it. Does nothing the second time."""
        # A forked child shares the lock, and its unlock would take the lock from its parent.
        if self._descriptor is None or os.getpid() != self._pid:
            return
        descriptor, self._descriptor = self._descriptor, None
        atexit.unregister(self.release)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            # The files may be gone by now, with the server still up; then there is nothing to work on.
            with contextlib.suppress(FileNotFoundError), _mutex(self.cluster):
                if _nobody_holds(descriptor):
                    pg_server.stop(self.cluster)
        finally:
            os.close(descriptor)


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
    return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)


def _nobody_holds(descriptor: int) -> bool:
    """Tell whether no other process holds the cluster. Call under the mutex, holding no lock yourself."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""
Who runs the embedded server, and which directories that account can use.

PostgreSQL refuses to run as root, so root runs it as another account. What that account cannot reach is
copied or put elsewhere; no directory that was there before is ever opened to it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pwd
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from testproject.pg_programs import EmbeddedPostgresError

SERVER_ACCOUNTS = ("pgserver", "postgres", "nobody")
SHARED_DIRECTORY = Path("/tmp")  # noqa: S108 - make_directory refuses what another user put there


@functools.cache
def server_account() -> pwd.struct_passwd | None:
    """
    Return the account to run the server as; None means the present one.

    It needs an entry in the user database, a number alone will not do: initdb looks its own name up.
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


def server_uid() -> int:
    account = server_account()
    return account.pw_uid if account else os.geteuid()


def run(command: Sequence[str | Path], *, cwd: Path = Path("/")) -> subprocess.CompletedProcess[str]:
    """
    Run *command* as the server's account, with none of root's groups. Never raises for its exit code.

    It runs in a session of its own: Ctrl-C in a terminal stops the tests, not the server under them.
    """
    account = server_account()
    # libpq's variables would send pg_ctl and initdb to another server.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    # Output goes to a file and not to a pipe, which the server that pg_ctl starts would keep open.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**environment, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            start_new_session=True,
        )
        output.seek(0)
        text = output.read().decode(errors="replace")
    return subprocess.CompletedProcess(command, done.returncode, text, "")


@functools.lru_cache(maxsize=64)
def may_enter(path: Path) -> bool:
    """Tell whether the server's account may enter or execute *path*. The kernel says, so ACLs count."""
    return run(["test", "-x", path]).returncode == 0


def private_directory(label: str) -> Path:
    """
    Name a directory, the same for the same *label*, for what does not fit in the checkout.

    Not in `tempfile.gettempdir()`: `TMPDIR` may be closed to the server's account, differ between two
    terminals, or be too long for a socket.
    """
    digest = hashlib.sha256(label.encode()).hexdigest()[:10]
    return SHARED_DIRECTORY / f"pgbroker-{server_uid()}-{digest}"


def make_directory(path: Path, mode: int, *, owned_by_server: bool) -> None:
    """Make *path*, with this mode in spite of the umask. In /tmp, refuse what somebody else put there."""
    path.mkdir(parents=True, exist_ok=True)
    found = path.lstat()
    if path.parent == SHARED_DIRECTORY and (
        path.is_symlink() or found.st_uid not in {os.geteuid(), server_uid()}
    ):
        raise EmbeddedPostgresError(
            f"{path} belongs to another user. Remove it, or set DATABASE_URL to use another server."
        )
    if owned_by_server:
        _give(path)
    if os.geteuid() in (0, found.st_uid):
        path.chmod(mode)


def give_to_server(top: Path) -> None:
    """Make *top* and all in it the property of the server's account."""
    _give(top)
    for directory, folders, files in os.walk(top):
        for name in (*folders, *files):
            _give(Path(directory, name))


def _give(path: Path) -> None:
    if account := server_account():
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)

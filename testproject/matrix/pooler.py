"""
`python -m testproject.matrix.pooler python COMMAND ...`: run a command behind PgBouncer in transaction mode.

The embedded test server runs behind it. The command finds the pooler in `DATABASE_URL`, and the direct way,
which only LISTEN needs, in `PGBROKER_DIRECT_URL`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from testproject import embedded_pg
from testproject.pg_account import give_to_server, server_account

PORT = 6432  # only names the socket's file; no TCP port is opened
START_SECONDS = 10.0

# Few server connections, so that clients change theirs at every transaction.
SETTINGS = """\
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr =
unix_socket_dir = {directory}
unix_socket_mode = 0777
listen_port = {own_port}
auth_type = trust
auth_file = {directory}/users.txt
pool_mode = transaction
default_pool_size = 20
max_client_conn = 500
server_idle_timeout = 2
server_reset_query =
ignore_startup_parameters = extra_float_digits,options
logfile = {directory}/pgbouncer.log
"""


@contextmanager
def pooler(server: embedded_pg.Running) -> Iterator[str]:
    """Run PgBouncer before *server*; gives the address of the pooler."""
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    if not Path(program).exists():
        raise SystemExit("pgbouncer is not installed (on Debian and Ubuntu: apt-get install pgbouncer)")
    account = server_account()
    with tempfile.TemporaryDirectory(prefix="pgb") as folder:
        directory = Path(folder)
        directory.chmod(0o755)
        settings = directory / "pgbouncer.ini"
        settings.write_text(
            SETTINGS.format(host=server.host, port=server.port, directory=directory, own_port=PORT)
        )
        (directory / "users.txt").write_text(f'"{embedded_pg.ROLE}" ""\n')
        give_to_server(directory)
        process = subprocess.Popen(
            [program, "--quiet", settings],
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            start_new_session=True,
        )
        try:
            address = f"postgresql://{embedded_pg.ROLE}@/{embedded_pg.DATABASE}?host={directory}&port={PORT}"
            wait_for(address)
            yield address
        finally:
            process.terminate()
            process.wait()


def wait_for(address: str) -> None:
    """Return once the pooler takes connections."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def main(command: list[str]) -> int:
    server = embedded_pg.ensure_running("test")
    try:
        with pooler(server) as address:
            direct = f"postgresql://{embedded_pg.ROLE}@/{embedded_pg.DATABASE}?host={server.host}&port={server.port}"
            environment = {**os.environ, "DATABASE_URL": address, "PGBROKER_DIRECT_URL": direct}
            return subprocess.run(command, env=environment, check=False).returncode
    finally:
        server.release()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

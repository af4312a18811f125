"""Keep the embedded server running and print how to reach it: for psql, and for `pytest --reuse-db`."""

from __future__ import annotations

import signal
import sys
from urllib.parse import quote

from testproject import database, embedded_pg


def url(running: embedded_pg.Running, user: str) -> str:
    """Write a libpq URL; a socket directory cannot stand where a host name does."""
    host = quote(running.host, safe="")
    return f"postgresql://{user}@/{embedded_pg.DATABASE}?host={host}&port={running.port}"


def main() -> int:
    if not database.is_embedded():
        print("DATABASE_URL is set: that server is used, and it is not ours to run.", file=sys.stderr)
        return 1
    try:
        running = embedded_pg.ensure_running(database.kind())
    except embedded_pg.EmbeddedPostgresError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"DATABASE_URL='{url(running, embedded_pg.ROLE)}'")
    print(f"as superuser: '{url(running, embedded_pg.SUPERUSER)}'")
    print(
        f"PostgreSQL {running.cluster.programs.version}, log {running.cluster.log}. Ctrl-C ends it.",
        flush=True,
    )
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    running.release()
    print("stopped", flush=True)
    return 0


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    sys.exit(main())

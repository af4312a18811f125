"""`python -m testproject.demo`: read the command line, make the database usable, and begin."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from testproject import database, embedded_pg
from testproject.demo.processes import Children, DemoFailed


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What the command line chose. No port: any will do."""

    jobs: int
    port: int | None
    leave: bool
    workers: int


def main(arguments: list[str]) -> int:
    choices = parse(arguments)
    children = Children(run=f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}")
    children.take_signals()
    try:
        set_up()
        from testproject.demo import stage  # it has models, so it comes after Django's setup

        with children:
            stage.run(choices, children)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    except (DemoFailed, embedded_pg.EmbeddedPostgresError) as error:
        print(f"\n{error}", file=sys.stderr, flush=True)
        return 1
    return 0


def set_up() -> None:
    """Start the embedded server, unless another one is used, and Django."""
    if database.is_embedded():
        embedded_pg.ensure_running(database.kind())  # let go of when this process ends
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    import django

    django.setup()


def parse(arguments: list[str]) -> Choices:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python3 testproject demo",
        description="Run the broker on a real workload, and print where to look.",
        epilog="Ctrl-C stops everything it started; a second one does not wait for it.",
    )
    add = parser.add_argument
    add(
        "--jobs",
        type=whole(1, 1_000_000),
        default=4000,
        metavar="N",
        help="jobs of the application (default: %(default)s)",
    )
    add(
        "--port",
        type=whole(1, 65535),
        metavar="N",
        help="where the admin is (default: 8000 or, if it is in use, any)",
    )
    add("--exit", action="store_true", help="leave after the summary")
    add(
        "--worker-processes",
        type=whole(1, 16),
        default=1,
        metavar="N",
        help="how many (default: %(default)s)",
    )
    given = parser.parse_args(arguments)
    return Choices(jobs=given.jobs, port=given.port, leave=given.exit, workers=given.worker_processes)


def whole(smallest: int, largest: int) -> Callable[[str], int]:
    """Return a reader of whole numbers in a range, for argparse."""

    def whole_number(text: str) -> int:
        number = int(text)
        if not smallest <= number <= largest:
            raise argparse.ArgumentTypeError(f"{number} is not from {smallest} to {largest}")
        return number

    return whole_number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

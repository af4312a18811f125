"""`python3 testproject bench NAME ...`: run measurements and print one JSON object a line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testproject.bench.rows import Row, Scale

EPILOG = """\
Each line has: name, value and unit; against, a list of what it was held against, each with its own value, ratio,
spread, goal and whether it holds; holds for all of them (null: something could not be run, and `not_run` says why);
versions, jobs, rounds, quick. Contestants run in rotation in one run, and a ratio is the median of the rounds'.

  python3 testproject bench --list                what there is
  python3 testproject bench --quick               everything, smaller
  python3 testproject bench drain-async pickup    two rows
  python3 testproject bench > figures.jsonl       everything; an hour of a quiet machine

Peers are installed into environments of their own in .bench, when a row first needs them.
The exit code is 1 when a goal does not hold."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 testproject bench",
        description="Measure pgbroker beside the raw database and beside its peers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="a smaller run, which says so in its lines")
    parser.add_argument(
        "--jobs", type=_number, metavar="N", help="so many jobs instead of a row's own number"
    )
    parser.add_argument("--rounds", type=_number, metavar="N", help="so many rounds")
    parser.add_argument("--list", action="store_true", help="tell what can be measured")
    chosen = parser.parse_args(arguments)

    os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.bench.settings"
    import django

    django.setup()
    from testproject.bench.rows import Scale, all_rows

    rows = all_rows()
    if chosen.list:
        for row in rows.values():
            print(f"{row.name:<16} {textwrap.fill(row.what, 92, subsequent_indent=' ' * 17)}")
        return 0
    unknown = [name for name in chosen.names if name not in rows]
    if unknown:
        parser.error(f"unknown row: {', '.join(unknown)}; known: {', '.join(rows)}")
    scale = Scale(quick=chosen.quick, jobs=chosen.jobs, rounds=chosen.rounds)
    return run([rows[name] for name in chosen.names or rows], scale)


def _number(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def run(rows: list[Row], scale: Scale) -> int:
    """Run the rows on a server of their own, unless `DATABASE_URL` names one; returns the exit code."""
    from testproject import database, embedded_pg
    from testproject.bench import conditions, stage
    from testproject.bench.compare import NotRun, tell

    # A server that is as durable as PostgreSQL is by default, so that a commit costs what it costs.
    running = embedded_pg.ensure_running(database.kind()) if database.is_embedded() else None
    held = True
    try:
        stage.migrate()
        conditions.check()
        for row in rows:
            began = time.monotonic()
            try:
                measured = {"name": row.name, **row.measure(scale)}
            except NotRun as reason:
                measured = {"name": row.name, "holds": None, "not_run": str(reason), "quick": scale.quick}
            print(json.dumps(measured), flush=True)
            tell(f"{row.name}: holds: {measured['holds']}, {time.monotonic() - began:.0f} s", keep=True)
            held = held and measured["holds"] is not False
    except conditions.WrongConditions as wrong:
        print(f"bench: {wrong}", file=sys.stderr)
        return 2
    finally:
        if running is not None:
            running.release()
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python3 testproject bench NAME ...`: run measurements and print one JSON object a line."""

import argparse
import json
import logging
import os
import sys


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 testproject bench",
        description="Measure pgbroker beside the raw database, in rotation, in one run.",
        epilog="Each line: name, value and against (jobs a second, medians), ratio, goal, holds, spread, versions.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to run (default: all)")
    parser.add_argument("--quick", action="store_true", help="a smaller run, which says so in its lines")
    chosen = parser.parse_args(arguments)

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    # The demo's kind of server: fsync on, so that a commit costs what it costs.
    from testproject import database, embedded_pg

    running = embedded_pg.ensure_running(database.kind()) if database.is_embedded() else None
    import django

    django.setup()
    logging.getLogger("pgbroker").setLevel(logging.WARNING)
    from testproject.bench.drain import ROWS

    unknown = [name for name in chosen.names if name not in ROWS]
    if unknown:
        parser.error(f"unknown row: {', '.join(unknown)}; known: {', '.join(ROWS)}")
    holds = True
    try:
        for name in chosen.names or ROWS:
            row = ROWS[name](quick=chosen.quick)
            holds = holds and row["holds"]
            print(json.dumps({"name": name, **row}), flush=True)
    finally:
        if running is not None:
            running.release()
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

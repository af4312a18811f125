"""`python3 testproject chaos NAME ...`: make faults under a steady load and print one JSON object a line."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testproject.chaos.scenarios import Scenario
    from testproject.embedded_pg import Running

EPILOG = """\
Two worker processes run a steady load of a seeded mix while the fault is made. Each line says whether the
scenario holds: no job lost (missing, or ended otherwise than it had to), doubled (settled, or run under one
lease, twice) or stranded (not ended); history, events and counters add up; and completions a second are back
to 95 % of what they were before within two leases of the end of the fault, without a hand being lent.
`during` is the worst second meanwhile. `repeated` are effects of attempts that came to nothing, by how the
attempt ended: that is at-least-once. `holds` null: it cannot be made here, and `not_run` says why.

  python3 testproject chaos --list                  what there is
  python3 testproject chaos --quick                 the short form, which CI runs
  python3 testproject chaos server-crashed          one scenario
  python3 testproject chaos > chaos.jsonl           everything; a quarter of an hour

It restarts PostgreSQL, so it always runs on an embedded server of its own, whatever DATABASE_URL says.
The exit code is 1 when a scenario does not hold."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 testproject chaos",
        description="Kill, stop, cut and exhaust what pgbroker runs on, and prove that no job is harmed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios to run (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="the short form: fewer scenarios, less time before"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="of the mix and the faults (default: 1)"
    )
    parser.add_argument("--rate", type=float, metavar="N", help="jobs enqueued a second")
    parser.add_argument("--list", action="store_true", help="tell what can be done to it")
    chosen = parser.parse_args(arguments)

    os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.chaos.settings"
    os.environ.pop("DATABASE_URL", None)
    # Ended from outside, it must still stop its server.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    # In /tmp, which the server's account can reach.
    base = Path(tempfile.mkdtemp(prefix="pgbroker-chaos-", dir="/tmp"))
    os.environ["CHAOS_BODIES"] = str(base / "bodies")
    try:
        return choose_and_run(parser, chosen, base)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def choose_and_run(parser: argparse.ArgumentParser, chosen: argparse.Namespace, base: Path) -> int:
    """Do what the arguments say; returns the exit code."""
    import django

    django.setup()
    from testproject.chaos.scenarios import all_scenarios

    known = all_scenarios()
    if chosen.list:
        for each in known.values():
            what = textwrap.fill(each.what, 96, initial_indent="    ", subsequent_indent="    ")
            print(f"{each.name}\n{what}")
        return 0
    if unknown := [name for name in chosen.names if name not in known]:
        parser.error(f"unknown scenario: {', '.join(unknown)}; known: {', '.join(known)}")
    wanted = chosen.names or [each.name for each in known.values() if each.quick or not chosen.quick]
    rate = chosen.rate or 50.0
    return run([known[name] for name in wanted], base, quick=chosen.quick, seed=chosen.seed, rate=rate)


def run(scenarios: list[Scenario], base: Path, *, quick: bool, seed: int, rate: float) -> int:
    """Run scenarios one after the other on a server of their own; returns the exit code."""
    base.chmod(0o755)
    server = start(base)
    try:
        held = True
        for scenario in scenarios:
            line = play(scenario, server, quick=quick, seed=seed, rate=rate)
            print(json.dumps(line), flush=True)
            held = held and line["holds"] is not False
    finally:
        server.release()
    return 0 if held else 1


def start(base: Path) -> Running:
    """Start the server and migrate the database that all others are copies of."""
    from django.core.management import call_command
    from django.db import connections

    from testproject import embedded_pg
    from testproject.database import django_database

    server = embedded_pg.ensure_running("chaos", base=base)
    connections["default"].settings_dict.update(django_database(server.dsn))
    call_command("migrate", verbosity=0)
    connections.close_all()
    return server


def play(scenario: Scenario, server: Running, *, quick: bool, seed: int, rate: float) -> dict[str, Any]:
    """Play one scenario; one that cannot be made here says so."""
    from testproject.chaos import clock
    from testproject.chaos.stage import Stage

    stage = Stage(scenario, server, seed=seed, rate=rate, quick=quick)
    try:
        line = stage.run()
    except clock.NoClock as error:
        line = {"name": scenario.name, "holds": None, "not_run": str(error)}
    return {**line, "quick": quick, "server": server.cluster.programs.version}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

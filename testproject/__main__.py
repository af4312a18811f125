"""
The one entry for everything a person or CI runs: `python3 testproject COMMAND`.

Standard library only, and no newer syntax than an old Python can read, so that it can say what is wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Run as a directory, Python puts testproject/ itself first on the path: its modules would be top level.
sys.path[:] = [str(ROOT)] + [path for path in sys.path if Path(path or ".").resolve() != ROOT / "testproject"]

from testproject import environment, interpreters  # noqa: E402

USAGE = """\
usage: python3 testproject COMMAND [ARGUMENT ...]

  demo         run the broker on a real workload, and print where to look
  test         run the tests, on two processes (arguments go to pytest; -m slow runs the slow ones)
  lint         ruff, import contracts, missing migrations
  types        mypy --strict on pgbroker
  docs         build the documentation into build/docs
  bench        measure throughput and latency
  chaos        make faults under a steady load, and prove that no job is harmed
  matrix       the tests on every supported Python, Django and PostgreSQL, and through a pooler
  conformance  Django's own tests of its task framework, on pgbroker's backend
  manage       Django's command line on the project's database
  database     keep an empty database of your own running, and print its DATABASE_URL (Ctrl-C ends it)

Each makes the virtual environment .venv when it is absent or out of date, bench one of the newest Python
that is there. A private PostgreSQL is started when one is needed and stopped when nobody uses it.

environment variables
  DATABASE_URL         use this PostgreSQL instead, as a role that may create databases
  PGBROKER_PG_MAJOR    use this major version of the embedded PostgreSQL (18 or 16)
  PGBROKER_PG_BINDIR   use the PostgreSQL programs in this directory
  PGBROKER_VENV        make the virtual environment here
"""


def become(python: Path, arguments: list[str]) -> None:
    """Replace this process, so that exit codes and signals need no passing on."""
    os.execv(python, [str(python), *arguments])  # noqa: S606 - a fixed command of ours


def measure_on(python: str, arguments: list[str]) -> None:
    """Start over with the Python that the peers get, unless this is it, or the environment is chosen."""
    if "PGBROKER_VENV" in os.environ or os.path.realpath(python) == os.path.realpath(sys._base_executable):
        return
    os.environ["PGBROKER_VENV"] = ".venv-bench"
    become(Path(python), [str(ROOT / "testproject"), *arguments])


def run_all(python: Path, steps: list[tuple[str, list[str]]]) -> int:
    """Run every step, whatever became of those before, and return 1 if any failed."""
    failed = []
    for name, arguments in steps:
        print(f"== {name}", flush=True)
        step = subprocess.Popen([str(python), *arguments], cwd=ROOT)
        try:
            code = step.wait()
        except KeyboardInterrupt:
            step.wait()  # the terminal interrupted it as well
            return 130
        if code != 0:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def lint(python: Path) -> int:
    os.environ["PGBROKER_PG_KIND"] = "test"  # no step needs the demo's data
    manage = str(ROOT / "testproject" / "manage.py")
    return run_all(
        python,
        [
            ("ruff check", ["-m", "ruff", "check", "."]),
            ("ruff format --check", ["-m", "ruff", "format", "--check", "."]),
            ("import contracts", ["-c", "from importlinter.cli import lint_imports_command as c; c()"]),
            ("missing migrations", [manage, "makemigrations", "--check", "--dry-run"]),
        ],
    )


def main(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("help", [])
    if command in ("help", "-h", "--help"):
        print(USAGE, end="")
        return 0
    commands = {
        # pytest obeys the last -m, so that `-m slow` among the arguments runs the others.
        "test": ["-m", "pytest", "--numprocesses=2", "--dist=worksteal", "-m", "not slow", *rest],
        "types": ["-m", "mypy", *rest],
        "docs": ["-m", "sphinx", "-E", "-W", "--keep-going", "-b", "html", "docs", "build/docs", *rest],
        "demo": ["-m", "testproject.demo", *rest],
        "bench": ["-m", "testproject.bench", *rest],
        "matrix": ["-m", "testproject.matrix", *rest],
        "conformance": ["-m", "testproject.conformance", *rest],
        "chaos": ["-m", "testproject.chaos", *rest],
        "manage": ["-m", "testproject.manage", *rest],
        "database": ["-m", "testproject.serve", *rest],
        "lint": [],
    }
    if command not in commands:
        print(f"testproject: there is no command {command!r}\n\n{USAGE}", end="", file=sys.stderr)
        return 2
    if command == "bench":
        measure_on(interpreters.best_python(), arguments)
    try:
        python = environment.prepare()
    except environment.EnvironmentProblem as problem:
        print(f"testproject: {problem}", file=sys.stderr)
        return 1
    os.chdir(ROOT)
    # pytest rewrites its plugins' asserts and caches the result: without caches each process of a test run
    # starts 2 s later. They go to __pycache__, which git ignores.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if command == "lint":
        return lint(python)
    if command in ("bench", "database"):
        os.environ["PGBROKER_PG_KIND"] = command
    become(python, commands[command])
    raise AssertionError("unreachable")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

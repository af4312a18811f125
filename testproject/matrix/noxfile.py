"""One nox session for each cell of the matrix: an environment, a server, the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nox
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from testproject.matrix import programs  # noqa: E402
from testproject.matrix.cells import CELLS, Cell  # noqa: E402

LOCK_FILE = ROOT / "testproject" / "requirements.txt"
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")["project"]

nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True


def needs(*extras: str) -> list[str]:
    """Return what the package asks for, and what these of its extras do."""
    return [
        *PROJECT["dependencies"],
        *(each for extra in extras for each in PROJECT["optional-dependencies"][extra]),
    ]


def oldest(text: str, python: str) -> str | None:
    """Turn a range to its lower bound; None where there is none, or where it is not for this Python."""
    requirement = Requirement(text)
    if requirement.marker and not requirement.marker.evaluate({"python_version": python}):
        return None
    lower = next((each.version for each in requirement.specifier if each.operator == ">="), None)
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}=={lower}" if lower else None


def install(session: nox.Session, cell: Cell) -> None:
    """Fill the environment of *cell*."""
    django = f"django=={cell.django}.*"
    backport = ["django-tasks"] if cell.django == "5.2" else []
    if cell.packages == "newest":
        session.install("--upgrade", "--upgrade-strategy=eager", *needs("embedded", "dev"), django, *backport)
        return
    session.install("--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement", str(LOCK_FILE))
    if cell.packages == "oldest":
        session.install(*filter(None, (oldest(each, cell.python) for each in needs())))
    else:
        session.install(django, *backport)


def run(session: nox.Session, cell: Cell) -> None:
    """Run the tests of *cell*, with the arguments given after `--`."""
    install(session, cell)
    session.chdir(ROOT)
    session.env["PGBROKER_PG_BINDIR"] = str(programs.bindir(cell.postgresql))
    session.env["PYTHONPATH"] = str(ROOT)
    for name in ("DATABASE_URL", "PGBROKER_PG_MAJOR", "PYTHONDONTWRITEBYTECODE", "PGBROKER_PG_KIND"):
        session.env[name] = None
    tests = ["-m", "pytest", f"--numprocesses={os.cpu_count()}", *(session.posargs or ["-m", "not slow"])]
    around = ["-m", "testproject.matrix.pooler", "python"] if cell.pooled else []
    session.run("python", "-c", "import django, sys; print(sys.version.split()[0], django.get_version())")
    session.run("python", *around, *tests)


for cell in CELLS:
    # As a default, or every session would be the last cell's.
    nox.session(lambda session, cell=cell: run(session, cell), python=cell.python, name=cell.name)

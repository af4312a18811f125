"""The peers' own virtual environments: made when they are first needed, in a folder that git ignores."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tomllib
from pathlib import Path

from testproject.bench.compare import NotRun, tell
from testproject.interpreters import best_python

CHECKOUT = Path(__file__).resolve().parent.parent.parent
DIRECTORY = CHECKOUT / ".bench"
VERSIONS = Path(__file__).resolve().parent / "peers" / "versions.toml"
READY = ".ready"


def packages(peer: str) -> list[str]:
    """Return what is installed for a peer."""
    return list(tomllib.loads(VERSIONS.read_text())[peer]["packages"])


def python_of(peer: str) -> Path:
    """Return the python of a peer's environment, which is made when there is none; raises `NotRun`."""
    wanted = packages(peer)
    base = best_python()
    digest = hashlib.sha256("\n".join([base, *wanted]).encode()).hexdigest()[:8]
    place = DIRECTORY / f"{peer}-{digest}"
    python = place / "bin" / "python"
    if (place / READY).exists() and python.exists():
        return python
    # Half made, by a run that was killed.
    shutil.rmtree(place, ignore_errors=True)
    tell(f"installing {peer} into {place.relative_to(CHECKOUT)}", keep=True)
    install = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-deps"]
    for command in ([base, "-m", "venv", str(place)], [*install, "--prefer-binary", *wanted]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise NotRun(f"cannot be installed: {error}") from error
        if done.returncode != 0:
            shutil.rmtree(place, ignore_errors=True)
            last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
            raise NotRun(f"cannot be installed: {last[0]}")
    (place / READY).touch()
    return python

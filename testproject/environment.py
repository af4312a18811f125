"""
Make the virtual environment that every command runs in, and keep it the same as the lock file.

Standard library only: this runs before anything is installed. A command holds a shared kernel lock on
the environment as long as it runs (the lock survives `exec`), and the environment is only remade under an
exclusive one. So two terminals can start at once, and nobody's environment changes under a running demo.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
LOCK_FILE = Path(__file__).resolve().parent / "requirements.txt"
OLDEST_PYTHON = (3, 11)

# In the environment. OURS is written first, READY last: with only the first, a run was killed half way.
OURS = ".made-by-pgbroker"
READY = ".ready"
# Of what a failed step said, so many lines are shown: pip tells of each package, and of its trouble last.
LAST_LINES = 30


class EnvironmentProblem(Exception):
    """The environment cannot be made; the message says why and what to do."""


def directory() -> Path:
    """Return where the environment is: `.venv`, or `PGBROKER_VENV`, so that versions can lie side by side."""
    return (CHECKOUT / os.environ.get("PGBROKER_VENV", ".venv")).absolute()


def prepare() -> Path:
    """
    Return the environment's python, making the environment first when it is absent or out of date.

    Holds the environment for this process and for what it becomes by `exec`.
    Raises `EnvironmentProblem`.
    """
    if sys.version_info < OLDEST_PYTHON:
        raise EnvironmentProblem(
            f"pgbroker needs Python {'.'.join(map(str, OLDEST_PYTHON))} or newer, and this is "
            f"{sys.version.split()[0]} ({sys.executable}). Run it with a newer one: python3.11 testproject"
        )
    place = directory()
    lock = _open_lock(place)
    python = place / "bin" / "python"
    while True:
        _acquire(lock, fcntl.LOCK_SH, place)
        if _is_ready(place):
            os.set_inheritable(lock, True)
            return python
        # Let go first: two terminals that both kept a shared lock would wait for each other for ever.
        fcntl.flock(lock, fcntl.LOCK_UN)
        _acquire(lock, fcntl.LOCK_EX, place)
        if not _is_ready(place):
            _make(place, lock)


def _open_lock(place: Path) -> int:
    path = place.with_name(place.name + ".lock")
    try:
        # Read-only is enough for flock, and works on a file that another user made.
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be made: {error.strerror}. Set PGBROKER_VENV to a directory that you may write."
        ) from error


def _acquire(lock: int, mode: int, place: Path) -> None:
    try:
        fcntl.flock(lock, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(f"waiting for another command that makes {place.name}, or uses it as it was before a change")
        fcntl.flock(lock, mode)


def _wanted() -> dict[str, str]:
    """Describe the environment that would be made now. It holds absolute paths, so it cannot be moved."""
    return {
        "python": sys.version,
        "base": os.path.realpath(sys._base_executable),  # the same inside and outside an environment
        "packages": hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest(),
        "place": str(directory()),
        "checkout": str(CHECKOUT),
    }


def _is_ready(place: Path) -> bool:
    try:
        made = json.loads((place / READY).read_text())
    except (OSError, ValueError):
        return False
    return made == _wanted() and (place / "bin" / "python").exists()


def _make(place: Path, lock: int) -> None:
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            version = f"{sys.version_info[0]}.{sys.version_info[1]}"
            raise EnvironmentProblem(
                f"This Python lacks the module {module}, which makes virtual environments. On Debian and "
                f"Ubuntu: apt-get install python{version}-venv (as root). Then run the same command again."
            )
    _clear(place)
    began = time.monotonic()
    _say(f"making {place.name} with Python {sys.version.split()[0]} (once; it takes one to three minutes)")
    place.mkdir(parents=True, exist_ok=True)
    (place / OURS).touch()
    _run([os.path.realpath(sys._base_executable), "-m", "venv", str(place)], "venv", lock)
    install = [str(place / "bin" / "python"), "-m", "pip", "install", "--no-input", "--progress-bar=off"]
    # --no-deps, since the lock names everything; --only-binary, so that no compiler is needed and no
    # package's code runs here; --no-compile, since pip would do it on one core.
    install += ["--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--no-compile"]
    _say("downloading and installing packages, a dot for each")
    _run([*install, "--require-hashes", "--requirement", str(LOCK_FILE)], "pip", lock, show=_dots)
    _say("compiling them")
    _compile(place, lock)
    # The checkout itself, importable from any working directory.
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "pgbroker-checkout.pth").write_text(f"{CHECKOUT}\n")
    unfinished = place / (READY + ".unfinished")
    unfinished.write_text(json.dumps(_wanted(), indent=1))
    unfinished.rename(place / READY)
    _say(f"ready after {time.monotonic() - began:.0f} s")


def _compile(place: Path, lock: int) -> None:
    """Compile everything now: otherwise a user whose environment forbids caches compiles at every start."""
    command = [str(place / "bin" / "python"), "-m", "compileall", "-q", "-j", "0", str(place / "lib")]
    # Not every file in a package is meant for this Python, so what cannot be compiled is left.
    subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, pass_fds=[lock]
    )


def _clear(place: Path) -> None:
    """Remove what an earlier run made, finished or not, and nothing that somebody else made."""
    if not place.exists():
        return
    if any(place.iterdir()) and not (place / OURS).exists():
        raise EnvironmentProblem(
            f"{place} was not made by this command, so it is left alone. "
            "Remove it, or set PGBROKER_VENV to another directory."
        )
    # First the mark that it is ready, last the mark that it is ours: a kill at any point is recognised.
    (place / READY).unlink(missing_ok=True)
    for entry in place.iterdir():
        if entry.name == OURS:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _run(command: list[str], name: str, lock: int, show: Callable[[str], None] = lambda line: None) -> None:
    said = []
    # The command has the lock as well: when this process alone is killed, pip goes on writing, and the
    # next one must wait for it.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, pass_fds=[lock]
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line)
                show(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise EnvironmentProblem(
            f"{name} failed. The end of what it said:\n{''.join(said[-LAST_LINES:]).strip()}\n\n"
            "Run the same command again to start over; nothing half-made is used."
        )


def _dots(line: str) -> None:
    """Show that pip moves: a dot when it fetches a package, and a word when it has all."""
    if line.startswith("Collecting "):
        print(".", end="", file=sys.stderr, flush=True)
    elif line.startswith("Installing "):
        print(" all there, installing", file=sys.stderr, flush=True)


def _say(text: str) -> None:
    print(f"testproject: {text}", file=sys.stderr, flush=True)

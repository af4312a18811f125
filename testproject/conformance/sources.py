"""Get Django's tests: its source distribution by pip, of which only the tests of tasks are kept, in build/."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path

import django

CACHE = Path(__file__).resolve().parents[2] / "build" / "conformance"
# The backport's source distribution has no tests. It has the framework of Django 6.0: these are its cases.
CASES_OF_THE_BACKPORT = "6.0.10"
DOWNLOAD_SECONDS = 600
# An import statement, in one line or in brackets.
_IMPORTED = re.compile(r"^from django_tasks\.exceptions import (?:\([^)]*\)|[^(\n]*)$", re.M)


class NoSources(Exception):
    """Django's source distribution could not be had."""


def is_backport() -> bool:
    """Tell whether the task framework is the backport, django-tasks."""
    return find_spec("django.tasks") is None


def version() -> str:
    """Return the version of Django whose tests are to be run."""
    return CASES_OF_THE_BACKPORT if is_backport() else django.get_version()


def fetch() -> Path:
    """Return a folder with the package `tasks`, Django's tests; downloads it once. Raises `NoSources`."""
    place = CACHE / f"django-{version()}"
    if not place.exists():
        with tempfile.TemporaryDirectory() as scratch:
            unfinished = Path(scratch) / "tests"
            _unpack(_download(Path(scratch)), unfinished)
            CACHE.mkdir(parents=True, exist_ok=True)
            shutil.copytree(unfinished, place.with_suffix(".unfinished"), dirs_exist_ok=True)
            place.with_suffix(".unfinished").rename(place)
    if not is_backport():
        return place
    translated = CACHE / f"django-{version()}-backport"
    shutil.copytree(place, translated, dirs_exist_ok=True)
    for path in translated.rglob("*.py"):
        path.write_text(for_the_backport(path.read_text()))
    return translated


def _download(folder: Path) -> Path:
    # Only Django from source: what pip needs to read its metadata may come as wheels. Nothing of it is run but
    # for the tests, so which Python it asks for does not matter.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=django"]
    command += ["--ignore-requires-python", "--disable-pip-version-check", "--dest", str(folder)]
    try:
        done = subprocess.run(
            [*command, f"django=={version()}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DOWNLOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoSources(f"pip did not download Django {version()} within {DOWNLOAD_SECONDS} s") from error
    found = list(folder.glob("[Dd]jango-*.tar.gz"))
    if done.returncode != 0 or not found:
        raise NoSources(f"pip could not download Django {version()}:\n{done.stdout.strip()[-2000:]}")
    return found[0]


def _unpack(archive: Path, place: Path) -> None:
    """Write the Python files of the archive's tests/tasks, by their names alone."""
    (place / "tasks").mkdir(parents=True)
    with tarfile.open(archive) as source:
        for member in source:
            if member.isfile() and re.fullmatch(r"[^/]+/tests/tasks/\w+\.py", member.name):
                content = source.extractfile(member)
                assert content is not None
                (place / "tasks" / Path(member.name).name).write_bytes(content.read())


def for_the_backport(text: str) -> str:
    """Write one of Django's tests in the backport's names."""
    text = text.replace("django.tasks", "django_tasks")
    if find_spec("django_tasks") is not None:
        from django_tasks import exceptions

        for name in ("InvalidTask", "InvalidTaskBackend"):
            if not hasattr(exceptions, name):
                text = _IMPORTED.sub(lambda found: _renamed(found[0], name), text)  # noqa: B023 - called at once
    return text


def _renamed(statement: str, name: str) -> str:
    return re.sub(rf"\b{name}\b", f"{name}Error as {name}", statement)

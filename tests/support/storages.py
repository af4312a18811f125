"""Storages for tests of bodies: real ones, and some that misbehave as real ones do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.files import File
from django.core.files.storage import FileSystemStorage, InMemoryStorage, storages
from django.test import override_settings

from pgbroker.removals import removals

# Small limits, so that a body needs no megabytes.
LIMIT = 256
LARGE = "x" * 1000


class Refusing(FileSystemStorage):
    """A storage that is down: it neither takes nor gives."""

    def _save(self, name: str, content: Any) -> str:
        super()._save(name, content)
        raise OSError("no space left on device")

    def _open(self, name: str, mode: str = "rb") -> Any:
        raise OSError("connection refused")


class Clinging(FileSystemStorage):
    """A storage that takes and gives, and deletes nothing."""

    def delete(self, name: str) -> None:
        raise PermissionError(f"not allowed to delete {name}")


class Renaming(InMemoryStorage):
    """A storage that puts everything where it likes."""

    def _save(self, name: str, content: Any) -> str:
        return super()._save(f"elsewhere/{name.rpartition('/')[2]}", content)


class Hanging(FileSystemStorage):
    """A storage that answers a read only once a file `answer` lies in its folder."""

    def _open(self, name: str, mode: str = "rb") -> Any:
        while not Path(self.location, "answer").exists():
            time.sleep(0.02)
        return super()._open(name, mode)


class HangingDelete(FileSystemStorage):
    """A storage that deletes a file only once a file `answer` lies in its folder."""

    def delete(self, name: str) -> None:
        while not Path(self.location, "answer").exists():
            time.sleep(0.02)
        super().delete(name)


class Unreadable(File):
    """A file that gives nothing."""

    def read(self, *_: Any) -> Any:
        return None


class Nameless(FileSystemStorage):
    """A storage that does not say where it put a file, nor gives what is in it."""

    def save(self, name: str | None, content: Any, max_length: int | None = None) -> Any:
        super().save(name, content, max_length)

    def _open(self, name: str, mode: str = "rb") -> Any:
        return Unreadable(super()._open(name, mode).file)


class Exiting(FileSystemStorage):
    """A storage that ends the thread once it has written."""

    def _save(self, name: str, content: Any) -> str:
        super()._save(name, content)
        raise SystemExit(3)


def storages_setting(
    folder: Path, kind: str = "django.core.files.storage.FileSystemStorage"
) -> dict[str, Any]:
    """Return STORAGES with an alias `bodies` of that kind, in that folder."""
    options = {} if kind.endswith(("Renaming", "InMemoryStorage")) else {"location": str(folder)}
    return {
        "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
        "bodies": {"BACKEND": kind, "OPTIONS": options},
    }


@contextmanager
def body_storage(
    folder: Path, kind: str = "django.core.files.storage.FileSystemStorage", **more: Any
) -> Iterator[Any]:
    """Let arguments and results above LIMIT go to a storage of that kind in *folder*."""
    limits = {"BODY_STORAGE": "bodies", "MAX_PAYLOAD_BYTES": LIMIT, "MAX_RESULT_BYTES": LIMIT}
    with override_settings(STORAGES=storages_setting(folder, kind), PGBROKER={**limits, **more}):
        yield storages["bodies"]


def files_in(folder: Path) -> list[str]:
    """List the files of a storage, by their names in it, once those are gone that are to go."""
    assert removals.settle(20)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

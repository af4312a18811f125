"""The measurements as a person runs them: a process, a database of its own, JSON lines and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connections

from testproject import database
from testproject.bench import compare, environments, ran, tables
from testproject.database import drop_database

ROOT = Path(database.__file__).parent.parent
Bench = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """Run the command on an empty database, named so that a killed run's is removed with its server."""
    settings = connections.settings["default"]
    parameters = {
        "host": settings["HOST"],
        "port": settings["PORT"],
        "user": settings["USER"],
        "password": settings["PASSWORD"],
    }
    parameters = {name: value for name, value in parameters.items() if value}
    name = f"test_bench_{os.getpid()}"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "testproject.bench", *arguments],
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": psycopg.conninfo.make_conninfo(**parameters, dbname=name)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    with psycopg.connect(**parameters, dbname="postgres", autocommit=True) as connection:
        connection.execute(f"create database {name}")
        try:
            yield run
        finally:
            drop_database(connection, name)


def test_a_row_runs_with_a_worker_process_of_its_own_and_says_all_there_is_to_know(bench):
    done = bench("two-workers", "--jobs", "40", "--rounds", "1")

    row = json.loads(done.stdout)
    assert done.returncode == (0 if row["holds"] else 1), done.stderr
    assert {"name": "two-workers", "jobs": 40, "rounds": 1, "quick": False}.items() <= row.items()
    assert row["value"] > 0
    assert row["ratio"] == row["against"][0]["ratio"] > 0
    assert row["goal"] == ">= 1.2"
    assert row["spread"] == [row["ratio"]] * 2
    assert set(row["versions"]) == {"pgbroker", "python", "django", "psycopg", "postgresql", "fsync"}


def test_the_list_names_every_row_and_starts_no_server(bench):
    done = bench("--list")

    assert done.returncode == 0
    assert {line.split()[0] for line in done.stdout.splitlines() if line[0] != " "} >= {
        "drain-async",
        "drain-threads",
        "two-workers",
    }


def test_a_row_that_does_not_exist_is_refused_with_those_that_do(bench):
    done = bench("drain-asinc")

    assert done.returncode == 2
    assert "unknown row: drain-asinc; known: drain-async, " in done.stderr


def test_a_goal_that_is_missed_fails_the_row_and_one_that_was_not_tried_leaves_it_open():
    def broken() -> float:
        raise compare.NotRun("there is none here")

    figures = compare.rotate(
        {"us": lambda: 2.0, "slow": lambda: 1.0, "fast": lambda: 4.0, "none": broken}, rounds=2
    )

    faster = compare.against(figures, "us", "slow", at_least=1.5)
    slower = compare.against(figures, "us", "fast", at_least=1.0)
    unknown = compare.against(figures, "us", "none", at_least=1.0)
    reference = compare.against(figures, "us", "fast")
    assert (faster["ratio"], faster["holds"]) == (2.0, True)
    assert (slower["ratio"], slower["holds"]) == (0.5, False)
    assert (unknown["ratio"], unknown["holds"], unknown["not_run"]) == (None, None, "there is none here")
    assert [
        compare.row(2.0, "jobs/s", parts)["holds"]
        for parts in ([faster, reference], [faster, slower, unknown], [faster, unknown])
    ] == [True, False, None]


def test_a_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_the_medians():
    part = compare.ratio("raw", [10.0, 30.0, 50.0], [10.0, 60.0, 20.0], at_most=0.9)

    assert part == {
        "what": "raw", "value": 20.0, "ratio": 1.0, "spread": [0.5, 2.5], "goal": "<= 0.9", "holds": False,
    }  # fmt: skip


def test_a_job_that_ran_twice_or_never_is_found(tmp_path):
    command = (
        "import sys; from testproject.bench import ran; [ran.note(int(number)) for number in sys.argv[1:]]"
    )
    look = ran.make(tmp_path / "ran", 3)
    assert look.began_at is None

    for numbers in (["0"], ["2", "0"]):
        environment = {**os.environ, ran.VARIABLE: str(look.path)}
        subprocess.run([sys.executable, "-c", command, *numbers], cwd=ROOT, env=environment, check=True)

    assert look.began_at is not None
    assert list(look.times()) == [2, 0, 1]
    assert look.missing == 1
    with pytest.raises(AssertionError, match="of 3 jobs 1 never ran and 1 more than once"):
        look.prove_once()


def test_the_tables_show_what_missed_its_goal_and_what_was_not_run(tmp_path):
    figures = compare.rotate({"us": lambda: 2000.0, "raw": lambda: 4000.0}, rounds=1)
    figures.not_run["peer"] = "there is a | in it"
    parts = [
        compare.against(figures, "us", "raw", at_least=0.9),
        compare.against(figures, "us", "peer", at_least=1),
    ]
    lines = [
        {"name": "some-row", **compare.row(1.0, "jobs/s", parts, quick=True, jobs=5, rounds=1)},
        {"name": "no-row", "holds": None, "not_run": "no /proc", "quick": False},
        {"name": "some-row", **compare.row(2000.0, "jobs/s", parts, quick=True, jobs=5, rounds=1)},
    ]
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    shown = tables.figures(path).splitlines()

    assert shown[2:] == [
        "| `some-row` | 2,000 jobs/s | raw | 4,000 | 0.5 | 0.5 to 0.5 | >= 0.9 | **no** |",
        "|  |  | peer (not run: there is a \\| in it) |  |  |  | >= 1 |  |",
        "| `no-row` |  | not run: no /proc |  |  |  |  |  |",
    ]


def test_every_peer_has_a_driver_and_pinned_versions():
    drivers = {path.stem for path in (ROOT / "testproject" / "bench" / "peers").glob("*.py")}
    peers = tomllib.loads(environments.VERSIONS.read_text())

    assert len(peers) == 9
    assert set(peers) <= drivers
    assert [package for name in peers for package in environments.packages(name) if "==" not in package] == []


def test_a_peer_that_cannot_be_installed_is_not_run_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "CHECKOUT", tmp_path)
    monkeypatch.setattr(environments, "DIRECTORY", tmp_path / ".bench")
    monkeypatch.setattr(environments, "best_python", lambda: "/nowhere/python")

    with pytest.raises(compare.NotRun, match="cannot be installed"):
        environments.python_of("pgqueuer")

    assert list(tmp_path.glob(".bench/*")) == []

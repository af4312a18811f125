"""The virtual environment behind the entry. The real ones here install nothing, to be made quickly."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testproject import environment

ENTRY = Path(environment.__file__).parent
PREPARE = """
import pathlib, sys
from testproject import environment
environment.LOCK_FILE = pathlib.Path(sys.argv[1])
print(environment.prepare())
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("PGBROKER_VENV", str(tmp_path / "venv"))
    return tmp_path / "venv"


@pytest.fixture
def lock(tmp_path, monkeypatch):
    path = tmp_path / "requirements.txt"
    path.write_text("# nothing\n")
    monkeypatch.setattr(environment, "LOCK_FILE", path)
    return path


def prepare(lock):
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, str(lock)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def mark_ready(place):
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").symlink_to(sys.executable)
    (place / environment.OURS).touch()
    (place / environment.READY).write_text(json.dumps(environment._wanted()))


def test_an_environment_made_for_this_python_and_lock_is_used_as_it_is(place, lock):
    mark_ready(place)

    assert environment.prepare() == place / "bin" / "python"


@pytest.mark.parametrize("change", ["lock", "python", "place", "interpreter removed", "cut short"])
def test_an_environment_made_for_something_else_is_not_ready(place, lock, monkeypatch, change):
    mark_ready(place)
    assert environment._is_ready(place)

    match change:
        case "lock":
            lock.write_text("# something else\n")
        case "python":
            monkeypatch.setattr(sys, "version", "3.99")
        case "place":
            place.rename(place.with_name("moved"))
            place = place.with_name("moved")
            monkeypatch.setenv("PGBROKER_VENV", str(place))
        case "interpreter removed":
            (place / "bin" / "python").unlink()
            (place / "bin" / "python").symlink_to("/nowhere")
        case "cut short":
            (place / environment.READY).write_text("{")

    assert not environment._is_ready(place)


def test_what_somebody_else_made_is_left_alone(place, lock):
    place.mkdir()
    (place / "precious").touch()

    with pytest.raises(environment.EnvironmentProblem, match="was not made by this command"):
        environment.prepare()

    assert [path.name for path in place.iterdir()] == ["precious"]


def test_a_python_that_is_too_old_is_named_with_the_cure(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 9))

    with pytest.raises(environment.EnvironmentProblem, match=r"needs Python 3\.11 or newer"):
        environment.prepare()


def test_a_python_without_ensurepip_is_named_with_the_cure(place, lock, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object())

    with pytest.raises(environment.EnvironmentProblem, match=r"apt-get install python3\.\d+-venv"):
        environment.prepare()

    assert not place.exists()


@pytest.mark.slow
def test_two_at_once_make_it_once_also_after_a_kill(place, lock):
    with prepare(lock) as killed:
        while not (place / "pyvenv.cfg").exists():
            assert killed.poll() is None
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)

    with prepare(lock) as one, prepare(lock) as other:
        said = one.communicate()[1] + other.communicate()[1]

    assert (one.returncode, other.returncode) == (0, 0)
    assert said.count("making venv") == 1
    assert environment._is_ready(place)
    subprocess.run([place / "bin" / "python", "-c", "import testproject"], cwd="/", check=True)


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["help"], 0), (["nonsense"], 2)])
def test_the_entry_explains_itself(arguments, code):
    done = subprocess.run(
        [sys.executable, ENTRY, *arguments], capture_output=True, text=True, check=False, cwd="/"
    )

    assert done.returncode == code
    assert "usage: python3 testproject COMMAND" in done.stdout + done.stderr


def test_the_entry_passes_the_exit_code_on(place):
    mark_ready(place)
    (place / "bin" / "python").unlink()
    (place / "bin" / "python").write_text("#!/bin/sh\nexit 7\n")
    (place / "bin" / "python").chmod(0o755)

    done = subprocess.run([sys.executable, ENTRY, "types"], check=False)

    assert done.returncode == 7


def newest_python(tmp_path):
    """Put a command python3.13 first on the path, which tells how it was called."""
    command = tmp_path / "python3.13"
    command.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.13.99" && exit\necho "$PGBROKER_VENV" "$@"\n'
    )
    command.chmod(0o755)
    return {name: value for name, value in os.environ.items() if name != "PGBROKER_VENV"} | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}"
    }


def test_the_bench_runs_on_the_newest_python_as_the_peers_do(tmp_path):
    done = subprocess.run(
        [sys.executable, "testproject", "bench", "--quick", "pickup"],
        cwd=environment.CHECKOUT,
        env=newest_python(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == [
        ".venv-bench", str(environment.CHECKOUT / "testproject"), "bench", "--quick", "pickup"
    ]  # fmt: skip


def test_whoever_chooses_an_environment_keeps_the_python_that_they_started(place, tmp_path):
    mark_ready(place)
    done = subprocess.run(
        [sys.executable, "testproject", "bench", "--help"],
        cwd=environment.CHECKOUT,
        env=newest_python(tmp_path) | {"PGBROKER_VENV": str(place)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "Measure pgbroker" in done.stdout

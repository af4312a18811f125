"""broker_status --watch, as a process at a real terminal and without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from django.db import connections

from tests.support.jobs import enqueue_one
from tests.support.relay import Relay
from tests.support.terminal import AtTerminal, Terminal

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "testproject.manage", "broker_status"]
# A shell with job control: once the command is suspended, a line brings it to the front again.
SHELL = ["bash", "-c", 'set -m; "$@"; echo suspended; read -r; fg', "bash"]
CTRL_C, CTRL_Z = "\x03", "\x1a"
ALTERNATE_SCREEN, CURSOR, WRAPPING = "1049", "25", "7"


def environment(url: str | None = None) -> Mapping[str, str]:
    """Make the process work on the tests' database, at a terminal that understands colours."""
    if url is None:
        parameters = connections["default"].get_connection_params()
        host, user, name = (quote(str(parameters[key]), safe="") for key in ("host", "user", "dbname"))
        url = f"postgresql://{user}@/{name}?host={host}&port={parameters.get('port') or 5432}"
    return os.environ | {"DATABASE_URL": url, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}


@contextmanager
def live(*, through: Sequence[str] = (), url: str | None = None) -> Iterator[AtTerminal]:
    command = [*through, *COMMAND, "--watch", "0.2"]
    with closing(AtTerminal(command, environment=environment(url), directory=ROOT)) as status:
        yield status


def has_been_left(status: AtTerminal) -> bool:
    """The terminal is as it was before: its modes, the cursor, and the screen it had."""
    modes = status.terminal.modes
    return (
        status.modes() == status.modes_before
        and ALTERNATE_SCREEN not in modes
        and {CURSOR, WRAPPING} <= modes
    )


def has_been_taken(terminal: Terminal) -> bool:
    return ALTERNATE_SCREEN in terminal.modes and not {CURSOR, WRAPPING} & terminal.modes


def test_it_draws_in_place_follows_the_terminal_and_gives_it_back() -> None:
    enqueue_one(queue="mail")

    with live(through=SHELL) as status:
        status.wait_for_text(": 1 ready")
        # A picture may come in parts.
        status.wait_for(lambda terminal: any(line.split()[:2] == ["mail", "1"] for line in terminal.picture))
        assert has_been_taken(status.terminal)
        assert "q quits" in status.terminal.picture[0]
        assert status.terminal.text.count("QUEUE ") == 1

        enqueue_one(queue="mail")
        status.wait_for_text(": 2 ready")
        # Never cleared since: it cannot flicker.
        assert status.terminal.cleared == 1

        status.resize(50, 10)
        status.wait_for(lambda terminal: "QUEUE" in terminal.text and "workers" in terminal.text)
        assert status.terminal.cleared == 0

        status.type(CTRL_Z)
        status.wait_for_text("suspended")
        assert has_been_left(status)
        status.type("\n")
        status.wait_for(lambda terminal: has_been_taken(terminal) and "QUEUE" in terminal.text)

        status.type(CTRL_C)
        assert status.end() == 0
        assert has_been_left(status)
        assert "Traceback" not in status.terminal.text


def test_it_outlives_the_database_says_so_and_can_always_be_left() -> None:
    relay = Relay()

    with live(url=relay.url) as status:
        status.wait_for_text(" ready")

        relay.cut()
        status.wait_for_text("no figures for ")
        # What was known last stays on the screen.
        assert "trying again: " in status.terminal.text
        assert " ready" in status.terminal.text

        enqueue_one()
        relay.open()
        status.wait_for(lambda terminal: ": 1 ready" in terminal.text and "no figures" not in terminal.text)

        relay.swallow()
        status.wait_for_text("no answer from the database for ")
        status.type("q")
        assert status.end() == 0
        assert has_been_left(status)
    relay.cut()


def test_without_a_terminal_reports_follow_each_other_until_nobody_reads() -> None:
    command = [*COMMAND, "--format", "json", "--watch", "0.1"]

    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.stdout.close()
        code = process.wait(timeout=30)
        said = process.stderr.read()

    assert first["database_time"] < second["database_time"]
    assert (code, said) == (0, "")


def test_a_plain_report_has_no_escape_in_it_and_an_interrupt_ends_it() -> None:
    command = [*COMMAND, "--watch", "0.1"]

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), cwd=ROOT, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines: list[str] = []
        while sum(line.startswith("database time ") for line in lines) < 2:
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=30)

    assert "\x1b" not in "".join(lines) + rest
    assert (process.returncode, said) == (0, "")

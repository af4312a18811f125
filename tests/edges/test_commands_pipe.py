"""A command whose reader has gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMAND = """
import sys
from pgbroker.management.exits import errors_of_a_command

sys.stdin.readline()
with errors_of_a_command("default"):
    print("x" * {length})
"""


@pytest.mark.parametrize("length", [1, 1_000_000])
def test_a_command_whose_reader_has_gone_ends_quietly(length):
    command = [sys.executable, "-c", COMMAND.format(length=length)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.write("\n")
        process.stdin.close()
        said = process.stderr.read()
        code = process.wait(timeout=60)

    assert (code, said) == (141, "")

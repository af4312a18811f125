"""A process at a terminal of its own: a pty, and a picture of what the terminal would show."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_ESCAPE = re.compile(rb"\x1b\[(\??)([0-9;]*)([A-Za-z])|\x1b[()][0-9A-B]|\x1b[=>]")


class Terminal:
    """A terminal of so many columns and rows, as far as programs that draw with a few sequences need one."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.modes = {"7", "25"}  # it wraps, and has a cursor
        self.cleared = 0
        self._rest = b""
        self._clear()

    @property
    def picture(self) -> list[str]:
        """The lines as they are seen, without what is blank at their ends."""
        return ["".join(line).rstrip() for line in self._cells]

    @property
    def text(self) -> str:
        return "\n".join(self.picture)

    def feed(self, data: bytes) -> None:
        """Take in what a program wrote."""
        data, self._rest = self._rest + data, b""
        place = 0
        while place < len(data):
            if data[place] == 0x1B:
                found = _ESCAPE.match(data, place)
                if found is None:
                    assert len(data) - place < 20, f"no known sequence: {data[place : place + 20]!r}"
                    self._rest = data[place:]
                    return
                self._obey(found)
                place = found.end()
                continue
            end = data.find(b"\x1b", place)
            end = len(data) if end < 0 else end
            chunk = data[place:end]
            try:
                text = chunk.decode()
            except UnicodeDecodeError as error:
                # Cut in the middle of a character.
                text, self._rest = chunk[: error.start].decode(), chunk[error.start :]
            self._type(text)
            place = end

    def _obey(self, found: re.Match[bytes]) -> None:
        if found[3] is None:
            return
        private, numbers, letter = found[1], found[2].decode(), found[3].decode()
        if private:
            for number in numbers.split(";"):
                (self.modes.add if letter == "h" else self.modes.discard)(number)
        elif letter == "H":
            assert numbers == ""
            self._row = self._column = 0
        elif letter == "K":
            self._cells[self._row][self._column :] = " " * (self.columns - self._column)
        elif letter == "J":
            if numbers == "2":
                self.cleared += 1
                self._clear()
            for row in range(self._row + 1, self.rows):
                self._cells[row] = [" "] * self.columns
        else:
            assert letter == "m", f"not expected: {found[0]!r}"

    def _type(self, text: str) -> None:
        for character in text:
            if character == "\r":
                self._column = 0
            elif character == "\n":
                self._row += 1
                if self._row == self.rows:
                    self._cells = [*self._cells[1:], [" "] * self.columns]
                    self._row -= 1
            else:
                if self._column == self.columns:
                    assert "7" not in self.modes, "it wraps"
                    self._column -= 1
                self._cells[self._row][self._column] = character
                self._column += 1

    def _clear(self) -> None:
        self._cells = [[" "] * self.columns for _ in range(self.rows)]
        self._row = self._column = 0


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class AtTerminal:
    """A command that runs at a terminal, which can be typed at and looked at."""

    SECONDS = 30.0

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        rows: int = 24,
        environment: Mapping[str, str],
        directory: Path,
    ) -> None:
        self.terminal = Terminal(columns, rows)
        self._ours, theirs = pty.openpty()
        self.resize(columns, rows)
        self.modes_before = termios.tcgetattr(theirs)
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=dict(environment),
            cwd=directory,
            # A session of its own, whose terminal this is: then keys make signals.
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        self._theirs = theirs

    def resize(self, columns: int, rows: int) -> None:
        """Change the size, of which the system tells the process by a signal."""
        modes = self.terminal.modes
        self.terminal = Terminal(columns, rows)
        self.terminal.modes = modes
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def modes(self) -> list[object]:
        """Return how the terminal is set now, as termios tells it."""
        return termios.tcgetattr(self._theirs)

    def wait_for(self, seen: Callable[[Terminal], bool]) -> None:
        """Read until the picture is as wanted; fails with the picture when it takes too long."""
        until = time.monotonic() + self.SECONDS
        while not seen(self.terminal):
            left = until - time.monotonic()
            assert left > 0, f"not seen:\n{self.terminal.text}\n{self.process.poll()=}"
            if select.select([self._ours], [], [], min(left, 0.2))[0]:
                self.terminal.feed(os.read(self._ours, 65536))

    def wait_for_text(self, text: str) -> None:
        self.wait_for(lambda terminal: text in terminal.text)

    def end(self) -> int:
        """Read to the end and return the exit code."""
        until = time.monotonic() + self.SECONDS
        while self.process.poll() is None or select.select([self._ours], [], [], 0)[0]:
            assert time.monotonic() < until, f"it does not end:\n{self.terminal.text}"
            if select.select([self._ours], [], [], 0.1)[0]:
                self.terminal.feed(os.read(self._ours, 65536))
        return self.process.returncode

    def close(self) -> None:
        """Kill what still runs, and take the terminal away."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

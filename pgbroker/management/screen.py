"""A terminal as a picture that is drawn in place, with plain ANSI, and given back as it was."""

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, Literal, TextIO

Event = Literal["key", "quit", "resized", "woken", "timeout"]

# The alternate screen, without a cursor and without wrapping: a character that is wider than it is counted
# must not shift the lines below.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
# Terminals that know them show everything between these at once; the others ignore them.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
_HOME, _TO_END_OF_LINE, _TO_END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_QUIT_KEYS = (b"q", b"Q", b"\x03", b"\x04")
FALLBACK = os.terminal_size((80, 24))


def is_drawable(stream: TextIO) -> bool:
    """Tell whether *stream* is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


class Screen:
    """
    The terminal, from `with` on; whatever ends the block, it is left as it was found.

    SIGINT, SIGTERM and SIGHUP end it as the key `q` does, SIGWINCH tells of a new size, and SIGTSTP gives
    the terminal back until the process goes on. `wake` may be called from any thread.
    """

    def __init__(self, stream: TextIO, keyboard: TextIO | None = None) -> None:
        self.stream = stream
        keyboard = sys.stdin if keyboard is None else keyboard
        self._keyboard = keyboard.fileno() if keyboard is not None and keyboard.isatty() else None
        self._modes: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._told: list[Event] = []

    def __enter__(self) -> "Screen":
        self._listen_to, self._wake_by = os.pipe()
        os.set_blocking(self._wake_by, False)
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            signal.SIGINT: self._end,
            signal.SIGTERM: self._end,
            signal.SIGHUP: self._end,
            signal.SIGWINCH: self._resize,
            signal.SIGTSTP: self._pause,
        }
        for number, handler in handlers.items():
            self._handlers[number] = signal.signal(number, handler)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._listen_to)
        os.close(self._wake_by)

    @property
    def size(self) -> os.terminal_size:
        """How many columns and lines there are now."""
        try:
            size = os.get_terminal_size(self.stream.fileno())
        except OSError:
            return FALLBACK
        return size if size.columns and size.lines else FALLBACK

    def show(self, lines: Iterable[str]) -> None:
        """Draw *lines* over what is there: nothing is cleared first, so nothing flickers."""
        picture = f"{_TO_END_OF_LINE}\r\n".join(lines)
        self._write(f"{_BEGIN}{_HOME}{picture}{_TO_END_OF_LINE}{_TO_END_OF_SCREEN}{_END}")

    def wait(self, seconds: float) -> Event:
        """Wait for a key, a signal or `wake`, for *seconds* at most, and tell which it was."""
        if self._told:
            return self._told.pop(0)
        watched = [self._listen_to] + ([] if self._keyboard is None else [self._keyboard])
        ready, _, _ = select.select(watched, [], [], max(0.0, seconds))
        if self._keyboard is not None and self._keyboard in ready:
            typed = os.read(self._keyboard, 1024)
            if not typed or any(key in typed for key in _QUIT_KEYS):
                return "quit"
            return "key"
        if ready:
            os.read(self._listen_to, 1024)
            return self._told.pop(0) if self._told else "woken"
        return "timeout"

    def wake(self) -> None:
        """End a `wait`, from any thread."""
        try:
            os.write(self._wake_by, b".")
        except OSError:
            # Full, so it wakes up anyway; or closed, so nobody waits.
            return

    def _take(self) -> None:
        if self._keyboard is not None:
            self._modes = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
        self._write(_ENTER)

    def _give_back(self) -> None:
        # A terminal that is gone needs nothing to be restored.
        with suppress(OSError):
            self._write(_LEAVE)
        if self._keyboard is not None and self._modes is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._modes)

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()

    def _tell(self, event: Event) -> None:
        self._told.append(event)
        self.wake()

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._tell("quit")

    def _resize(self, number: int, frame: FrameType | None) -> None:
        self._tell("resized")

    def _pause(self, number: int, frame: FrameType | None) -> None:
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Here it goes on, after SIGCONT.
        signal.signal(signal.SIGTSTP, self._pause)
        self._take()
        self._tell("resized")

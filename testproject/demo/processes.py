"""The demo's children: started, looked after, and stopped, whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent.parent
DIRECTORY = ROOT / "build" / "demo"
KEPT_LOGS = 20
# A worker drains in at most so many seconds; who takes longer is killed.
STOP_SECONDS = 8.0
# A child that lives shorter than this, so many times in a row, will not do better the next time.
SHORT_LIFE_SECONDS = 5.0
MOST_SHORT_LIVES = 3
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoFailed(Exception):
    """The demo cannot go on; the message says why and where to look."""


@dataclass(kw_only=True)
class Child:
    """One child process and how to start it again."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    short_lives: int = 0

    def start(self) -> None:
        """
        Start it, with a pipe to end it by and its output in its log.

        In a process group of its own: a Ctrl-C in the terminal is meant for the demo, which then stops its
        children in order. Two signals at once would tell a worker not to drain.
        """
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "testproject.demo.child", *self.arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **self.environment},
                process_group=0,
            )
        self.started_at = time.monotonic()

    def ended(self) -> int | None:
        """Return the exit code if it has ended."""
        assert self.process is not None
        return self.process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.process is not None:
            self.process.send_signal(number)

    def last_words(self, lines: int = 8) -> str:
        """Return the end of its log."""
        text = self.log.read_text(errors="replace").rstrip()
        return "\n".join(f"    {line}" for line in text.split("\n")[-lines:])


@dataclass
class Children:
    """All children of one demo. Leaving the `with` block stops them."""

    run: str
    _all: list[Child] = field(default_factory=list)
    _stopping: bool = False

    def __enter__(self) -> Children:
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        _remove_old_logs()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def logs(self) -> str:
        """Where the logs are, as a pattern."""
        return f"{DIRECTORY.relative_to(ROOT)}/{self.run}-*.log"

    def start(self, name: str, *arguments: str, **environment: str) -> Child:
        """Start a child that runs one of Django's commands."""
        child = Child(
            name=name,
            arguments=arguments,
            environment=environment,
            log=DIRECTORY / f"{self.run}-{name.replace(' ', '-')}.log",
        )
        self._all.append(child)
        child.start()
        return child

    def look_after(self) -> Iterator[str]:
        """Start what has ended again, and yield a sentence about it; raises `DemoFailed` if that is of no use."""
        for child in self._all:
            code = child.ended()
            if code is None:
                continue
            lived = time.monotonic() - child.started_at
            child.short_lives = child.short_lives + 1 if lived < SHORT_LIFE_SECONDS else 0
            if child.short_lives >= MOST_SHORT_LIVES:
                raise DemoFailed(
                    f"{child.name} ends as soon as it starts. The end of its log ({child.log}):\n"
                    f"{child.last_words()}"
                )
            child.start()
            yield f"{child.name} {_how_it_ended(code)} after {lived:.0f} s and was started again"

    def stop(self) -> None:
        """Ask all to end, wait, and kill those that do not. A signal meanwhile ends the wait."""
        self._stopping = True
        for child in self._all:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for child in self._all:
            assert child.process is not None
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                print(f"{child.name} did not stop within {STOP_SECONDS:.0f} s and was killed", flush=True)
                child.process.kill()
                child.process.wait()

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first one ends the demo, another one while it stops ends the children at once."""
        if not self._stopping:
            self._stopping = True
            with contextlib.suppress(OSError):  # the terminal may be gone
                # Not print: a signal may come in the middle of one, which refuses a second.
                os.write(1, "\nstopping…\n".encode())
            raise KeyboardInterrupt
        for child in self._all:
            child.signal(signal.SIGKILL)

    def take_signals(self) -> None:
        """Handle the signals that stop a program. A SIGHUP that somebody chose to ignore stays ignored."""
        for number in STOPPING:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.hear)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended (exit code {code})"
    with contextlib.suppress(ValueError):
        return f"was killed ({signal.Signals(-code).name})"
    return f"was killed (signal {-code})"


def _remove_old_logs() -> None:
    logs = sorted(DIRECTORY.glob("*.log"), key=lambda path: path.name)
    for log in logs[:-KEPT_LOGS]:
        log.unlink(missing_ok=True)  # a demo that still writes to it does so into the void

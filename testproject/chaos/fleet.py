"""Worker processes under a service manager of the simplest kind: what ends is started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_SECONDS = 60.0
# As a service manager's `RestartSec`.
RESTART_SECONDS = 1.0


class Place:
    """One worker's place: the process in it, and those that were there before."""

    def __init__(self, log: Path, environment: Mapping[str, str], flags: tuple[str, ...]) -> None:
        self.log, self.environment, self.flags = log, environment, flags
        self.codes: list[int] = []
        self.process = self._start()
        self._ended_at: float | None = None

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "testproject.demo.child", "broker_worker", *self.flags],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **self.environment},
            )

    def look_after(self) -> None:
        """Start what has ended again, after the pause."""
        code = self.process.poll()
        if code is None:
            return
        now = time.monotonic()
        if self._ended_at is None:
            self._ended_at = now
        elif now - self._ended_at >= RESTART_SECONDS:
            self.codes.append(code)
            self._ended_at = None
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process = self._start()

    def signal(self, number: int) -> None:
        """Send the process a signal, if it is there."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


class Fleet:
    """All worker processes of a run. They end with this process, however it ends."""

    def __init__(
        self, directory: Path, environments: list[Mapping[str, str]], flags: tuple[str, ...]
    ) -> None:
        self.places = [
            Place(directory / f"worker-{number}.log", environment, flags)
            for number, environment in enumerate(environments, 1)
        ]
        self._over = threading.Event()
        self._manager = threading.Thread(target=self._manage, name="chaos-manager", daemon=True)
        self._manager.start()

    def _manage(self) -> None:
        while not self._over.wait(0.1):
            for place in self.places:
                place.look_after()

    @property
    def ends(self) -> list[int]:
        """How the processes ended that were started again; negative for a signal."""
        return [code for place in self.places for code in place.codes]

    def stop(self) -> list[int]:
        """Let all of them drain; returns how they ended."""
        self._over.set()
        self._manager.join()
        for place in self.places:
            place.signal(signal.SIGTERM)
        return [place.process.wait(PATIENCE_SECONDS) for place in self.places]

    def kill(self) -> None:
        """End whatever still runs."""
        self._over.set()
        self._manager.join()
        for place in self.places:
            place.signal(signal.SIGCONT)
            place.signal(signal.SIGKILL)
            place.process.wait(PATIENCE_SECONDS)
            assert place.process.stdin is not None
            place.process.stdin.close()

    def last_words(self) -> str:
        """Return the end of what each wrote."""
        return "\n".join(
            f"--- {place.log.name}\n{place.log.read_text(errors='replace')[-3000:]}" for place in self.places
        )

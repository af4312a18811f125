"""SIGTERM and SIGINT of a long-running command, from its first moment to its last."""

import _thread
import os
import signal
from collections.abc import Callable
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """
    The first signal stops: at once while the process starts and holds nothing, by *stop* once it runs.

    The second ends the process on the spot (1): what it held comes back when its leases end. Not under a
    parent (*patient*): there each of them may send the same one.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.patient = patient
        self._count = 0
        self._stop: Callable[[], None] | None = None

    def install(self) -> None:
        """Take the signals over; only the main thread may."""
        for number in STOPPING:
            signal.signal(number, self._hear)

    def running(self, stop: Callable[[], None]) -> None:
        """From now on a signal calls *stop*; at once, if one came that nobody could act on."""
        self._stop = stop
        if self._count:
            # The exit that it raised was swallowed: Python ignores one in a callback of the import system.
            stop()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1 and self.patient:
            return
        if self._count > 1:
            os.write(2, b"pgbroker: second signal, exiting at once\n")
            os._exit(1)
        if self._stop is None:
            # Whatever is being imported or connected to is left where it is.
            raise SystemExit(0)
        # In a thread of its own: the interrupted main thread may hold the very lock that *stop* takes.
        _thread.start_new_thread(self._stop, ())

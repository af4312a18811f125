"""What this process asks the system's scheduler for."""

import os
import sys
from contextlib import suppress


def be_batch_work() -> None:
    """
    Have Linux schedule this thread, and whatever it starts from now on, as batch work (SCHED_BATCH).

    A thread of it that wakes up takes its turn and pushes nobody off a CPU. Threads that share the interpreter's
    lock would else do that to each other at every answer of the database (decision 0024). A policy that whoever
    started the process chose stays, and a system that refuses is left alone.
    """
    if sys.platform != "linux":
        return
    # A container may forbid it. It is a matter of speed only.
    with suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

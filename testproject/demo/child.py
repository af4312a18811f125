"""
Run one of Django's commands as a child of the demo, and end with it: `python -m testproject.demo.child COMMAND`.

Standard input is a pipe whose other end only the demo holds. However the demo ends, kill -9 included, the
kernel closes that end; the child reads the end of the file, gives itself SIGTERM, and kills itself if that
did not help. A death signal (`prctl`) would not do: there is none outside Linux, it has to be asked for
between fork and exec, where a program with threads must not run Python, and a child cannot tell it from
another signal, so that a worker would have to be killed instead of handing its jobs back.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from testproject import manage

GRACE_SECONDS = 10.0


def main(arguments: list[str]) -> None:
    # Otherwise a web server dies on the spot and keeps hold of nothing, not even to let go of the database.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    threading.Thread(target=_end_with_parent, name="demo-parent", daemon=True).start()
    manage.main(arguments)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])

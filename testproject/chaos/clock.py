"""
A host clock that is wrong, for one process: a shim in front of the C library, built when it is needed.

Only the wall clock is moved. The monotonic clock, which waits are measured by, is what it is on a real host
whose clock is wrong. No root is needed, nor a package; a C compiler is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "CHAOS_CLOCK_SECONDS"
_SOURCE = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t moved(void) {
    const char *text = getenv("%s");
    return text ? (time_t) atol(text) : 0;
}

int clock_gettime(clockid_t which, struct timespec *at) {
    int failed = (int) syscall(SYS_clock_gettime, which, at);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) at->tv_sec += moved();
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class NoClock(Exception):
    """No process can be given another clock here; the message says why."""


def environment(directory: Path, seconds: int) -> Mapping[str, str]:
    """Return what makes a process's clock wrong by *seconds*. Raises `NoClock`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not sys.platform.startswith("linux") or compiler is None:
        raise NoClock("it needs Linux and a C compiler (cc)")
    library = directory / "clock.so"
    if not library.exists():
        source = directory / "clock.c"
        source.write_text(_SOURCE % VARIABLE)
        built = subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            raise NoClock(f"the shim does not compile: {built.stderr[-300:]}")
    made = {"LD_PRELOAD": str(library), VARIABLE: str(seconds)}
    asked = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env={**os.environ, **made},
        capture_output=True,
        text=True,
        check=False,
    )
    # Whatever this Python was linked with, it must really read the wrong time.
    if asked.returncode or abs(float(asked.stdout) - time.time() - seconds) > 30:
        raise NoClock("this Python does not take its time from the C library")
    return made

"""
The process that makes a worker's child processes, as it runs.

One thread, no connection, no handler: it forks, kills and buries. When its worker goes, however that ends, it
kills what is left and ends as well. Where the project itself starts threads while it loads, nothing is forked:
every child is a fresh interpreter, which takes longer to start and shares no memory.
"""

import gc
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any, NoReturn

# Make a child that has two sockets; the third are descriptors of the nursery, which are not for it.
Make = Callable[[int, int, tuple[int, ...]], int]

REQUEST = struct.Struct("!Bq")
REPORT = struct.Struct("!Bqi")
# How often it looks whether the worker is still its parent: a handler that forked may hold the socket open.
PARENT_SECONDS = 1.0

_BOOT_CHILD = (
    "import sys, pickle; given = pickle.load(sys.stdin.buffer); sys.path[:] = given['path']; "
    "from pgbroker.runtime.executors.nursery_process import spawned_child; "
    "spawned_child(given, int(sys.argv[1]), int(sys.argv[2]))"
)


class Say(IntEnum):
    """What the two say to each other."""

    BEAR = 1
    KILL = 2
    BORN = 3
    NOT_BORN = 4
    ENDED = 5


def forked(control: socket.socket) -> NoReturn:
    """Be a nursery, in a process that was forked off a worker with everything loaded."""
    _serve(control, _fork)


def spawned(given: Mapping[str, Any], descriptor: int) -> NoReturn:
    """Be a nursery, in a fresh interpreter: load the project, then make children in the way that is clean."""
    from pgbroker.runtime.executors.nursery import can_fork

    load(given)
    body = pickle.dumps(given)
    _serve(
        socket.socket(fileno=descriptor),
        _fork if can_fork() else lambda attempts, words, _: _spawn(body, attempts, words),
    )


def load(given: Mapping[str, Any]) -> None:
    """Load the project as the worker has it."""
    sys.argv = list(given["argv"])
    _no_stdin()
    if given["settings"] is not None:
        os.environ["DJANGO_SETTINGS_MODULE"] = given["settings"]
    from importlib import import_module

    import django
    from django.conf import settings
    from django.db import connections
    from django.utils.module_loading import import_string

    settings.PGBROKER = given["pgbroker"]
    if given["databases"] is not None:
        settings.DATABASES = given["databases"]
    django.setup()
    for name in given["modules"]:
        import_module(name)
    for name in given["subscribers"]:
        import_string(name)()
    connections.close_all()


def _no_stdin() -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.dup2(descriptor, 0)
    os.close(descriptor)


def _serve(control: socket.socket, make: Make) -> NoReturn:
    children: set[int] = set()
    nursery, code = os.getpid(), 1
    try:
        _work(control, make, children)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # However this ends, no child outlives it. A child of its own that failed on its way out is not it.
        for pid in children if os.getpid() == nursery else ():
            kill_group(pid)
        # And nothing of the process it was forked from is to be cleaned up here.
        os._exit(code)


def _work(control: socket.socket, make: Make, children: set[int]) -> None:
    worker = os.getppid()
    # A terminal sends its Ctrl-C to the whole group of its foreground: the worker hears of it, and decides.
    os.setpgid(0, 0)
    ignore_stops()
    # The system's word to a stopped process that has lost its parent, with which it goes on.
    signal.signal(signal.SIGHUP, _nothing)
    _no_stdin()
    ended, wakes = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, _nothing)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    gc.collect()
    # What is there now is there for good: no collection touches its pages, so they stay shared.
    gc.freeze()
    own = (control.fileno(), ended, wakes)
    while os.getppid() == worker:
        readable, _, _ = select.select([control.fileno(), ended], [], [], PARENT_SECONDS)
        if ended in readable:
            os.read(ended, 4096)
        _bury(children, control)
        if control.fileno() in readable and not _obey(
            children, control, lambda attempts, words: make(attempts, words, own)
        ):
            break


def _obey(children: set[int], control: socket.socket, make: Callable[[int, int], int]) -> bool:
    """Do what the worker asks; False when it has hung up."""
    from pgbroker.runtime.executors.wire import receive

    try:
        request, descriptors = receive(control, REQUEST.size, 2)
        while request and len(request) < REQUEST.size:
            request += control.recv(REQUEST.size - len(request))
    except OSError:
        return False
    if len(request) < REQUEST.size:
        return False
    say, pid = REQUEST.unpack(request)
    if say == Say.KILL:
        if pid in children:
            kill_group(pid)
        return True
    try:
        pid = make(*descriptors)
    except OSError as error:
        _tell(control, Say.NOT_BORN, 0, error.errno or 0)
    else:
        children.add(pid)
        _tell(control, Say.BORN, pid, 0)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return True


def _bury(children: set[int], control: socket.socket) -> None:
    """Tell of the children that have ended. What a killed one had started is killed while its number is still its."""
    while children:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None:
            return
        if found.si_code != os.CLD_EXITED or found.si_status != 0:
            kill_group(found.si_pid)
        pid, status = os.waitpid(found.si_pid, 0)
        children.discard(pid)
        _tell(control, Say.ENDED, pid, status)


def _tell(control: socket.socket, say: Say, pid: int, detail: int) -> None:
    """Report to the worker. One that is gone does not hear it; that it is, is found out where requests are read."""
    with suppress(OSError):
        control.sendall(REPORT.pack(say, pid, detail))


def kill_group(pid: int) -> None:
    """Kill a child and the processes of its group: programs that its handler started."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _fork(attempts: int, words: int, own: tuple[int, ...]) -> int:
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in own:
            os.close(descriptor)
        from pgbroker.runtime.executors.child import be_child

        be_child(attempts, words)
    return pid


def _spawn(body: bytes, attempts: int, words: int) -> int:
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOT_CHILD, str(attempts), str(words)],
        stdin=subprocess.PIPE,
        pass_fds=[attempts, words],
        process_group=0,
    )
    # Buried with all the others.
    process.returncode = 0
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(body)
    return process.pid


def spawned_child(given: Mapping[str, Any], attempts: int, words: int) -> NoReturn:
    """Be a child, in a fresh interpreter."""
    from pgbroker.runtime.executors.child import be_child

    load(given)
    be_child(attempts, words)


def ignore_stops() -> None:
    """
    Do nothing at SIGTERM and SIGINT: the worker hears of them, and decides when this process ends.

    A function that does nothing, since programs that handlers start would inherit an ignored signal.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _nothing)


def _nothing(number: int, frame: Any) -> None:
    """Hear a signal."""

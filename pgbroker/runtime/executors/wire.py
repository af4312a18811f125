"""
What a worker and its child processes say to each other.

A worker's word is pickled: the child is its own. A child's word is JSON: its memory may be in any state, and
what it says must not be able to harm the worker.
"""

import json
import os
import pickle
import socket
import struct
from array import array
from datetime import timedelta
from typing import Any, NamedTuple

from pgbroker.context import StopReason
from pgbroker.errors import UndecodableArgument
from pgbroker.lease import Lease
from pgbroker.outcomes import Ended
from pgbroker.runtime.attempt import Attempt
from pgbroker.states import AttemptState

LENGTH = struct.Struct("!I")
# More than any lease or outcome can weigh: a length beyond it is nonsense.
LARGEST = 1 << 30
READY = b""

# Each message is an attempt, with the number that counts those of its child. One that is larger than this goes
# as a file in memory, of which the message has the descriptor: messages are bounded by the socket's buffer.
INLINE = 8 * 1024
_NUMBER = struct.Struct("!Q?")

# As plain numbers: an enumeration costs more to add than the call.
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
NOW = int(socket.MSG_DONTWAIT)

# Why, and which attempt of the child it is about. No reason: the worker drains.
STOP = struct.Struct("!BQ")
# One code more: the worker lost a connection; the number is when, by the monotonic clock, in microseconds.
LOSS, LOSS_UNITS = 255, 1_000_000
REASONS: tuple[StopReason | None, ...] = (None, "cancelled", "timed_out", "lease_lost", "shutdown")


class Nonsense(Exception):
    """What came from a child cannot be read."""


class Assignment(NamedTuple):
    """One attempt for a child."""

    job_type: str
    queue: str | None
    lease: Lease
    claimed_at: float
    # Why it must not start any more.
    stop: StopReason | None
    shutting_down: bool
    # When the worker last lost a connection, by the monotonic clock, which all processes share.
    lost_at: float

    @classmethod
    def of(cls, attempt: Attempt, queue: str | None, lost_at: float) -> "Assignment":
        """Describe an attempt to a child."""
        stop = attempt.stop
        return cls(
            attempt.job_type.key,
            queue,
            attempt.lease,
            attempt.claimed_at,
            stop.reason,
            stop.shutting_down,
            lost_at,
        )


def frame(body: bytes) -> bytes:
    """Write a frame."""
    return LENGTH.pack(len(body)) + body


class Frames:
    """Puts frames together from what a socket gives."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes in and return the frames that are complete now. Raises `Nonsense`."""
        self._data += data
        found = []
        while len(self._data) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._data)
            if length > LARGEST:
                raise Nonsense(f"a frame of {length} bytes")
            end = LENGTH.size + length
            if len(self._data) < end:
                break
            found.append(bytes(self._data[LENGTH.size : end]))
            del self._data[:end]
        return found


def write_assignment(assignment: Assignment) -> bytes:
    """Write an assignment. Raises `UndecodableArgument` for arguments that cannot be copied, such as too deep ones."""
    plain = (*assignment[:2], tuple(assignment.lease), *assignment[3:])
    try:
        return pickle.dumps(plain, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise UndecodableArgument(
            f"the arguments cannot be handed to a child process: {type(error).__name__}"
        ) from error


def read_assignment(body: bytes) -> Assignment:
    """Read an assignment."""
    job_type, queue, lease, *rest = pickle.loads(body)  # noqa: S301 - the worker's own
    return Assignment(job_type, queue, Lease._make(lease), *rest)


def send_attempt(to: socket.socket, number: int, body: bytes) -> None:
    """Send an attempt as one message. Raises `BlockingIOError` when there is no room for it."""
    if len(body) <= INLINE:
        to.send(_NUMBER.pack(number, False) + body)
        return
    file = os.memfd_create("pgbroker-attempt")
    try:
        with open(file, "wb", closefd=False) as whole:
            whole.write(body)
        socket.send_fds(to, [_NUMBER.pack(number, True)], [file])
    finally:
        os.close(file)


def receive(at: socket.socket, size: int, most_files: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """Receive bytes and descriptors. As `socket.recv_fds`, which forgets its flags in some releases."""
    files = array("i")
    data, ancillary, _, _ = at.recvmsg(
        size, socket.CMSG_SPACE(most_files * files.itemsize), flags | _CLOSE_ON_EXEC
    )
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(content[: len(content) - len(content) % files.itemsize])
    return data, list(files)


def receive_attempt(at: socket.socket, flags: int = 0) -> tuple[int, bytes] | None:
    """Receive an attempt and its number; None when there will be no more."""
    message, files = receive(at, INLINE + _NUMBER.size, 1, flags)
    if not message:
        return None
    number, is_file = _NUMBER.unpack_from(message)
    if not is_file:
        return number, message[_NUMBER.size :]
    with open(files[0], "rb") as whole:
        whole.seek(0)
        return number, whole.read()


def take_attempt(at: socket.socket) -> int:
    """Receive what lies there instead of the child, and return its number. Raises `BlockingIOError`."""
    message, files = receive(at, INLINE + _NUMBER.size, 1, NOW)
    for file in files:
        os.close(file)
    return int(_NUMBER.unpack_from(message)[0]) if message else 0


def write_outcome(number: int, attempt: Attempt, ended: Ended, *, leaving: bool) -> bytes:
    """Write how an attempt ended; *leaving* tells that the child takes no other."""
    started = attempt.started if attempt.started is not None else attempt.claimed_at
    return json.dumps(
        (
            number,
            leaving,
            started,
            int(ended.state),
            ended.seconds,
            None if ended.delay is None else ended.delay / timedelta(microseconds=1),
            *ended[5:],
        )
    ).encode()


class Outcome(NamedTuple):
    """What a child says of an attempt."""

    number: int
    leaving: bool
    started: float
    state: int
    seconds: float
    delay_microseconds: float | None
    rest: tuple[Any, ...]

    def ended(self, attempt: Attempt) -> Ended:
        """Make of it what settle takes."""
        return Ended(
            attempt.lease,
            AttemptState(self.state),
            attempt.lease.leased_at + timedelta(seconds=self.started - attempt.claimed_at),
            self.seconds,
            None if self.delay_microseconds is None else timedelta(microseconds=self.delay_microseconds),
            *self.rest,
        )


# Beyond any time a monotonic clock or a delay can say; what is below fits into a timedelta.
_LARGEST_NUMBER = 1e16
# The types of what follows the delay in `Ended`: permanent, dead, and texts.
_REST: tuple[Any, ...] = (bool, bool, *[(str, type(None))] * (len(Ended._fields) - 7))


def read_outcome(body: bytes) -> Outcome:
    """Read an outcome. Raises `Nonsense` for what no child of ours would write."""
    try:
        number, leaving, started, state, seconds, delay, *rest = json.loads(body)
        outcome = Outcome(
            int(number),
            bool(leaving),
            float(started),
            AttemptState(state),
            float(seconds),
            None if delay is None else float(delay),
            tuple(rest),
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Nonsense(f"an outcome that cannot be read ({type(error).__name__})") from error
    numbers = (outcome.started, outcome.seconds, outcome.delay_microseconds or 0.0)
    if not all(abs(each) < _LARGEST_NUMBER for each in numbers):
        raise Nonsense("an outcome of impossible times")
    if len(rest) != len(_REST) or not all(isinstance(*each) for each in zip(rest, _REST, strict=True)):
        raise Nonsense("an outcome of another shape")
    return outcome

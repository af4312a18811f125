"""A worker's end of one child process."""

import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from pgbroker.context import StopReason
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.executors import wire

_CHUNK = 256 * 1024


class ChildLink:
    """
    What a worker has of a child: attempts go out on one socket, a message each; words go both ways on another.

    Nothing here ever waits. The far end of the first stays open here too, so that what the child has not read
    can be read back: the kernel gives each message to one of the two. So an attempt that never started is told
    from one that its child died of, and need not wait behind one that takes long.
    """

    def __init__(self) -> None:
        self.attempts, self.far_attempts = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self.words, self.far_words = socket.socketpair()
        for each in (self.attempts, self.words):
            each.setblocking(False)
        self.pid = 0
        # It has told that it waits for its first attempt.
        self.ready = False
        # It takes no more: it said so, or it was told to end.
        self.leaving = False
        self.killed = False
        # Somebody waits for its words; nothing more comes of them.
        self.listening = self.hung_up = False
        # What it said last was no word of a child's.
        self.nonsense: wire.Nonsense | None = None
        # The one that runs, as far as one knows, and those that lie ahead; with their numbers.
        self.queue: deque[tuple[int, Attempt]] = deque()
        self._number = 0
        self._frames = wire.Frames()

    @property
    def running(self) -> Attempt | None:
        """The attempt it is at, or was given and has not read yet."""
        return self.queue[0][1] if self.queue else None

    def born(self, pid: int) -> None:
        """Take note that the process is there; it has the far ends now."""
        self.pid = pid
        self.far_words.close()

    def tell_rules(self, body: bytes) -> None:
        """Tell it, before all else, what holds as long as it lives."""
        self.words.send(wire.frame(body))

    def give(self, attempt: Attempt, body: bytes) -> bool:
        """Send an attempt; False when so much lies there that it has no room."""
        try:
            wire.send_attempt(self.attempts, self._number + 1, body)
        except OSError:
            # Full, or too many descriptors on their way.
            return False
        self._number += 1
        self.queue.append((self._number, attempt))
        return True

    def take_back(self) -> Attempt | None:
        """Take the first attempt back that it has not read; None when it has read all."""
        try:
            number = wire.take_attempt(self.far_attempts)
        except OSError:
            return None
        for entry in self.queue:
            if entry[0] == number:
                self.queue.remove(entry)
                return entry[1]
        return None

    def hear(self) -> Iterator[bytes]:
        """Give the frames that have come; sets `nonsense`, and gives no more, when there is no sense in them."""
        while self.nonsense is None:
            try:
                data = self.words.recv(_CHUNK)
            except OSError:
                return
            if not data:
                self.hung_up = True
                return
            try:
                yield from self._frames.feed(data)
            except wire.Nonsense as error:
                self.nonsense = error
            if len(data) < _CHUNK:
                return

    def tell(self, reason: StopReason | None, attempt: Attempt | None = None) -> None:
        """Tell the child to stop an attempt, or that its worker drains."""
        number = next((number for number, each in self.queue if each is attempt), 0)
        # One that does not listen is killed for what it did not hear.
        with suppress(OSError):
            self.words.send(wire.STOP.pack(wire.REASONS.index(reason), number))

    def tell_loss(self, at: float) -> None:
        """Tell when the worker last lost a connection."""
        with suppress(OSError):
            self.words.send(wire.STOP.pack(wire.LOSS, int(at * wire.LOSS_UNITS)))

    def let_go(self) -> None:
        """Ask it to end once it waits for an attempt."""
        self.leaving = True
        with suppress(OSError):
            self.attempts.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close all ends."""
        for each in (self.attempts, self.far_attempts, self.words, self.far_words):
            each.close()

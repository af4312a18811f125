"""What other threads ask of one that waits on sockets."""

import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Orders:
    """
    Calls for the thread that owns this, which makes them at its next turn.

    While it is *asleep*, in a `select` that has `ear` among its sockets, an order wakes it.
    """

    def __init__(self) -> None:
        self._orders: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._bell, self.ear = socket.socketpair()
        for each in (self._bell, self.ear):
            each.setblocking(False)
        self.asleep = False

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._orders)

    def give(self, act: Callable[..., None], *arguments: Any) -> None:
        """Order a call; from any thread."""
        self._orders.append((act, arguments))
        if self.asleep:
            # Full of rings, so that it cannot miss them, or closed.
            with suppress(OSError):
                self._bell.send(b"!")

    def follow(self) -> None:
        """Make the calls."""
        while self._orders:
            act, arguments = self._orders.popleft()
            act(*arguments)

    def heard(self) -> None:
        """Forget the rings."""
        with suppress(OSError):
            self.ear.recv(4096)

    def close(self) -> None:
        """Let go of the sockets; what is ordered from now on is not done."""
        self._bell.close()
        self.ear.close()

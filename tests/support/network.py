"""A network between a worker and its database that can swallow: bytes are taken and go nowhere, and nobody is told."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections


class Network:
    """Passes connections on to the test's server, byte by byte, until it swallows."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        self.swallowing = False
        self.closing = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.listening, selectors.EVENT_READ)
        self._other_end: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _server(self) -> socket.socket:
        settings = connections.settings["default"]
        host, port = settings["HOST"] or "/var/run/postgresql", settings["PORT"] or 5432
        if host.startswith("/"):
            there = socket.socket(socket.AF_UNIX)
            there.connect(f"{host}/.s.PGSQL.{port}")
            return there
        return socket.create_connection((host, int(port)))

    def _pass_on(self) -> None:
        while not self.closing:
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self.listening:
                    here, there = self.listening.accept()[0], self._server()
                    for one, other in ((here, there), (there, here)):
                        self._other_end[one] = other
                        self._selector.register(one, selectors.EVENT_READ)
                else:
                    self._pass_on_from(key.fileobj)

    def _pass_on_from(self, one: socket.socket) -> None:
        other = self._other_end[one]
        data = b""
        with contextlib.suppress(OSError):
            data = one.recv(65536)
        if self.swallowing:
            # Even the end of a connection is not told.
            if not data:
                self._selector.unregister(one)
            return
        if data:
            with contextlib.suppress(OSError):
                other.sendall(data)
            return
        self._end(one, other)

    def _end(self, *both: socket.socket) -> None:
        for each in both:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(each)
            each.close()

    def close(self) -> None:
        """End every connection: whoever waits hears of it at last."""
        self.closing = True
        self._thread.join(5)
        for each in [*self._other_end, self.listening]:
            each.close()
        self._selector.close()


@contextmanager
def network() -> Iterator[Network]:
    """Make one for a while."""
    between = Network()
    try:
        yield between
    finally:
        between.close()

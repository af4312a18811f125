"""A port that leads to the tests' database, and can be cut, opened again, or made to swallow what comes."""

from __future__ import annotations

import select
import socket
import threading
from urllib.parse import quote

from django.db import connections


class Relay:
    """Stands between a process under test and PostgreSQL; `url` is where the process finds it."""

    def __init__(self) -> None:
        parameters = connections["default"].get_connection_params()
        self._host, self._port = str(parameters.get("host") or ""), int(parameters.get("port") or 5432)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._swallows = False
        self._listener: socket.socket | None = None
        self.port = 0
        self.open()
        user, name = quote(str(parameters["user"])), quote(str(parameters["dbname"]))
        self.url = f"postgresql://{user}@127.0.0.1:{self.port}/{name}"

    def open(self) -> None:
        """Take connections, from now on and at the same port as before."""
        self._swallows = False
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Break every connection and take no more: as of a server that is gone."""
        if self._listener is not None:
            # A thread that waits in accept() would keep the port alive.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for pair in self._pairs:
            for end in pair:
                end.close()
        self._pairs.clear()

    def swallow(self) -> None:
        """Keep the connections, and let nothing through any more: as of a network that lost the other side."""
        self._swallows = True

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                ours, _ = listener.accept()
            except OSError:
                return
            theirs = self._connect()
            self._pairs.append((ours, theirs))
            threading.Thread(target=self._carry, args=(ours, theirs), daemon=True).start()

    def _connect(self) -> socket.socket:
        if self._host.startswith("/"):
            theirs = socket.socket(socket.AF_UNIX)
            theirs.connect(f"{self._host}/.s.PGSQL.{self._port}")
            return theirs
        return socket.create_connection((self._host or "127.0.0.1", self._port))

    def _carry(self, ours: socket.socket, theirs: socket.socket) -> None:
        other = {ours: theirs, theirs: ours}
        try:
            while True:
                for end in select.select([ours, theirs], [], [])[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    if not self._swallows:
                        other[end].sendall(data)
        except (OSError, ValueError):
            # Cut: by us, or by one of the two.
            return
        finally:
            ours.close()
            theirs.close()

"""The port on which a worker answers Prometheus and probes: small, bounded, and no way to harm the worker."""

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, NamedTuple

from pgbroker.errors import PortUnavailable

_log = logging.getLogger("pgbroker.port")

# Whoever asks has so long for a whole request and its answer; more than so many at once are turned away.
REQUEST_SECONDS = 10.0
MOST_CONNECTIONS = 32
TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """What a route answers."""

    status: int
    body: bytes
    content_type: str = TEXT


# The value of the Accept header goes in.
Route = Callable[[str], Answer]


class Port:
    """
    An HTTP server of its own threads, for GET and HEAD of a few paths.

    Listens from its construction on; raises `PortUnavailable`. Port 0 takes any free one: see `number`.
    """

    def __init__(
        self, host: str, port: int, routes: dict[str, Route], *, request_seconds: float = REQUEST_SECONDS
    ) -> None:
        try:
            self._server = _Server(host, port, routes, request_seconds)
        except (OSError, OverflowError) as error:
            raise PortUnavailable(host, port, str(error)) from error
        self.host, self.number = host, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._serve, name="pgbroker-port", daemon=True)

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.5)

    @property
    def url(self) -> str:
        """Where it answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.number}"

    @property
    def connections(self) -> int:
        """How many ask at this moment."""
        return self._server.connections

    def open(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more; returns once the port is free."""
        if self._thread.ident is not None:
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Threads of clients are not waited for: each has its own end.
    block_on_close = False
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, host: str, port: int, routes: dict[str, Route], request_seconds: float) -> None:
        self.routes, self.request_seconds = routes, request_seconds
        self._open: dict[Any, float] = {}
        self._lock = threading.Lock()
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _Handler)

    @property
    def connections(self) -> int:
        return len(self._open)

    def server_bind(self) -> None:
        # HTTPServer would ask the name service who we are, and wait for it.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            # No more file descriptors, say: whoever waits is still there at once, and would keep us busy.
            time.sleep(0.1)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS:
                return False
            self._open[request] = time.monotonic()
            return True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Between requests, and twice a second: end those that take too long, such as a byte at a time."""
        late = time.monotonic() - self.request_seconds
        with self._lock:
            slow = [request for request, began in self._open.items() if began < late]
        for request in slow:
            # It may just have ended by itself.
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Whoever hangs up in the middle, or was hung up on.
        _log.debug("a request failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.request_seconds)

    def version_string(self) -> str:
        return "pgbroker"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        route = self.server.routes.get(path)
        if route is None:
            answer = Answer(404, f"No such page. There are: {', '.join(self.server.routes)}\n".encode())
        else:
            try:
                answer = route(self.headers.get("Accept", ""))
            except Exception as error:
                # A collector of the project's own may fail; who asks must hear of it, and the worker goes on.
                _log.warning("%s failed", path, exc_info=True)
                answer = Answer(500, f"{type(error).__name__}: see the worker's log\n".encode())
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)

"""The port by itself: slow, rude and too many clients, and a number that somebody has."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from pgbroker.errors import PortUnavailable
from pgbroker.runtime.port import MOST_CONNECTIONS, Answer, Port
from tests.support.scraping import get

PATIENCE_SECONDS = 10.0


def broken(_: str) -> Answer:
    raise LookupError("a collector of the project")


@pytest.fixture
def opened() -> Iterator[Callable[..., Port]]:
    with ExitStack() as stack:

        def open_port(**how) -> Port:
            routes = {"/fine": lambda accept: Answer(200, f"fine {accept}".encode()), "/broken": broken}
            port = Port("127.0.0.1", 0, routes, **how)
            stack.callback(port.close)
            port.open()
            return port

        yield open_port


def said(client: socket.socket, text: bytes = b"") -> bytes:
    """Send and read until the far side hangs up."""
    client.settimeout(PATIENCE_SECONDS)
    answer = b""
    try:
        client.sendall(text)
    except BrokenPipeError:  # it has hung up already
        return answer
    while True:
        try:
            part = client.recv(65536)
        except ConnectionResetError:
            return answer
        if not part:
            return answer
        answer += part


def connect(port: Port) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port.number), timeout=PATIENCE_SECONDS)


def test_a_page_is_answered_and_head_has_no_body(opened):
    port = opened()

    assert get(f"{port.url}/fine", Accept="x/y") == (200, "fine x/y", "text/plain; charset=utf-8")
    assert get(f"{port.url}/fine/?a=b").status == 200
    with connect(port) as client:
        head = said(client, b"HEAD /fine HTTP/1.0\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200")
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", b" 404 "),
        (b"POST /fine HTTP/1.1\r\nContent-Length: 2\r\n\r\nxx", b" 501 "),
        (b"\xff\xfe\r\n\r\n", b" 400"),
        (b"GET /fine HTTP/9.9\r\n\r\n", b" 505 "),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b" 414 "),
        (b"GET /fine HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b" 431 "),
        (b"GET /broken HTTP/1.1\r\n\r\n", b" 500 "),
    ],
    ids=[
        "unknown path",
        "other method",
        "no HTTP",
        "other version",
        "long line",
        "many headers",
        "failing page",
    ],
)
def test_what_cannot_be_answered_gets_a_status_and_harms_nobody(opened, request_text, status):
    port = opened()

    with connect(port) as client:
        answer = said(client, request_text)

    assert status in answer.partition(b"\r\n")[0] or status.strip() in answer
    assert get(f"{port.url}/fine").status == 200


def test_clients_that_say_nothing_or_a_byte_at_a_time_are_hung_up_on(opened):
    port = opened(request_seconds=0.5)

    with connect(port) as silent, connect(port) as slow:
        over = threading.Event()

        def drip() -> None:
            while not over.wait(0.1):
                try:
                    slow.sendall(b"G")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        began = time.monotonic()
        said(silent)
        said(slow)
        took = time.monotonic() - began
        over.set()
        dripping.join()

    assert took < 5
    assert get(f"{port.url}/fine").status == 200


def test_more_connections_than_it_takes_are_turned_away_and_then_served_again(opened):
    port = opened(request_seconds=2.0)

    with ExitStack() as stack:
        taken = [stack.enter_context(connect(port)) for _ in range(MOST_CONNECTIONS)]
        # Accepted in order: once the last of them is answered for, so are all before it.
        while port.connections < MOST_CONNECTIONS:
            time.sleep(0.01)
        with connect(port) as one_too_many:
            assert said(one_too_many) == b""
        assert said(taken[0], b"GET /fine HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200")
        assert get(f"{port.url}/fine").status == 200


def test_a_port_that_somebody_has_is_refused_with_its_number_and_the_cure(opened):
    port = opened()

    with pytest.raises(
        PortUnavailable, match=rf"port {port.number} of 127\.0\.0\.1 .* --metrics-port"
    ) as caught:
        Port("127.0.0.1", port.number, {})

    assert caught.value.code == "port_unavailable"


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_this_hosts_is_refused(host):
    with pytest.raises(PortUnavailable):
        Port(host, 0, {})


def test_a_closed_port_is_free_at_once(opened):
    port = opened()
    get(f"{port.url}/fine")
    port.close()

    again = Port("127.0.0.1", port.number, {})
    again.close()

"""
A network between workers and PostgreSQL that can be broken: `python -m testproject.chaos.proxy SOCKET`.

It listens on a free port of 127.0.0.1, says which, and takes one word a line on its standard input. It ends
with that. To whoever connects, a broken network looks alive: the kernel of the proxy acknowledges every byte.

  pass             bytes go through
  swallow          nothing goes through, nothing is closed, and nothing that was swallowed ever arrives
  forget           as if a firewall had forgotten the flows: what is open is swallowed for ever, new ones pass
  delay SECONDS    every piece arrives so much later
  cut, reset       every connection is closed, in order (FIN) or not (RST)
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

PIECE = 65536
_RESET = struct.pack("ii", 1, 0)


class Network:
    """Its state, and the flows that are open."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.swallows = False
        self.delay = 0.0
        self.flows: set[Flow] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection to its end."""
        flow = Flow(self, writer)
        self.flows.add(flow)
        try:
            await flow.carry(reader)
        finally:
            self.flows.discard(flow)

    def obey(self, words: list[str]) -> None:
        """Do what a line says."""
        match words:
            case ["pass"]:
                self.swallows, self.delay = False, 0.0
            case ["swallow"]:
                self.swallows = True
                for flow in self.flows:
                    flow.is_dead = True
            case ["forget"]:
                for flow in self.flows:
                    flow.is_dead = True
            case ["delay", seconds]:
                self.delay = float(seconds)
            case ["cut" | "reset" as how]:
                for flow in [*self.flows]:
                    flow.end(reset=how == "reset")
            case _:
                raise ValueError(words)


class Flow:
    """One connection: two directions that share a fate."""

    def __init__(self, network: Network, client: asyncio.StreamWriter) -> None:
        self.network, self.client = network, client
        self.server: asyncio.StreamWriter | None = None
        # What was dead once stays dead: bytes are missing.
        self.is_dead = network.swallows

    async def carry(self, reader: asyncio.StreamReader) -> None:
        """Carry both directions until either side closes. A dead flow's server never hears of its end."""
        try:
            if self.is_dead:
                await self._pump(reader, self.client)
                return
            from_server, self.server = await asyncio.open_unix_connection(self.network.path)
            pumps = {
                asyncio.create_task(self._pump(reader, self.server)),
                asyncio.create_task(self._pump(from_server, self.client)),
            }
            _, left = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            while self.is_dead and left:
                _, left = await asyncio.wait(left)
            for pump in left:
                pump.cancel()
        except OSError:
            pass
        finally:
            self.end(reset=False)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while piece := await source.read(PIECE):
                if self.network.delay:
                    await asyncio.sleep(self.network.delay)
                if not self.is_dead:
                    target.write(piece)
                    await target.drain()
        except OSError:
            return

    def end(self, *, reset: bool) -> None:
        """Close towards the client, and towards a server that is still reached."""
        if reset:
            self.client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.client.close()
        if self.server is not None and not self.is_dead:
            self.server.close()


async def serve(path: str) -> None:
    """Serve until standard input ends."""
    network = Network(path)
    server = await asyncio.start_server(network.accept, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        network.obey(line.decode().split())
        sys.stdout.write("done\n")
        sys.stdout.flush()
    # Not one flow is worth an orderly end.
    os._exit(0)


class Proxy:
    """The proxy's process, for whoever breaks the network."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "testproject.chaos.proxy", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).resolve().parent.parent.parent,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def tell(self, line: str) -> None:
        """Change the network; returns once it is changed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == b"done\n"

    def close(self) -> None:
        """End it, and every flow with it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))

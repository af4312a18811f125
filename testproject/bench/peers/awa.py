"""awa-pg with 1,024 workers of one process and 20 connections."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import awa

from testproject.bench import ran
from testproject.bench.peers.driver import Peer, in_parts, main

WORKERS = 1024
CONNECTIONS = 20


@dataclass
class Noop:
    number: int


class Awa(Peer):
    distribution = "awa-pg"
    settings = f"{WORKERS} workers, {CONNECTIONS} connections"

    def _client(self, connections: int) -> awa.AsyncClient:
        # Its driver wants a host name even where a socket's directory is given.
        return awa.AsyncClient(self.url.replace("@/", "@localhost/"), max_connections=connections)

    async def setup(self) -> None:
        client = self._client(4)
        await client.migrate()
        await client.install_queue_storage()
        await client.close()

    async def open(self) -> None:
        self.client = self._client(4)

    async def close(self) -> None:
        await self.client.close()

    async def enqueue(self, number: int) -> None:
        await self.client.insert(Noop(number), queue="bench")

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for part in in_parts(numbers, 5000):
            await self.client.enqueue_many_copy([Noop(number) for number in part], queue="bench")

    async def count_remaining(self) -> int:
        stats = [each for each in await self.client.queue_stats() if each.queue == "bench"]
        return sum(each.available + each.running + each.scheduled + each.retryable for each in stats)

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        client = self._client(CONNECTIONS)

        @client.task(Noop, queue="bench")
        async def noop(job: awa.Job) -> None:
            ran.note(job.args.number)

        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await client.start([("bench", WORKERS)])
        await stop.wait()
        await client.shutdown()


if __name__ == "__main__":
    main(Awa)

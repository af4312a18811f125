"""oban with uvloop, 100 jobs at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence

import uvloop
from oban import Oban, worker
from oban.schema import install

from testproject.bench import ran
from testproject.bench.peers.driver import Peer, in_parts, main

LIMIT = 100
CONNECTIONS = 10


# Both the client and the worker run this file, so both know it by the same dotted name.
@worker(queue="default")
class Noop:
    async def process(self, job: object) -> None:
        ran.note(job.args["number"])


class ObanPeer(Peer):
    distribution = "oban"
    settings = f"uvloop, limit {LIMIT}, {CONNECTIONS} connections"
    loop = "uvloop"
    remaining = (
        "select count(*) from oban_jobs where state in ('available', 'executing', 'scheduled', 'retryable')"
    )

    async def setup(self) -> None:
        pool = await Oban.create_pool(self.url, min_size=1, max_size=2)
        await install(pool)
        await pool.close()

    async def open(self) -> None:
        self.pool = await Oban.create_pool(self.url, min_size=1, max_size=2)
        self.oban = Oban(pool=self.pool)
        await self.oban.start()

    async def close(self) -> None:
        await self.oban.stop()
        await self.pool.close()

    async def enqueue(self, number: int) -> None:
        await self.oban.enqueue(Noop.new({"number": number}))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for part in in_parts(numbers, 1000):
            await self.oban.enqueue_many([Noop.new({"number": number}) for number in part])

    def work(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        pool = await Oban.create_pool(self.url, min_size=1, max_size=CONNECTIONS)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with Oban(pool=pool, queues={"default": LIMIT}, node=f"node-{os.getpid()}"):
            await stop.wait()
        await pool.close()


if __name__ == "__main__":
    main(ObanPeer)

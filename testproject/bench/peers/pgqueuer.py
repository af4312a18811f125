"""pgqueuer with asyncpg and uvloop, batches of 500."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from testproject.bench import ran
from testproject.bench.peers.driver import Peer, in_parts, main

BATCH = 500


class Pgqueuer(Peer):
    distribution = "pgqueuer"
    settings = f"asyncpg, uvloop, batch_size={BATCH}"
    loop = "uvloop"
    # What has ended leaves the table.
    remaining = "select count(*) from pgqueuer"

    async def setup(self) -> None:
        await self.open()
        await self.queries.install()
        await self.close()

    async def open(self) -> None:
        self.connection = await asyncpg.connect(self.url)
        self.queries = Queries(AsyncpgDriver(self.connection))

    async def close(self) -> None:
        await self.connection.close()

    async def enqueue(self, number: int) -> None:
        await self.queries.enqueue("noop", b"%d" % number, 0)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for part in in_parts(numbers, 1000):
            await self.queries.enqueue(
                ["noop"] * len(part), [b"%d" % number for number in part], [0] * len(part)
            )

    def work(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.url)))

        @queue.entrypoint("noop")
        async def noop(job: object) -> None:
            ran.note(int(job.payload))

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
        await queue.run(batch_size=BATCH)


if __name__ == "__main__":
    main(Pgqueuer)

"""chancy with its asyncio executor, 500 jobs at once, eager polling."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from chancy import Chancy, Queue, Worker, job

from testproject.bench import ran
from testproject.bench.peers.driver import Peer, main

CONCURRENCY = 500


@job(queue="bench")
async def noop(*, number: int) -> None:
    ran.note(number)


class ChancyPeer(Peer):
    distribution = "chancy"
    settings = f"async executor, concurrency {CONCURRENCY}, eager polling"
    remaining = "select count(*) from chancy_jobs where state in ('pending', 'running', 'retrying')"

    async def setup(self) -> None:
        async with Chancy(self.url) as chancy:
            await chancy.migrate()
            queue = Queue(
                "bench",
                concurrency=CONCURRENCY,
                executor=Chancy.Executor.Async,
                eager_polling=True,
                polling_interval=1,
            )
            await chancy.declare(queue, upsert=True)

    async def open(self) -> None:
        self.chancy = Chancy(self.url)
        await self.chancy.__aenter__()

    async def close(self) -> None:
        await self.chancy.__aexit__(None, None, None)

    async def enqueue(self, number: int) -> None:
        await self.chancy.push(noop.job.with_kwargs(number=number))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        async for _ in self.chancy.push_many([noop.job.with_kwargs(number=number) for number in numbers]):
            pass

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        # It logs every job at INFO otherwise.
        quiet = logging.getLogger("chancy.bench")
        quiet.setLevel(logging.WARNING)
        async with Chancy(self.url, log=quiet) as chancy, Worker(chancy) as worker:
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    main(ChancyPeer)

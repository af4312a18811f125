"""procrastinate with async tasks, 10 at once, finished jobs kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import procrastinate

from testproject.bench import ran
from testproject.bench.peers.driver import Peer, in_parts, main

CONCURRENCY = 10


class Procrastinate(Peer):
    distribution = "procrastinate"
    settings = f"async tasks, concurrency {CONCURRENCY}, {CONCURRENCY} connections"
    remaining = "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"

    def _app(self, connections: int) -> procrastinate.App:
        app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=self.url, min_size=1, max_size=connections)
        )

        @app.task(name="noop")
        async def noop(number: int) -> None:
            ran.note(number)

        self.noop = noop
        return app

    async def setup(self) -> None:
        app = self._app(2)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        self.app = self._app(2)
        await self.app.open_async()

    async def close(self) -> None:
        await self.app.close_async()

    async def enqueue(self, number: int) -> None:
        await self.noop.defer_async(number=number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for part in in_parts(numbers, 1000):
            await self.noop.batch_defer_async(*[{"number": number} for number in part])

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        app = self._app(CONCURRENCY)
        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY, wait=True, delete_jobs="never")


if __name__ == "__main__":
    main(Procrastinate)

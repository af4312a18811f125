"""dj-queue: one process of 8 threads, a prefetch of 4 for each."""

from __future__ import annotations

from collections.abc import Sequence

from testproject.bench.peers.django_peer import DjangoPeer
from testproject.bench.peers.driver import in_parts, main


class DjQueue(DjangoPeer):
    distribution = "dj-queue"
    settings = "one process, 8 threads, prefetch multiplier 4, finished jobs kept"
    remaining = "select count(*) from dj_queue_jobs where finished_at is null"

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        backend = self.noop.get_backend()
        for part in in_parts(numbers, 1000):
            backend.enqueue_all([(self.noop, [number], {}) for number in part])

    def worker_command(self) -> list[str]:
        return self.manage("dj_queue")


if __name__ == "__main__":
    main(DjQueue)

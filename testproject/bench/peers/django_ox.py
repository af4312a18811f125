"""django-ox: one process, 4 jobs at once."""

from __future__ import annotations

from collections.abc import Sequence

from testproject.bench.peers.django_peer import DjangoPeer
from testproject.bench.peers.driver import main


class DjangoOx(DjangoPeer):
    distribution = "django-ox"
    settings = "one process, concurrency 4"
    remaining = "select count(*) from django_ox_oxtask where status in ('READY', 'RUNNING')"

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        from django_ox.bulk import enqueue_many

        enqueue_many(self.noop, [((number,), {}) for number in numbers])

    def worker_command(self) -> list[str]:
        return self.manage("ox_worker", "--concurrency", "4")


if __name__ == "__main__":
    main(DjangoOx)

"""What the drivers of the peers share that are backends of Django's task framework."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from testproject.bench.peers.driver import Peer


class DjangoPeer(Peer):
    loop = "sync"

    def setup(self) -> None:
        os.environ.update(
            BENCH_PEER=self.distribution,
            BENCH_URL=self.url,
            DJANGO_SETTINGS_MODULE="testproject.bench.peers.django_settings",
        )
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)

    def open(self) -> None:
        from testproject.bench.peers.django_jobs import noop

        self.noop = noop

    def enqueue(self, number: int) -> Any:
        self.noop.enqueue(number)

    def enqueue_many(self, numbers: Sequence[int]) -> Any:
        for number in numbers:
            self.noop.enqueue(number)

    def manage(self, *arguments: str) -> list[str]:
        """Return how one of Django's commands is started."""
        return [sys.executable, "-m", "django", *arguments]

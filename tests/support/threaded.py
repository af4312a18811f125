"""An app that starts a thread while it loads, as agents that send traces do."""

from __future__ import annotations

import threading

from django.apps import AppConfig


class Threaded(AppConfig):
    name = "tests.support.threaded"
    label = "threaded"
    path = "tests/support"

    def ready(self) -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()

"""
Celery with Redis: what many would take instead. A reference only: it keeps no result, and Redis as packaged may lose
the jobs of the last seconds in a crash.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import redis
from celery import Celery

from testproject.bench import ran
from testproject.bench.peers.driver import Peer, main, not_run

VARIABLE = "BENCH_REDIS"

app = Celery("bench", broker=f"redis+socket://{os.environ.get(VARIABLE, '')}")
app.conf.update(task_ignore_result=True, task_acks_late=True, worker_prefetch_multiplier=16)


@app.task(name="noop")
def noop(number: int) -> None:
    ran.note(number)


class CeleryPeer(Peer):
    distribution = "celery"
    settings = "Redis as Debian packages it, solo pool, late acknowledgement, prefetch 16"
    loop = "sync"

    def setup(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            not_run("redis-server is not installed (on Debian and Ubuntu: apt-get install redis-server)")
        self.directory = tempfile.TemporaryDirectory(prefix="pgbroker-bench-")
        socket = str(Path(self.directory.name) / "redis")
        self.server = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", socket, "--dir", self.directory.name],
            stdout=subprocess.DEVNULL,
        )
        self.redis = redis.Redis(unix_socket_path=socket)
        deadline = time.monotonic() + 10
        while not Path(socket).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.environ[VARIABLE] = socket
        app.conf.broker_url = f"redis+socket://{socket}"

    def close(self) -> None:
        app.close()
        self.server.terminate()
        self.server.wait(10)
        self.directory.cleanup()

    def enqueue(self, number: int) -> None:
        noop.delay(number)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            noop.delay(number)

    def count_remaining(self) -> int:
        return int(self.redis.llen("celery") + self.redis.hlen("unacked"))

    def tidy(self) -> None:
        """Nothing: it has no database."""

    def worker_command(self) -> list[str]:
        application = "testproject.bench.peers.celery:app"
        options = ["-P", "solo", "-c", "1", "-l", "ERROR", "--without-gossip", "--without-mingle"]
        return [sys.executable, "-m", "celery", "-A", application, "worker", *options]


if __name__ == "__main__":
    main(CeleryPeer)

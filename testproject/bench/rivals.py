"""The peers as contestants of a rotation: each in its own environment, on a database of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from django.db import connection

from testproject.bench import environments, stage
from testproject.bench.compare import Figures, NotRun, against
from testproject.bench.rows import Scale

Mode = Literal["drain", "one", "many"]
PATIENCE_SECONDS = 400.0
# How a driver ends that cannot be measured here; the last line it wrote says why.
NOT_RUN = 3
DATABASE = "pgbroker_bench_peer"


@dataclass(kw_only=True)
class Rival:
    """One peer, and how many jobs make its run last some seconds."""

    name: str
    module: str
    drain: int
    one: int
    many: int
    reference: bool = False
    said: dict[str, Any] = field(default_factory=dict)

    def run(self, mode: Mode, scale: Scale) -> float:
        """Measure it once; jobs a second. Raises `NotRun` when it cannot be had here."""
        count = getattr(self, mode)
        count = scale.jobs or (max(100, count // 5) if scale.quick else count)
        python = environments.python_of(self.module)
        _make_database()
        try:
            done = subprocess.run(
                [str(python), "-m", f"testproject.bench.peers.{self.module}", mode, str(count), _url()],
                cwd=environments.CHECKOUT,
                env={**_clean_environment(), "PYTHONPATH": str(environments.CHECKOUT)},
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
        finally:
            _drop_database()
        if done.returncode == NOT_RUN:
            raise NotRun(done.stderr.strip().splitlines()[-1])
        if done.returncode != 0:
            raise AssertionError(f"{self.name} failed:\n{done.stderr[-3000:]}")
        self.said = json.loads(done.stdout)
        return float(self.said["rate"])

    def told(self) -> dict[str, Any]:
        """Return what it was, for the row."""
        return {key: self.said[key] for key in ("version", "python", "settings", "jobs") if key in self.said}


def all_rivals() -> dict[str, Rival]:
    """Return the peers anew, by name."""
    rivals = [
        Rival(name="pgqueuer", module="pgqueuer", drain=60_000, one=3_000, many=100_000),
        Rival(name="awa-pg", module="awa", drain=20_000, one=2_000, many=100_000),
        Rival(name="oban", module="oban", drain=20_000, one=2_000, many=20_000),
        Rival(name="chancy", module="chancy", drain=15_000, one=2_000, many=20_000),
        Rival(name="procrastinate", module="procrastinate", drain=3_000, one=2_000, many=50_000),
        Rival(name="django-tasks-db", module="django_tasks_db", drain=2_000, one=2_000, many=5_000),
        Rival(name="dj-queue", module="dj_queue", drain=3_000, one=1_000, many=20_000),
        Rival(name="django-ox", module="django_ox", drain=3_000, one=2_000, many=20_000),
        Rival(name="celery with Redis", module="celery", drain=5_000, one=3_000, many=5_000, reference=True),
    ]
    return {rival.name: rival for rival in rivals}


def contestants(rivals: Mapping[str, Rival], mode: Mode, scale: Scale) -> dict[str, Callable[[], float]]:
    """Return what to run in a rotation."""
    return {name: lambda rival=rival: rival.run(mode, scale) for name, rival in rivals.items()}  # type: ignore[misc]


def verdicts(figures: Figures, rivals: Mapping[str, Rival], *, at_least: float) -> list[dict[str, Any]]:
    """Compare pgbroker with each peer; a reference has no goal."""
    return [
        against(figures, "pgbroker", name, at_least=None if rival.reference else at_least, **rival.told())
        for name, rival in rivals.items()
    ]


def _clean_environment() -> dict[str, str]:
    left_out = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def _make_database() -> None:
    _drop_database()
    with connection.cursor() as cursor:
        cursor.execute(f"create database {DATABASE}")


def _drop_database() -> None:
    stage.drop_database(DATABASE)


def _url() -> str:
    """Write the peer's database as a URL that all their drivers read."""
    options = connection.get_connection_params()
    user = quote(options.get("user", ""), safe="")
    if password := options.get("password"):
        user += f":{quote(password, safe='')}"
    host, port = options.get("host", ""), options.get("port") or "5432"
    if host.startswith("/") or not host:
        return f"postgresql://{user}@/{DATABASE}?host={quote(host or '/var/run/postgresql', safe='/')}&port={port}"
    return f"postgresql://{user}@{host}:{port}/{DATABASE}"

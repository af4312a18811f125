"""How one worker process is to run: its flags, and the settings as they change them."""

import re
from dataclasses import asdict, dataclass
from typing import Any

from pgbroker.conf import Settings, problems, settings
from pgbroker.errors import InvalidOption


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How one worker process is to run; the flags of `broker_worker`."""

    queues: tuple[str, ...] = ()
    exclude_queues: tuple[str, ...] = ()
    concurrency: int = 8
    database: str | None = None
    lease_seconds: float | None = None
    poll_interval: float | None = None
    shutdown_timeout: float | None = None
    burst: bool = False
    max_jobs: int | None = None
    heartbeat_file: str | None = None
    name: str | None = None
    metrics_port: int | None = None
    # Where jobs run whose type does not say: "thread" or "process".
    executor: str = "thread"
    max_jobs_per_child: int | None = None
    # Of this process, and of each child.
    max_rss: int | None = None
    # Whether it is a scheduler too.
    with_scheduler: bool = False
    # The process that started this one and restarts it; without it there is nobody to work for.
    parent_pid: int | None = None


MOST_SLOTS = 1000
_NAME = re.compile(r"[A-Za-z0-9._:@-]{1,100}")


def checked_name(field: str, value: Any) -> str:
    """Return the name of a worker; raises `InvalidOption`."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidOption(field, f"is {value!r}", "Give 1 to 100 letters, digits or any of . _ : @ -")
    return value


def effective_settings(options: WorkerOptions) -> Settings:
    """Return the project's settings as this process's flags change them. Raises `InvalidSetting`."""
    chosen = settings()
    changes: dict[str, Any] = {}
    if options.lease_seconds is not None:
        changes["LEASE_SECONDS"] = options.lease_seconds
        # A shorter lease brings shorter heartbeats along: three must fit.
        changes["HEARTBEAT_SECONDS"] = min(chosen.HEARTBEAT_SECONDS, options.lease_seconds / 3)
        changes["REAP_SECONDS"] = min(chosen.REAP_SECONDS, max(options.lease_seconds / 3, 0.1))
    if options.poll_interval is not None:
        changes["POLL_SECONDS"] = options.poll_interval
    if options.shutdown_timeout is not None:
        changes["SHUTDOWN_TIMEOUT_SECONDS"] = options.shutdown_timeout
    if not changes:
        return chosen
    values, found = problems({**asdict(chosen), "BACKOFF": chosen.BACKOFF, **changes})
    if found:
        raise found[0]
    return Settings(**values)

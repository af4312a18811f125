"""
The process-wide settings: one dictionary, `PGBROKER`, read into a frozen `Settings`.

An unknown key or an unusable value names itself and the cure; the system checks report all of them
at once, `settings()` raises the first.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pgbroker.errors import InvalidOption, InvalidSetting
from pgbroker.errors.near_names import did_you_mean
from pgbroker.policy.backoff import Backoff, backoff_from

EVENT_MODES = ("all", "terminal", "off")
PARTITION_WIDTHS = ("day", "week", "month")

_Check = Callable[[str, Any], Any]


def _seconds(smallest: float, largest: float) -> _Check:
    def check(key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not smallest <= value <= largest:
            raise InvalidSetting(
                key, f"is {value!r}", f"Give a number of seconds from {smallest:g} to {largest:g}."
            )
        return float(value)

    return check


def _optional_seconds(smallest: float, largest: float) -> _Check:
    inner = _seconds(smallest, largest)
    return lambda key, value: None if value is None else inner(key, value)


def _whole(smallest: int, largest: int) -> _Check:
    def check(key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
            raise InvalidSetting(key, f"is {value!r}", f"Give a whole number from {smallest} to {largest}.")
        return value

    return check


def _optional_whole(smallest: int, largest: int) -> _Check:
    inner = _whole(smallest, largest)
    return lambda key, value: None if value is None else inner(key, value)


def _host(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value or any(each.isspace() for each in value):
        raise InvalidSetting(key, f"is {value!r}", "Give an address of this host, or a name of it.")
    return value


def _choice(*choices: str) -> _Check:
    def check(key: str, value: Any) -> str:
        if value not in choices:
            raise InvalidSetting(key, f"is {value!r}", f"Choose one of: {', '.join(choices)}.")
        return str(value)

    return check


def _boolean(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidSetting(key, f"is {value!r}", "Give True or False.")
    return value


def _aliases(key: str, value: Any) -> tuple[str, ...]:
    usable = isinstance(value, (list, tuple)) and value and all(isinstance(one, str) and one for one in value)
    if not usable:
        raise InvalidSetting(key, f"is {value!r}", "Give a list of aliases of DATABASES, at least one.")
    return tuple(value)


def _alias(key: str, value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidSetting(key, f"is {value!r}", "Give an alias of DATABASES, or None for the same alias.")
    return value


def _storage(key: str, value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidSetting(
            key, f"is {value!r}", "Give an alias of STORAGES, or None to refuse what is too large."
        )
    return value


def _project(key: str, value: Any) -> str | None:
    usable = (
        isinstance(value, str) and 0 < len(value) <= 100 and value.isprintable() and value == value.strip()
    )
    if value is not None and not usable:
        raise InvalidSetting(
            key, f"is {value!r}", "Give a name of this project, or None for the package of its settings."
        )
    return None if value is None else str(value)


def _backoff(key: str, value: Any) -> Backoff:
    try:
        return backoff_from(value, field=key)
    except InvalidOption as error:
        raise InvalidSetting(key, error.trouble, error.cure) from error


_BACKOFF = Backoff()


def _key(default: Any, check: _Check, meaning: str) -> Any:
    return field(default=default, metadata={"check": check, "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every key of `PGBROKER` with its default; the reference page is made from this class."""

    DATABASES: tuple[str, ...] = _key(
        ("default",), _aliases, "Aliases of DATABASES that this project's workers serve; all PostgreSQL."
    )
    LEASE_SECONDS: float = _key(60.0, _seconds(1, 86400), "How long a claim holds a job without a heartbeat.")
    HEARTBEAT_SECONDS: float = _key(
        15.0, _seconds(0.1, 28800), "How often a worker extends its leases; a third of the lease at most."
    )
    POLL_SECONDS: float = _key(
        5.0, _seconds(0.05, 3600), "How often an idle worker looks for work that no notification told of."
    )
    REAP_SECONDS: float = _key(15.0, _seconds(0.1, 3600), "How often expired leases are taken back.")
    LEADER_SECONDS: float = _key(
        10.0,
        _seconds(1, 3600),
        "How long a leader's lease lasts without renewal; another worker leads within two seconds more.",
    )
    SAMPLE_SECONDS: float = _key(15.0, _seconds(1, 86400), "How often the depth of the queues is recorded.")
    MAX_ATTEMPTS: int = _key(5, _whole(1, 10_000), "Attempts a job gets when its type does not say.")
    MAX_CRASHES: int = _key(
        3,
        _whole(1, 10_000),
        "Lost workers or child processes after which a job is a dead letter.",
    )
    BACKOFF: Backoff = _key(  # noqa: RUF009
        _BACKOFF, _backoff, "Wait before a retry: seconds, or a mapping of base, factor, cap and jitter."
    )
    TIMEOUT_SECONDS: float | None = _key(
        None,
        _optional_seconds(0.01, 30 * 86400),
        "Longest attempt when the type does not say; None: no limit.",
    )
    AGEING_SECONDS: float = _key(
        60.0,
        _seconds(0, 315_360_000),
        "One step of priority is worth so many seconds of waiting; ten years make priority strict.",
    )
    PREFETCH_MAX: int = _key(500, _whole(0, 10_000), "Most jobs a worker holds that do not run yet.")
    CLAIM_MAX: int = _key(500, _whole(1, 10_000), "Most jobs one claim takes.")
    SETTLE_MAX: int = _key(500, _whole(1, 10_000), "Most outcomes one settle writes.")
    MAX_PAYLOAD_BYTES: int = _key(
        256 * 1024, _whole(64, 64 * 1024 * 1024), "Largest encoded arguments that a row holds."
    )
    MAX_RESULT_BYTES: int = _key(
        256 * 1024, _whole(64, 64 * 1024 * 1024), "Largest encoded result that a row holds."
    )
    MAX_ERROR_BYTES: int = _key(
        64 * 1024, _whole(256, 16 * 1024 * 1024), "Longest stored error text, and traceback; the rest is cut."
    )
    MAX_LOG_BYTES: int = _key(
        64 * 1024,
        _whole(0, 16 * 1024 * 1024),
        "Longest tail of a handler's log kept with an attempt; 0: none.",
    )
    BODY_STORAGE: str | None = _key(
        None, _storage, "Alias of STORAGES that holds larger arguments and results; None: they are refused."
    )
    EVENTS: str = _key(
        "terminal", _choice(*EVENT_MODES), "Which changes of a job are recorded: all, terminal or off."
    )
    NOTIFY: bool = _key(True, _boolean, "Wake idle workers after commit; without it they poll.")
    LISTEN_DATABASE: str | None = _key(
        None, _alias, "Alias that reaches the server directly, where the other goes through a pooler."
    )
    LISTEN_RETRY_SECONDS: float = _key(
        5.0, _seconds(0.05, 3600), "Longest wait between tries to listen again after the connection broke."
    )
    PARTITION: str = _key("day", _choice(*PARTITION_WIDTHS), "Width of a partition of the history tables.")
    SHUTDOWN_TIMEOUT_SECONDS: float = _key(
        30.0, _seconds(0, 86400), "How long a stopping worker waits for running jobs."
    )
    METRICS_HOST: str = _key(
        "127.0.0.1",
        _host,
        "Address on which a worker answers Prometheus and probes; 0.0.0.0: on all of them.",
    )
    METRICS_PORT: int | None = _key(
        None,
        _optional_whole(0, 65535),
        "Port on which each worker answers Prometheus and probes; 0: any free one, None: no port.",
    )
    UNKNOWN_TYPE_GRACE_SECONDS: float = _key(
        600.0,
        _seconds(0, 30 * 86400),
        "How long a job of an unknown type is put back before it is dead-lettered.",
    )
    PROJECT: str | None = _key(
        None,
        _project,
        "Whose schedules the code declares, where several projects share a database; None: the first part of "
        "DJANGO_SETTINGS_MODULE.",
    )
    KEEP_SCHEDULE_RUNS_SECONDS: float | None = _key(
        90 * 86400.0,
        _optional_seconds(3600, 315_360_000),
        "How long it is kept what became of a schedule's ticks; None: for ever.",
    )


KEYS = {entry.name: entry for entry in dataclasses.fields(Settings)}


def problems(raw: object) -> tuple[dict[str, Any], list[InvalidSetting]]:
    """Return the usable values of a `PGBROKER` dictionary, and what is wrong with the others."""
    if not isinstance(raw, Mapping):
        return {}, [InvalidSetting("", f"PGBROKER is {raw!r}", "Make it a dictionary.")]
    values: dict[str, Any] = {}
    found: list[InvalidSetting] = []
    for key, value in raw.items():
        if key not in KEYS:
            cure = did_you_mean(str(key), KEYS) or f"Known keys: {', '.join(KEYS)}."
            found.append(InvalidSetting(str(key), "is not a setting", cure))
            continue
        try:
            values[key] = KEYS[key].metadata["check"](key, value)
        except InvalidSetting as error:
            found.append(error)
    chosen = Settings(**values)
    if chosen.LEASE_SECONDS < 3 * chosen.HEARTBEAT_SECONDS:
        found.append(
            InvalidSetting(
                "HEARTBEAT_SECONDS",
                f"is {chosen.HEARTBEAT_SECONDS:g}, more than a third of LEASE_SECONDS ({chosen.LEASE_SECONDS:g})",
                "A lease must survive two lost heartbeats: lower the one or raise the other.",
            )
        )
    return values, found


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the project's settings; raises `InvalidSetting` for the first that cannot be used."""
    from django.conf import settings as django_settings

    values, found = problems(getattr(django_settings, "PGBROKER", {}))
    if found:
        raise found[0]
    return Settings(**values)


def project() -> str:
    """Return the name by which this project's schedules are told from those of others in the same database."""
    return settings().PROJECT or os.environ.get("DJANGO_SETTINGS_MODULE", "project").partition(".")[0]


def forget(*, setting: str, **_: Any) -> None:
    """Read `PGBROKER` again at its next use; receiver of Django's `setting_changed`."""
    if setting == "PGBROKER":
        settings.cache_clear()

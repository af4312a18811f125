"""Log lines for events, with the keys that are API. A subscriber of telemetry; nothing imports it."""

import logging
from typing import Any

from pgbroker import telemetry

_log = logging.getLogger("pgbroker")
LONGEST = 500
_OBJECTS = frozenset({"attempt", "ended", "exception", "worker", "leases", "batch", "statuses", "created"})


def wants(event: str) -> bool:
    """Tell whether a line about *event* would be written."""
    return _log.isEnabledFor(telemetry.EVENTS[event][0])


def write(event: str, keys: dict[str, Any]) -> None:
    """Write one line: a constant sentence, the facts in its keys."""
    level, sentence = telemetry.EVENTS[event]
    facts = {
        name: _one_line(value) if isinstance(value, str) else value
        for name, value in keys.items()
        if value is not None and name not in _OBJECTS
    }
    shown = " ".join(f"{name}={_short(value)}" for name, value in facts.items())
    # `name` and the like belong to the record itself.
    extra = {"event": event, **{key: facts.get(key) for key in telemetry.KEYS if key != "event"}}
    _log.log(level, "%s %s", sentence, shown, extra=extra, exc_info=keys.get("exception"))


def _short(value: object) -> object:
    """Write a measured number to the microsecond; the record's attribute keeps all of it."""
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def _one_line(text: str) -> str:
    """Keep a line a line: an error's text may be long, or have several."""
    shown = " ".join(text.split())
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"


def serve_logs() -> None:
    """Write log lines for the events of this process."""
    telemetry.subscribe(write, wants=wants)

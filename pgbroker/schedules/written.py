"""Whether what the code declares can be stored, as far as can be told without a database."""

from collections.abc import Mapping
from typing import Any

from pgbroker import payload
from pgbroker.errors import InvalidSchedule, PgBrokerError
from pgbroker.registry import names
from pgbroker.schedules.declare import Declared
from pgbroker.schedules.definition import Definition, Trouble, troubles_of
from pgbroker.schedules.entries import CALLBACKS


def written(declared: Declared) -> tuple[Definition | None, str]:
    """Return what one says; None and the reason where it cannot be written, which stops no other."""
    try:
        definition = declared.definition
        if troubles := troubles_of(definition) or troubles_of_arguments(definition):
            raise InvalidSchedule(definition.name, troubles)
        _ = definition.fingerprint
    except Exception as error:  # whatever a handler's signature or an argument raises
        return None, told(error)
    return definition, ""


def told(error: Exception) -> str:
    """Say why a declaration cannot be stored."""
    return error.message if isinstance(error, PgBrokerError) else f"{type(error).__name__}: {error}".strip()


def troubles_of_arguments(definition: Definition) -> list[Trouble]:
    """Read arguments as the handlers would that this process knows, and refuse names that nobody has."""
    troubles = []
    known = names()
    for entry in _entries(definition):
        job_type = known.get(str(entry.get("job_type")))
        envelope = entry.get("args") or {"v": payload.ENVELOPE_VERSION, "args": [], "kwargs": {}}
        if job_type is None:
            continue
        try:
            payload.decode(job_type.signature, envelope)
        except PgBrokerError as error:
            # What an argument lacks is for whoever writes it now; what a stored one lacks has other cures.
            path, trouble = error.details.get("path"), error.details.get("trouble")
            which = f"argument {path} {trouble}" if path and trouble else error.message.rstrip(".")
            why = f"has arguments that do not fit {job_type.key}: {which.rstrip('.')}"
            troubles.append(Trouble("template", why, "Correct args and kwargs.", error.code))
    return troubles


def _entries(definition: Definition) -> list[Mapping[str, Any]]:
    group = definition.group if isinstance(definition.group, Mapping) else {}
    called = [group.get(each) for each in CALLBACKS]
    return [*definition.jobs, *(each for each in called if isinstance(each, Mapping))]

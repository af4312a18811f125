"""What `.options()` takes: pgbroker's own options of one call, checked where they are written."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Protocol

from pgbroker.errors import InvalidOption
from pgbroker.errors.near_names import did_you_mean
from pgbroker.policy.backoff import Backoff, backoff_from
from pgbroker.policy.values import duration, elements, instant, one_of, text, whole
from pgbroker.references import Reference, checked_policy, group_name_of, references_of
from pgbroker.references import checked_name as checked_member_name

SCOPES = ("held", "live", "retained", "window")
ON_CONFLICT = ("return", "reject", "replace")
LONGEST_WINDOW = timedelta(days=3660)
MOST_TAGS, LONGEST_TAG = 20, 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9._:-]{1,63}")
_TYPE_NAME = re.compile(r"[A-Za-z0-9._:-]{1,200}")


# What `.using()` takes, as Django's own tasks do.
DJANGO_OPTIONS = frozenset({"priority", "queue_name", "run_after", "backend"})


class Keyed(Protocol):
    """A task, of which only the key of its job type is of interest."""

    @property
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one enqueue; None means what the type or the setting says."""

    idempotency_key: str | None = None
    idempotency_scope: str | None = None
    window: timedelta | None = None
    on_conflict: str | None = None
    deadline: datetime | timedelta | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout: timedelta | None = None
    tags: tuple[str, ...] | None = None
    on_exhausted: "Keyed | str | None" = None
    correlation_id: str | None = None
    tenant: str | None = None
    depends_on: tuple[Reference, ...] | None = None
    on_failure: str | None = None
    group: str | None = None
    name: str | None = None

    def but(self, changes: Mapping[str, Any]) -> "Options":
        """Return these options with *changes*, each checked; an unknown name is refused."""
        checked = {}
        for name, value in changes.items():
            if name not in _CHECKS:
                if name in DJANGO_OPTIONS:
                    raise InvalidOption(name, "is Django's own", f"Give it to .using({name}=...).")
                cure = did_you_mean(name, _CHECKS) or f"Known: {', '.join(_CHECKS)}."
                if near := get_close_matches(name, DJANGO_OPTIONS, n=1):
                    cure = f"Did you mean .using({near[0]}=...)?"
                raise InvalidOption(name, "is not an option", cure)
            checked[name] = None if value is None else _CHECKS[name](name, value)
        # As dataclasses.replace would, in a quarter of the time: linked calls have options each.
        options = object.__new__(Options)
        for name in _CHECKS:
            object.__setattr__(options, name, checked[name] if name in checked else getattr(self, name))
        return options

    def refuse_if_at_odds(self, *, in_group: str | None = None) -> None:
        """
        Refuse options that mean nothing together; raises `InvalidOption`.

        Asked when a call is enqueued, into a group perhaps: `.options()` may be given one after the other.
        """
        if (self.idempotency_scope == "window") != (self.window is not None):
            if self.window is None:
                raise InvalidOption(
                    "window", "is missing", "Say how long idempotency_scope='window' holds the key."
                )
            raise InvalidOption(
                "window",
                f"was given with idempotency_scope={self.idempotency_scope!r}",
                "Give idempotency_scope='window', or leave it out.",
            )
        if self.idempotency_key is None:
            what = ""
            if self.on_conflict == "replace":
                what = "on_conflict='replace'"
            elif self.window is not None:
                what = "window"
            elif self.idempotency_scope is not None:
                what = f"idempotency_scope={self.idempotency_scope!r}"
            if what:
                raise InvalidOption("idempotency_key", "is missing", f"{what} is nothing without one.")
        if self.group is not None and in_group not in (None, self.group):
            raise InvalidOption("group", f"is {self.group!r}, in a call for {in_group!r}", "Leave it out.")
        if self.name is not None and self.group is None and in_group is None:
            raise InvalidOption(
                "name", "is for a job in a run group", "Give group too, or find the job by its id or key."
            )
        if self.on_failure is not None and self.depends_on is None:
            raise InvalidOption("depends_on", "is missing", "on_failure is nothing without it.")


def checked_name(field_name: str, value: object) -> str:
    """Return *value* if it can name a job type; raises `InvalidOption`."""
    if not isinstance(value, str) or not _TYPE_NAME.fullmatch(value):
        raise InvalidOption(
            field_name, f"is {value!r}", "Use 1 to 200 characters of A-Z, a-z, 0-9, '.', '_', ':', '-'."
        )
    return value


def checked_queue(value: object) -> str:
    """Return *value* if it can name a queue; raises `InvalidOption`."""
    if not isinstance(value, str) or not _QUEUE_NAME.fullmatch(value):
        raise InvalidOption(
            "queue_name", f"is {value!r}", "Use 1 to 63 characters of A-Z, a-z, 0-9, '.', '_', ':', '-'."
        )
    return value


def checked_tag(field: str, value: Any) -> str:
    """Return *value* if it can be a tag; raises `InvalidOption`."""
    tag: str = text(LONGEST_TAG)(field, value)
    if _CONTROL.search(tag) or tag != tag.strip(" "):
        raise InvalidOption(
            field, f"has {tag!r}, with a control character or with a space at an end", "Remove it."
        )
    return tag


def checked_tags(field: str, value: Any) -> tuple[str, ...]:
    """Return tags, each once, in the order given; raises `InvalidOption`."""
    tags = tuple(
        dict.fromkeys(checked_tag(field, each) for each in elements(field, value, "Give a list of strings."))
    )
    if len(tags) > MOST_TAGS:
        raise InvalidOption(field, f"has {len(tags)} elements", f"Give at most {MOST_TAGS}.")
    return tags


def checked_exhausted(field: str, value: Any) -> "Keyed | str":
    """Return a task, or what can be the name of a job type; raises `InvalidOption`. A task's key is asked later."""
    if isinstance(value, str):
        return checked_name(field, value)
    if not hasattr(type(value), "key"):
        raise InvalidOption(field, f"is {value!r}", "Give a job, or the name of a job type.")
    task: Keyed = value
    return task


def _deadline(field: str, value: Any) -> datetime | timedelta:
    if isinstance(value, datetime):
        return instant(field, value)
    return duration(field, value, longest=timedelta(days=3660))


def _tenant(field: str, value: Any) -> str:
    from pgbroker.tenancy import checked_tenant

    return checked_tenant(value)


_CHECKS: dict[str, Any] = {
    "idempotency_key": text(255),
    "idempotency_scope": one_of(*SCOPES),
    "window": lambda field, value: duration(field, value, longest=LONGEST_WINDOW),
    "on_conflict": one_of(*ON_CONFLICT),
    "deadline": _deadline,
    "max_attempts": lambda field, value: whole(field, value, 1, 10_000),
    "backoff": lambda field, value: backoff_from(value, field=field),
    "timeout": duration,
    "tags": checked_tags,
    "on_exhausted": checked_exhausted,
    "correlation_id": text(255),
    "tenant": _tenant,
    "depends_on": references_of,
    "on_failure": checked_policy,
    "group": group_name_of,
    "name": checked_member_name,
}
OPTION_NAMES = frozenset(_CHECKS)
# What a call is linked to, as against what becomes of it: two calls may differ in nothing else.
LINKS = frozenset({"depends_on", "on_failure", "group", "name"})
assert set(_CHECKS) == {field.name for field in fields(Options)}

"""What a schedule says, whoever says it: code, the admin or a command; and everything that may be wrong with it."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pgbroker.errors import CronNeverFires, InvalidCron, InvalidOption, InvalidTimeZone, PgBrokerError
from pgbroker.lifecycle.schedule import ScheduleLine
from pgbroker.policy import misfire, overlap
from pgbroker.policy.cron import Ambiguous, Cron, Nonexistent, parse
from pgbroker.policy.durations import duration_of
from pgbroker.policy.values import instant

LONGEST_NAME = 200
LONGEST_JITTER = timedelta(days=1)
MOST_JOBS = 1_000
# What only the moment of a tick can say, or would keep the next tick's job from being another one.
NOT_OF_A_TEMPLATE = {
    "id": "The schedule makes a new job each time.",
    "group": "The schedule opens a run group of its own each time.",
    "available_at": "The schedule says when.",
    "delay_seconds": "The schedule says when: give another expression, or jitter.",
    "deadline_at": "Give deadline as a timedelta, which counts from the tick's job on.",
    "idempotency_key": "Each tick is created once without one; overlap says what becomes of it while another runs.",
    "idempotency_scope": "Leave it out, as the key.",
    "window_seconds": "Leave it out, as the key.",
    "on_conflict": "Leave it out, as the key.",
    "args_body": "Arguments of a schedule stand in its template: give an id of what is large.",
}


class Trouble(NamedTuple):
    """One thing that is wrong with a schedule: *field* is a column of its row."""

    field: str
    trouble: str
    cure: str
    code: str = "invalid_option"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """
    What a schedule says.

    *jobs* are entries as `pgbroker.enqueue_many_1` takes them; one without a name is a job, anything else a run
    group, whose options (`tolerate_count`, `on_completed` and so on) *group* has.
    """

    name: str
    expression: str
    time_zone: str
    jobs: Sequence[Mapping[str, Any]]
    group: Mapping[str, Any] | None = None
    ambiguous: str = "auto"
    nonexistent: str = "auto"
    misfire: str = "run_once"
    misfire_count: int = 100
    misfire_window: timedelta = timedelta(days=7)
    overlap: str = "allow"
    jitter: timedelta = timedelta(0)
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    enabled: bool = True

    @classmethod
    def of(cls, line: ScheduleLine) -> "Definition":
        """Return what a stored schedule says."""
        return cls(
            name=line.name,
            expression=line.expression,
            time_zone=line.time_zone,
            jobs=line.template.get("jobs", ()),
            group=line.template.get("group"),
            ambiguous=line.ambiguous,
            nonexistent=line.nonexistent,
            misfire=line.misfire,
            misfire_count=line.misfire_count,
            misfire_window=timedelta(seconds=line.misfire_window_seconds),
            overlap=line.overlap,
            jitter=timedelta(seconds=line.jitter_seconds),
            starts_at=line.starts_at,
            ends_at=line.ends_at,
            enabled=line.enabled,
        )

    @property
    def template(self) -> dict[str, Any]:
        """What the row keeps of jobs and group."""
        template: dict[str, Any] = {"jobs": [dict(each) for each in self.jobs]}
        if self.group:
            template["group"] = dict(self.group)
        return template

    @property
    def row(self) -> dict[str, Any]:
        """The columns that say it."""
        return {
            "name": self.name,
            "expression": self.expression,
            "time_zone": self.time_zone,
            "template": self.template,
            "ambiguous": self.ambiguous,
            "nonexistent": self.nonexistent,
            "misfire": self.misfire,
            "misfire_count": self.misfire_count,
            "misfire_window_seconds": self.misfire_window.total_seconds(),
            "overlap": self.overlap,
            "jitter_seconds": self.jitter.total_seconds(),
            "starts_at": self.starts_at,
            "ends_at": self.ends_at,
            "enabled": self.enabled,
        }

    @property
    def fingerprint(self) -> str:
        """A digest of all of it but *enabled*: another one as soon as anything is said otherwise."""
        said = {name: value for name, value in self.row.items() if name != "enabled"}
        for name in ("starts_at", "ends_at"):
            said[name] = None if said[name] is None else said[name].timestamp()
        written = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(written.encode()).hexdigest()[:32]

    @property
    def cron(self) -> Cron:
        """Its expression in its zone; raises what `parse` raises."""
        return parse(
            self.expression,
            self.time_zone,
            ambiguous=self.ambiguous,
            nonexistent=self.nonexistent,
            start=self.starts_at,
            end=self.ends_at,
        )


def troubles_of(definition: Definition, *, now: datetime | None = None) -> list[Trouble]:
    """
    List everything that is wrong with a definition, all that can be told without the database.

    With *now* also that it never fires after that instant, if it is enabled.
    """
    return [
        *_of_name(definition),
        *_of_timing(definition, now),
        *_of_policies(definition),
        *_of_jobs(definition),
    ]


def _of_name(said: Definition) -> Iterator[Trouble]:
    name: Any = said.name
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
        yield Trouble("name", "is empty or too long", f"Give 1 to {LONGEST_NAME} characters.")
    elif not name.isprintable() or name != name.strip():
        yield Trouble("name", f"is {name!r}, with a control character or a space at an end", "Remove it.")


def _of_timing(said: Definition, now: datetime | None) -> Iterator[Trouble]:
    bounds = True
    for name in ("starts_at", "ends_at"):
        value = getattr(said, name)
        if value is None:
            continue
        try:
            instant(name, value)
        except InvalidOption as error:
            bounds = False
            yield Trouble(name, error.trouble, error.cure, error.code)
    readable = True
    # One after the other, so that two mistakes are told at once.
    for text, zone in ((said.expression, "UTC"), ("* * * * *", said.time_zone)):
        try:
            parse(text, zone)
        except InvalidCron as error:
            readable = False
            yield _of_cron(error)
        except InvalidTimeZone as error:
            readable = False
            yield Trouble("time_zone", f"is {error.zone!r}, which there is not", error.cure, error.code)
    if bounds and said.starts_at is not None and said.ends_at is not None and said.ends_at < said.starts_at:
        bounds = False
        yield Trouble(
            "ends_at", f"is {said.ends_at.isoformat()}, before the start", "Give one that is later."
        )
    if not readable or not bounds:
        return
    if now is None or not said.enabled:
        return
    try:
        said.cron.must_fire_after(now)
    except CronNeverFires as error:
        ended = said.ends_at is not None and said.ends_at <= now
        yield Trouble("ends_at" if ended else "expression", error.trouble, error.cure, error.code)
    except PgBrokerError:
        pass  # A choice that there is not: told with the policies.


def _of_cron(error: InvalidCron) -> Trouble:
    where = "" if error.field == "expression" else f"{error.field}, "
    return Trouble("expression", f"{error.trouble} ({where}column {error.position})", error.cure, error.code)


def _of_policies(said: Definition) -> Iterator[Trouble]:
    for name, choices in (
        ("ambiguous", Ambiguous),
        ("nonexistent", Nonexistent),
        ("misfire", misfire.Policy),
        ("overlap", overlap.Policy),
    ):
        if getattr(said, name) not in [str(each) for each in choices]:
            yield Trouble(
                name, f"is {getattr(said, name)!r}", f"Choose one of: {', '.join(map(str, choices))}."
            )
    count: Any = said.misfire_count
    if not isinstance(count, int) or not 1 <= count <= misfire.MOST_MAX:
        yield Trouble("misfire_count", f"is {count!r}", f"Give 1 to {misfire.MOST_MAX:,}.")
    if not timedelta(0) < said.misfire_window <= misfire.LONGEST_STOP:
        yield Trouble(
            "misfire_window_seconds",
            f"is {duration_of(said.misfire_window)}",
            f"Give more than nothing and at most {misfire.LONGEST_STOP.days:,} days.",
        )
    if not timedelta(0) <= said.jitter <= LONGEST_JITTER:
        yield Trouble(
            "jitter_seconds",
            f"is {duration_of(said.jitter)}",
            "Give nothing, or at most a day.",
        )


def _of_jobs(said: Definition) -> Iterator[Trouble]:
    if not said.jobs:
        yield Trouble(
            "template",
            "has no job",
            'Give task.bind(...) in code, or {"jobs": [{"job_type": "app.name", ...}]} in a template.',
        )
    elif len(said.jobs) > MOST_JOBS:
        yield Trouble("template", f"has {len(said.jobs)} jobs", f"Give at most {MOST_JOBS}.")
    entries: Sequence[Any] = said.jobs
    for place, entry in enumerate(entries, 1):
        where = f"job {place}" if len(said.jobs) > 1 else "the job"
        if not isinstance(entry, Mapping):
            yield Trouble(
                "template",
                f"{where} is a {type(entry).__name__}",
                'Give an object such as {"job_type": "app.name"}.',
            )
            continue
        for name, cure in NOT_OF_A_TEMPLATE.items():
            if entry.get(name) is not None:
                yield Trouble("template", f"{where} says {name}", cure)
        if (unwritable := _unwritable(entry)) is not None:
            yield Trouble("template", f"{where} has {unwritable}", "Leave it out.")
    only = entries[0] if len(entries) == 1 else None
    if (unwritable := _unwritable(said.group)) is not None:
        yield Trouble("template", f"the group has {unwritable}", "Leave it out.")
    elif said.group and isinstance(only, Mapping) and not only.get("name"):
        yield Trouble(
            "template",
            "has a group, and one job without a name, which is in no run group",
            "Leave the group out, or give the job a name.",
        )


def _unwritable(value: Any) -> str | None:
    """Say what in a value the database cannot keep as JSON, None when it can."""
    match value:
        case float() if not math.isfinite(value):
            return "a number that JSON does not know"
        case str() if not _is_text(value):
            return "text with a NUL or half a character"
        case Mapping():
            return next(filter(None, map(_unwritable, (*value.keys(), *value.values()))), None)
        case list():
            return next(filter(None, map(_unwritable, value)), None)
    return None


def _is_text(value: str) -> bool:
    return "\x00" not in value and not any("\ud800" <= each <= "\udfff" for each in value)

"""Schedules that the code declares: `schedule(...)` in jobs.py. Nothing touches the database at import."""

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from inspect import signature
from typing import Any
from zoneinfo import ZoneInfo

from pgbroker.correlation import DEFAULT_TENANT
from pgbroker.errors import DuplicateSchedule, InvalidOption, InvalidSchedule
from pgbroker.policy.misfire import Policy as MisfirePolicy
from pgbroker.policy.values import elements, named
from pgbroker.registry import Call, JobTask
from pgbroker.schedules.definition import Definition, Trouble, troubles_of
from pgbroker.schedules.entries import entries, group_entry, troubles_of_group
from pgbroker.shared_rows import database_of
from pgbroker.tenancy import checked_tenant


@dataclass(frozen=True, kw_only=True)
class CatchUp:
    """Make up for the latest *most* ticks that were missed, none of them older than *window*."""

    most: int = 100
    window: timedelta = timedelta(days=7)


@dataclass(frozen=True)
class Declared:
    """A schedule as the code says it. Keys and arguments are worked out when it is stored: apps must be ready."""

    name: str
    tenant: str
    calls: tuple[Call, ...]
    said: Mapping[str, Any] = field(repr=False)

    @property
    def database(self) -> str:
        """The alias that its jobs are stored in."""
        return database_of(self.calls[0].task)

    @property
    def definition(self) -> Definition:
        """What it says, with keys of job types and encoded arguments; raises what a call of the jobs would."""
        said = {**self.said, "group": group_entry(self.said["group"], using=self.database)}
        return Definition(name=self.name, jobs=list(entries(self.calls)), **said)


class _Declarations:
    """The schedules that this process has seen declared, by tenant and name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Declared] = {}

    def add(self, declared: Declared) -> None:
        """Register one; the same again, of a reloaded module, takes the place of the former."""
        with self._lock:
            other = self._known.get((declared.tenant, declared.name))
            if other is not None and _place(other) != _place(declared):
                raise DuplicateSchedule(declared.name, declared.tenant)
            self._known[declared.tenant, declared.name] = declared

    def all(self) -> list[Declared]:
        """List them, in the order of tenants and names."""
        with self._lock:
            return [self._known[key] for key in sorted(self._known)]

    def forget(self, name: str, tenant: str = DEFAULT_TENANT) -> None:
        """Drop one, as if the code did not have it any more."""
        with self._lock:
            self._known.pop((tenant, name), None)


declarations = _Declarations()


def schedule(
    name: str,
    job: JobTask[Any, Any] | Call | Sequence[JobTask[Any, Any] | Call],
    *,
    cron: str,
    timezone: str | ZoneInfo,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    ambiguous: str = "auto",
    nonexistent: str = "auto",
    misfire: str | CatchUp = "run_once",
    overlap: str = "allow",
    jitter: float | timedelta = 0,
    start: datetime | None = None,
    end: datetime | None = None,
    tenant: str = DEFAULT_TENANT,
    group: Mapping[str, Any] | None = None,
) -> Declared:
    """
    Declare that *job* is enqueued whenever *cron* fires on the clock of *timezone*, with *args* and *kwargs*.

    *job* is a task, a call (`task.bind(...)`), or a list of them that may wait for each other: then each tick is a run
    group of its own. The row is made when a scheduler starts, and disabled once the code no longer has it. *misfire*
    is skip, run_once, catch_up or a `CatchUp`; *overlap* allow, skip, buffer_one or cancel_other; *jitter* the
    longest wait in seconds. *group* is what `run_group` takes, for the run group of each tick: tolerate, on_completed,
    on_failed, depends_on and on_failure. Raises `InvalidSchedule` where it is written, with everything that is wrong.
    """
    catch_up = misfire if isinstance(misfire, CatchUp) else CatchUp()
    said: dict[str, Any] = {
        "expression": cron,
        "time_zone": timezone.key if isinstance(timezone, ZoneInfo) else timezone,
        "group": group,
        "ambiguous": ambiguous,
        "nonexistent": nonexistent,
        "misfire": str(MisfirePolicy.CATCH_UP) if isinstance(misfire, CatchUp) else misfire,
        "misfire_count": catch_up.most,
        "misfire_window": catch_up.window,
        "overlap": overlap,
        "jitter": _jitter(name, jitter),
        "starts_at": start,
        "ends_at": end,
    }
    declared = Declared(name, checked_tenant(tenant), tuple(_calls(job, args, kwargs)), said)
    plain = Definition(name=name, jobs=[{}] * len(declared.calls), **{**said, "group": None})
    if troubles := [*troubles_of(plain), *troubles_of_group(group, jobs=len(declared.calls))]:
        raise InvalidSchedule(name, [_in_code(each) for each in troubles])
    declarations.add(declared)
    return declared


_IN_CODE = {
    "expression": "cron",
    "time_zone": "timezone",
    "misfire_count": "misfire.most",
    "misfire_window_seconds": "misfire.window",
    "jitter_seconds": "jitter",
    "starts_at": "start",
    "ends_at": "end",
    "template": "job",
}


def _jitter(name: str, given: Any) -> timedelta:
    if isinstance(given, timedelta):
        return given
    try:
        return timedelta(seconds=given)
    except (TypeError, ValueError, OverflowError):
        trouble = Trouble("jitter", f"is {given!r}", "Give seconds, or a timedelta.")
        raise InvalidSchedule(name, [trouble]) from None


def _in_code(trouble: Trouble) -> Trouble:
    """Name a column as `schedule` calls it."""
    return trouble._replace(field=_IN_CODE.get(trouble.field, trouble.field))


def _calls(job: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Iterator[Call]:
    if isinstance(job, JobTask):
        elements("args", args, "Give a list, such as args=[1].")
        yield Call(job, tuple(args), {} if kwargs is None else dict(named("kwargs", kwargs)))
        return
    calls = list(job) if isinstance(job, Iterable) and not isinstance(job, (str, bytes, Call)) else [job]
    calls = [each.bind() if isinstance(each, JobTask) else each for each in calls]
    for each in calls:
        if not isinstance(each, Call):
            what = f"is the text {each!r}" if isinstance(each, str) else f"is a {type(each).__name__}"
            if each is not job:
                what = f"has one that {what}"
            raise InvalidOption("job", what, "Give the task itself, or calls of tasks: task.bind(...).")
    if args or kwargs:
        raise InvalidOption(
            "args" if args else "kwargs",
            "was given beside a call, which has its own",
            "Give them to .bind(...).",
        )
    yield from calls


def _place(declared: Declared) -> tuple[list[str], str]:
    """What makes a second declaration the same one: its functions, wherever they were loaded from, and what it says."""
    group = declared.said["group"]
    bound = {name: each.bind() if isinstance(each, JobTask) else each for name, each in (group or {}).items()}
    calls = [*declared.calls, *(each for each in bound.values() if isinstance(each, Call))]
    modules = [call.task.func.__module__ for call in calls]
    return modules, _plainly((declared.calls, {**declared.said, "group": group and bound}))


def _plainly(said: Any) -> str:
    """Write values down without the addresses that a module which is loaded again has changed."""
    return re.sub(r"(<[^<>]*) at 0x[0-9a-f]+", r"\1", repr(said))


# ------------------------------------------------------------------ @job(schedule=...)


def schedule_job(task: JobTask[Any, Any], said: Any) -> None:
    """
    Declare what `@job(schedule=...)` says: what `schedule` takes, as a mapping, or several of them.

    The name is that of the job's type unless the mapping has one. Raises what `schedule` raises.
    """
    several = isinstance(said, Iterable) and not isinstance(said, (str, bytes, Mapping))
    for each in said if several else [said]:
        if not isinstance(each, Mapping):
            raise InvalidOption(
                "schedule", f"is {each!r}", 'Give a mapping such as {"cron": "0 2 * * *", "timezone": "UTC"}.'
            )
        given = {"name": task.key, **each}
        if unknown := sorted(map(str, given.keys() - _TAKEN)):
            raise InvalidOption(
                "schedule", f"says {', '.join(map(repr, unknown))}", f"It takes {', '.join(sorted(_TAKEN))}."
            )
        if lacking := [name for name in ("cron", "timezone") if name not in given]:
            cure = 'Say both, such as {"cron": "0 2 * * *", "timezone": "UTC"}.'
            raise InvalidOption("schedule", f"lacks {' and '.join(lacking)}", cure)
        schedule(given.pop("name"), task, **given)


_TAKEN = frozenset(signature(schedule).parameters) - {"job"}

"""What a declared schedule creates, as the database takes it: entries of jobs, and the options of their run group."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pgbroker import payload
from pgbroker.errors import InvalidArgument, InvalidOption, PgBrokerError
from pgbroker.group_options import group_options
from pgbroker.options import LINKS
from pgbroker.references import CallRef, Reference
from pgbroker.registry import Call, JobTask
from pgbroker.schedules.definition import Trouble
from pgbroker.shared_rows import Shared, shared_of

CALLBACKS = ("on_completed", "on_failed")
# What `run_group` takes, but for what a schedule says itself.
OF_A_GROUP = ("tolerate", *CALLBACKS, "depends_on", "on_failure")
# Stands for the run group that each tick opens, whose name is not known yet.
_OWN_GROUP = "of the tick"


# ------------------------------------------------------------------ jobs


def entries(calls: Sequence[Call]) -> Iterator[dict[str, Any]]:
    """Write each call as the database takes it, without what belongs to one moment; names join those of a group."""
    grouped = len(calls) > 1
    known = {id(call): _name_of(call, place) for place, call in enumerate(calls, 1)}
    for call in calls:
        shared = shared_of(call.task, using=None, group=_OWN_GROUP if grouped else None)
        entry = _entry(call, shared, known[id(call)] if grouped else "")
        if grouped:
            entry["name"] = known[id(call)]
        if wanted := call.task.call_options.depends_on:
            entry["depends_on"] = [_reference(each, known) for each in wanted]
            if call.task.call_options.on_failure is not None:
                entry["on_failure"] = call.task.call_options.on_failure
        yield entry


def _entry(call: Call, shared: Shared, where: str = "") -> dict[str, Any]:
    try:
        envelope, _, _ = payload.encode(
            shared.signature, call.args, call.kwargs, limit_bytes=shared.limit_bytes
        )
    except InvalidArgument as error:
        if not where:
            raise
        raise error.within(where) from error
    entry: dict[str, Any] = {**shared.row, "args": envelope}
    entry.pop("group", None)
    if shared.correlation_id is not None:
        entry["correlation_id"] = shared.correlation_id
    return entry


def _name_of(call: Call, place: int) -> str:
    return call.task.call_options.name or f"{call.task.func.__name__}-{place}"


def _reference(reference: Reference, known: Mapping[int, str]) -> str:
    """Return the name that a prerequisite has in the group; raises `InvalidOption` for what is not of it."""
    if isinstance(reference, CallRef) and id(reference.call) in known:
        return known[id(reference.call)]
    if isinstance(reference, str) and reference in known.values():
        return reference
    raise InvalidOption(
        "depends_on",
        f"has {reference!r}, which is none of this schedule's jobs",
        "Each tick is a run group of its own: give another call of the same list, or its name.",
    )


# ------------------------------------------------------------------ their run group


def troubles_of_group(group: Any, *, jobs: int) -> Iterator[Trouble]:
    """Tell what is wrong with the group of a declared schedule; arguments of its callbacks are not looked at."""
    if group is None:
        return
    if not isinstance(group, Mapping):
        yield Trouble("group", f"is a {type(group).__name__}", 'Give a mapping such as {"tolerate": "5%"}.')
        return
    if jobs == 1:
        yield Trouble(
            "group",
            "was given, and the schedule creates one job, which is in no run group",
            "Leave it out, or give a list of several calls.",
        )
    for name in sorted(map(str, group.keys() - set(OF_A_GROUP))):
        yield Trouble(f"group[{name!r}]", "is no option of it", f"It takes {', '.join(OF_A_GROUP)}.")
    for name in CALLBACKS:
        call = group.get(name)
        if call is not None and not isinstance(call, (Call, JobTask)):
            yield Trouble(f"group[{name!r}]", f"is a {type(call).__name__}", "Give task.bind(...).")
    # Each by itself, so that several mistakes are told at once.
    for name in ("tolerate", "depends_on", "on_failure"):
        try:
            _plain({name: group[name]} if name in group else {})
        except PgBrokerError as error:
            trouble, cure = (
                (error.trouble, error.cure) if isinstance(error, InvalidOption) else (error.message, "")
            )
            yield Trouble(f"group[{name!r}]", trouble, cure, error.code)


def group_entry(group: Mapping[str, Any] | None, *, using: str) -> dict[str, Any] | None:
    """Write the options of the run group; raises what enqueueing a callback would."""
    if not group:
        return None
    options = _plain(group)
    for name in CALLBACKS:
        if (call := group.get(name)) is not None:
            options[name] = _callback(name, call.bind() if isinstance(call, JobTask) else call, using)
    return options


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """Write the options but for the callbacks, whose entries say nothing of who looks at them."""
    return group_options(
        tolerate=group.get("tolerate", 0),
        callbacks={},
        depends_on=group.get("depends_on", ()),
        on_failure=group.get("on_failure", "cancel"),
        using="",
    )


def _callback(name: str, call: Call, using: str) -> dict[str, Any]:
    where = f"group[{name!r}]"
    options = call.task.call_options
    if any(getattr(options, each) is not None for each in LINKS):
        raise InvalidOption(
            where,
            "has a name, a group or something that it depends on",
            "Leave those out: it is enqueued by itself when the run group ends.",
        )
    shared = shared_of(call.task, using=None)
    if shared.database != using or shared.tenant is not None:
        raise InvalidOption(
            where, "would be enqueued in another database or tenant", "Leave those to the schedule."
        )
    return _entry(call, shared, name)

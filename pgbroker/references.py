"""What a job can wait for, in the words of `depends_on`: an id, or a name that becomes one when the call is stored."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from pgbroker.errors import InvalidOption, TooManyDependencies
from pgbroker.policy.values import duration, one_of, text

ON_FAILURE = ("cancel", "block", "ignore")
MOST_DEPENDENCIES = 10_000
LONGEST_NAME = 255
LONGEST_WAIT = timedelta(days=3660)
# As the database reads an id; what looks otherwise is a name.
_ID = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}").fullmatch

checked_name = text(LONGEST_NAME)
checked_policy = one_of(*ON_FAILURE)


class HasReference(Protocol):
    """A handle of a run group."""

    @property
    def reference(self) -> "GroupRef": ...


class HasId(Protocol):
    """Whatever knows the id of its job: a job, Django's TaskResult."""

    @property
    def id(self) -> Any: ...


class AnyCall(Protocol):
    """What `task.bind(...)` returns, of which only the identity is of interest."""

    @property
    def task(self) -> Any: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class GroupRef:
    """A run group as a prerequisite, by its name: satisfied when the group has completed."""

    name: str

    def __post_init__(self) -> None:
        checked_name("name", self.name)


@dataclass(frozen=True, slots=True)
class JobRef:
    """A job as a prerequisite, by its name in a run group; the tuple `("group", "name")` says the same."""

    group: str
    name: str

    def __post_init__(self) -> None:
        checked_name("group", self.group)
        checked_name("name", self.name)


@dataclass(frozen=True, slots=True)
class DeferredRef:
    """
    A run group, or the job *name* in it, that need not exist yet when the call is stored.

    What has not come *within* that time (seconds or a timedelta, by the database's clock) counts as a
    prerequisite that failed.
    """

    group: str
    name: str | None = None
    within: timedelta | float = field(kw_only=True)

    def __post_init__(self) -> None:
        checked_name("group", self.group)
        if self.name is not None:
            checked_name("name", self.name)
        object.__setattr__(self, "within", duration("within", self.within, longest=LONGEST_WAIT))


@dataclass(frozen=True, slots=True)
class Edge:
    """A prerequisite with an `on_failure` of its own: `Edge(extract, on_failure="ignore")`."""

    to: "AnyPrerequisite"
    on_failure: str

    def __post_init__(self) -> None:
        checked_policy("on_failure", self.on_failure)
        reference = reference_of("depends_on", self.to)
        if isinstance(reference, Edge):
            raise InvalidOption("Edge", "is around another Edge", "Give it the prerequisite itself.")
        object.__setattr__(self, "to", reference)


class CallRef:
    """
    A call of the same `enqueue_many` as a prerequisite: that very call, not one that says the same.

    Compared and shown without what the call itself waits for, which may be a chain of thousands.
    """

    __slots__ = ("call",)

    def __init__(self, call: AnyCall) -> None:
        self.call = call

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallRef) and other.call is self.call

    def __hash__(self) -> int:
        return id(self.call)

    def __repr__(self) -> str:
        return f"<a call of {self.call.task.key}>"


AnyPrerequisite = (
    UUID | str | tuple[str, str] | GroupRef | JobRef | DeferredRef | Edge | HasReference | HasId | AnyCall
)
# What a prerequisite is once it has been looked at; text is an id, or a name alone.
Reference = str | GroupRef | JobRef | DeferredRef | Edge | CallRef


def references_of(field_name: str, value: Any) -> tuple[Reference, ...]:
    """Return what a list of prerequisites names; raises `InvalidOption`, `TooManyDependencies`."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable) or _is_call(value):
        raise InvalidOption(field_name, f"is a {type(value).__name__}", "Give a list of prerequisites.")
    references = tuple(reference_of(field_name, each) for each in value)
    if len(references) > MOST_DEPENDENCIES:
        raise TooManyDependencies(
            f"{field_name} has {len(references)} elements, more than {MOST_DEPENDENCIES}"
        )
    return references


def reference_of(field_name: str, value: Any) -> Reference:
    """Return what one prerequisite names; raises `InvalidOption`."""
    match value:
        case UUID():
            return str(value)
        case str():
            return value.lower() if _ID(value) else checked_name(field_name, value)
        case GroupRef() | JobRef() | DeferredRef() | Edge() | CallRef():
            return value
        case tuple() if _is_call(value):
            return CallRef(value)  # type: ignore[arg-type] # a Call, which is defined above this module
        case (str() as group, str() as name):
            return JobRef(group, name)
    # An instance, not a class: of that they would be properties.
    if isinstance(reference := getattr(value, "reference", None), GroupRef):
        return reference
    job_id = getattr(value, "id", None)
    if isinstance(job_id, UUID) or (isinstance(job_id, str) and _ID(job_id)):
        return str(job_id)
    raise InvalidOption(
        field_name,
        f"has a {type(value).__name__}, which is no prerequisite",
        "Give the id of a job, what enqueue returned, a run group, GroupRef(name), JobRef(group, name), "
        "DeferredRef(group, within=...), or another call of the same enqueue_many.",
    )


def group_name_of(field_name: str, value: Any) -> str:
    """Return the name of a run group given as name, reference or handle; raises `InvalidOption`."""
    if isinstance(value, GroupRef):
        return value.name
    if isinstance(reference := getattr(value, "reference", None), GroupRef):
        return reference.name
    return checked_name(field_name, value)


def as_json(reference: Reference) -> Any:
    """Return a reference as the database takes it; a `CallRef` must have become an id."""
    match reference:
        case str():
            return reference
        case GroupRef(name):
            return {"group": name}
        case JobRef(group, name):
            return {"group": group, "job": name}
        case DeferredRef(group, name, within=timedelta() as within):
            seconds = {"within_seconds": within.total_seconds()}
            return {"group": group} | ({} if name is None else {"job": name}) | seconds
        case Edge(to, on_failure):
            named = as_json(to)  # type: ignore[arg-type] # a Reference, once the Edge is made
            if isinstance(named, str):
                named = {"job" if _ID(named) else "name": named}
            return named | {"on_failure": on_failure}
    raise AssertionError(f"a call has no id yet: {reference!r}")


def _is_call(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(value, "task") and hasattr(value, "kwargs")

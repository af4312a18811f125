"""Rows of one `enqueue_many` that wait for each other: by id, prerequisites first, and refused together."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pgbroker.errors import CyclicDependency, InvalidOption, PgBrokerError, PrerequisiteRefused
from pgbroker.options import Options
from pgbroker.references import CallRef, Edge, Reference, as_json

_CYCLE = "the job depends on itself, by way of other calls of this list"


class Waiting(NamedTuple):
    """A row and what its call waits for, some of it calls of the same list."""

    row: dict[str, Any]
    references: tuple[Reference, ...]


def write_links(row: dict[str, Any], options: Options, group: str | None) -> Waiting | None:
    """
    Write into a row what its call is linked to; *group* is that of the whole list, if any, which the row has.

    Returns what is left to be written once the ids of the other calls are known. Raises `InvalidOption`.
    """
    options.refuse_if_at_odds(in_group=group)
    if options.group is not None:
        row["group"] = options.group
    if options.name is not None:
        row["name"] = options.name
    if not options.depends_on:
        return None
    if options.on_failure is not None:
        row["on_failure"] = options.on_failure
    if any(map(_call_of, options.depends_on)):
        return Waiting(row, options.depends_on)
    row["depends_on"] = [as_json(each) for each in options.depends_on]
    return None


def _call_of(reference: Reference) -> CallRef | None:
    to = reference.to if type(reference) is Edge else reference
    return to if type(to) is CallRef else None


def join(
    waiting: Mapping[int, Waiting], calls: Sequence[object], rows: Mapping[int, Mapping[str, Any]]
) -> tuple[dict[int, list[int]], dict[int, PgBrokerError]]:
    """
    Write the ids of the calls that others wait for, each by its place in the list, as are the *rows* that there are.

    Returns which places each waits for, and which are refused: they wait for a call that is not in the list, or has
    no row. Those that wait for these are not among them.
    """
    places: dict[int, int] = {}
    for place, call in enumerate(calls):
        places.setdefault(id(call), place)
    needs: dict[int, list[int]] = {}
    refused: dict[int, PgBrokerError] = {}
    # By the identity of a tuple of references: calls that wait for the same share it, and what is written.
    known: dict[int, tuple[list[int], list[Any]]] = {}
    for place, (row, references) in waiting.items():
        if (written := known.get(id(references))) is not None:
            needs[place], row["depends_on"] = written
            continue
        needs[place], row["depends_on"] = written = [], []
        for reference in references:
            call = _call_of(reference)
            if call is None:
                row["depends_on"].append(as_json(reference))
                continue
            found = places.get(id(call.call))
            if found is None:
                refused[place] = not_in_the_list()
            elif found not in rows:
                refused[place] = prerequisite_refused(found)
            else:
                needs[place].append(found)
                job_id = rows[found]["id"]
                row["depends_on"].append(
                    {"job": job_id, "on_failure": reference.on_failure} if type(reference) is Edge else job_id
                )
        if place not in refused:
            known[id(references)] = written
    return needs, refused


def not_in_the_list() -> InvalidOption:
    """Say that a call waits for one that is not enqueued with it."""
    return InvalidOption(
        "depends_on",
        "has a call that is not enqueued together with this one",
        "Give both to one enqueue_many, or enqueue that one first and give what it returned.",
    )


def prerequisite_refused(place: int) -> PrerequisiteRefused:
    """Say that the call at a place of the list was refused, and this one with it."""
    return PrerequisiteRefused(f"calls[{place}], which it depends on, was refused")


def spread(refused: dict[int, PgBrokerError], needs: Mapping[int, Sequence[int]]) -> dict[int, PgBrokerError]:
    """Refuse with each call all that wait for it, however far away; adds them and returns the same."""
    dependents = _turned(needs)
    due = deque(refused)
    while due:
        place = due.popleft()
        for dependent in dependents.get(place, ()):
            if dependent not in refused:
                refused[dependent] = prerequisite_refused(place)
                due.append(dependent)
    return refused


def _turned(needs: Mapping[int, Iterable[int]]) -> Mapping[int, list[int]]:
    dependents: defaultdict[int, list[int]] = defaultdict(list)
    for place, prerequisites in needs.items():
        for prerequisite in prerequisites:
            dependents[prerequisite].append(place)
    return dependents


def are_in_order(rows: Iterable[Mapping[str, Any]], needs: Mapping[int, Sequence[int]]) -> bool:
    """Tell whether several statements may store rows as they stand, each after what it waits for, as far as is seen."""
    if any("name" in row or "idempotency_key" in row for row in rows):
        return False
    return all(prerequisite < place for place, them in needs.items() for prerequisite in them)


def levels(
    places: Sequence[int], rows: Sequence[Mapping[str, Any]], needs: Mapping[int, Sequence[int]]
) -> tuple[dict[int, int], dict[int, PgBrokerError]]:
    """
    Count how many rows in a chain must be stored before each, where several statements store them.

    One statement sorts this out itself; a later one sees what an earlier one has stored, not the other way round.
    Names count too: what they name may be among the rows. Returns the levels above 0, and what waits for itself.
    """
    all_needs = {place: [*set(prerequisites)] for place, prerequisites in needs.items()}
    by_name = {
        (row.get("group"), row["name"]): place
        for place, row in zip(places, rows, strict=True)
        if "name" in row
    }
    if by_name:
        for place, row in zip(places, rows, strict=True):
            for reference in row.get("depends_on", ()):
                if (named := by_name.get(_name_in(reference, row))) not in (None, place):
                    all_needs.setdefault(place, []).append(named)
    dependents = _turned(all_needs)
    missing = {place: len(prerequisites) for place, prerequisites in all_needs.items()}
    found: dict[int, int] = {}
    due = deque(place for place in places if not missing.get(place))
    while due:
        place = due.popleft()
        level = found.get(place, 0) + 1
        for dependent in dependents.get(place, ()):
            found[dependent] = max(found.get(dependent, 0), level)
            missing[dependent] -= 1
            if missing[dependent] == 0:
                due.append(dependent)
    return found, {place: CyclicDependency(_CYCLE) for place, left in missing.items() if left}


def _name_in(reference: Any, row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the group and the name of the job that a written reference may mean."""
    if isinstance(reference, str):
        return row.get("group"), reference
    return reference.get("group"), reference.get("job")


def renamed(row: dict[str, Any], stored: Mapping[str, str]) -> dict[str, Any]:
    """Return a row that waits for jobs under the ids that they have in the end, which a key or a database chose."""
    if "depends_on" not in row:
        return row
    return row | {
        "depends_on": [
            stored.get(each, each)
            if isinstance(each, str)
            else each | {"job": stored[each["job"]]}
            if each.get("job") in stored
            else each
            for each in row["depends_on"]
        ]
    }

"""Graphs of run groups, decided by a seed alone, and how everybody in them must end. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pgbroker.states import GroupState, Status

TENANTS = ("acme", "globex", "initech")
# What becomes of a member that runs. A broken one fails until its graph is repaired, a hopeless one always.
FATES = {"well": 70, "flaky": 14, "broken": 10, "hopeless": 6}
BAD = {Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED}
OPEN = {Status.WAITING, Status.BLOCKED}
CANCELLED_SHARE = 0.15
GROUPS_MOST, MEMBERS_MOST = 4, 6


@dataclass(frozen=True, kw_only=True)
class Edge:
    """What a member, or a whole group, waits for: a group, or a member of it."""

    group: str
    member: str | None = None
    on_failure: str = "cancel"


@dataclass(frozen=True, kw_only=True)
class Member:
    """One job to come."""

    name: str
    fate: str
    edges: tuple[Edge, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Group:
    """One run group to come."""

    name: str
    members: tuple[Member, ...]
    edges: tuple[Edge, ...] = ()
    tolerate: int = 0
    # Somebody cancels it, while a member is to run in an hour only.
    is_cancelled: bool = False


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Groups in the order of who waits for whom, and in *stored* the order in which they are stored."""

    name: str
    tenant: str
    groups: tuple[Group, ...]
    stored: tuple[str, ...]


@dataclass(kw_only=True)
class Ends:
    """Where everybody stands when nothing moves any more."""

    # None: whoever is faster decides.
    members: dict[tuple[str, str], Status | None] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)


def graphs(seed: int) -> Iterator[Graph]:
    """Yield the graphs of a run, for ever."""
    dice = random.Random(seed)
    number = 0
    while True:
        number += 1
        name = f"{seed}:{number}"
        graph = _doomed(name, dice) if dice.random() < CANCELLED_SHARE else _graph(name, dice)
        # What stays blocked after the repair would never end.
        if any(state == GroupState.SEALED for state in ends(graph, repaired=True).groups.values()):
            graph = _without_blocks(graph)
        yield graph


def ends(graph: Graph, *, repaired: bool) -> Ends:
    """Say where everybody stands in the end: before the repair, or after it and a retry of all groups."""
    found = Ends()
    for group in graph.groups:
        for member in group.members:
            found.members[group.name, member.name] = _end(member, group, found, repaired)
        statuses = [found.members[group.name, member.name] for member in group.members]
        if group.is_cancelled:
            found.groups[group.name] = GroupState.CANCELLED
        elif any(status in OPEN for status in statuses):
            found.groups[group.name] = GroupState.SEALED
        elif any(_outcome(edge, found) == "bad" and edge.on_failure == "cancel" for edge in group.edges):
            found.groups[group.name] = GroupState.FAILED
        else:
            bad = sum(status in BAD for status in statuses)
            found.groups[group.name] = GroupState.COMPLETED if bad <= group.tolerate else GroupState.FAILED
    return found


def callback_tag(group: Group, ending: str) -> str:
    """Name the callback of a group, by which its jobs are found."""
    return f"{group.name} {ending}"


def _end(member: Member, group: Group, found: Ends, repaired: bool) -> Status | None:
    if group.is_cancelled:
        return Status.CANCELLED if member.fate == "far" else None
    own = {(edge.group, edge.member) for edge in member.edges}
    edges = [*member.edges, *(edge for edge in group.edges if (edge.group, edge.member) not in own)]
    told = {(edge.on_failure, _outcome(edge, found)) for edge in edges}
    if ("cancel", "bad") in told:
        return Status.CANCELLED
    if ("block", "bad") in told:
        return Status.BLOCKED
    if any(outcome == "open" for _, outcome in told):
        return Status.WAITING
    match member.fate:
        case "broken" if not repaired:
            return Status.FAILED
        case "hopeless":
            return Status.DEAD_LETTER
        case _:
            return Status.COMPLETED


def _outcome(edge: Edge, found: Ends) -> str:
    if edge.member is None:
        state = found.groups[edge.group]
        return {GroupState.SEALED: "open", GroupState.COMPLETED: "well"}.get(state, "bad")
    status = found.members[edge.group, edge.member]
    if status in OPEN:
        return "open"
    return "bad" if status in BAD else "well"


def _graph(name: str, dice: random.Random) -> Graph:
    groups: list[Group] = []
    for letter in "abcdef"[: dice.randint(1, GROUPS_MOST)]:
        above = [each for each in groups if dice.random() < 0.5]
        edges = tuple(Edge(group=each.name, on_failure=_policy(dice)) for each in above)
        members: list[Member] = []
        for number in range(dice.randint(1, MEMBERS_MOST)):
            known = [(f"{name}:{letter}", each.name) for each in members]
            known += [(each.name, member.name) for each in groups for member in each.members]
            chosen = dice.sample(known, min(len(known), dice.choice((0, 0, 1, 1, 2, 3))))
            (fate,) = dice.choices([*FATES], [*FATES.values()])
            members.append(
                Member(
                    name=f"m{number}",
                    fate=fate,
                    edges=tuple(
                        Edge(group=group, member=member, on_failure=_policy(dice)) for group, member in chosen
                    ),
                )
            )
        groups.append(
            Group(
                name=f"{name}:{letter}",
                members=tuple(members),
                edges=edges,
                tolerate=dice.choice((0, 0, 0, 1, 2)),
            )
        )
    return Graph(
        name=name, tenant=dice.choice(TENANTS), groups=tuple(groups), stored=_some_order(groups, dice)
    )


def _doomed(name: str, dice: random.Random) -> Graph:
    """A group that is cancelled, and two that wait for it."""
    fates = ["well"] * dice.randint(1, MEMBERS_MOST) + ["far"]
    doomed = Group(
        name=f"{name}:z",
        members=tuple(Member(name=f"m{number}", fate=fate) for number, fate in enumerate(fates)),
        is_cancelled=True,
    )
    after = tuple(
        Group(
            name=f"{name}:{policy}",
            members=(Member(name="m0", fate="well"),),
            edges=(Edge(group=doomed.name, on_failure=policy),),
        )
        for policy in ("cancel", "ignore")
    )
    groups = (doomed, *after)
    return Graph(
        name=name, tenant=dice.choice(TENANTS), groups=groups, stored=tuple(each.name for each in groups)
    )


def _some_order(groups: list[Group], dice: random.Random) -> tuple[str, ...]:
    """Put groups in an order in which each comes after those that it waits for as a whole; else as it may be."""
    left, order = list(groups), list[str]()
    while left:
        may = [each for each in left if all(edge.group in order for edge in each.edges)]
        chosen = dice.choice(may)
        left.remove(chosen)
        order.append(chosen.name)
    return tuple(order)


def _policy(dice: random.Random) -> str:
    return dice.choice(("cancel", "cancel", "cancel", "block", "ignore"))


def _without_blocks(graph: Graph) -> Graph:
    def mild(edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
        return tuple(
            replace(edge, on_failure="cancel") if edge.on_failure == "block" else edge for edge in edges
        )

    return replace(
        graph,
        groups=tuple(
            replace(
                group,
                edges=mild(group.edges),
                members=tuple(replace(member, edges=mild(member.edges)) for member in group.members),
            )
            for group in graph.groups
        ),
    )

"""
Random graphs of jobs and groups, random ends, retries and cancels in any order, against a model in plain Python.

`PGBROKER_MACHINE_EXAMPLES` makes the search longer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.resolve import resolve
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.unblock import unblock_many
from pgbroker.models import Job, JobPayload, RunGroup
from pgbroker.states import GroupState, Status
from tests.support.links import end, links, open_group, passes, repaired, seal, why
from tests.support.order import assert_in_order, assert_nothing_starts_too_early

EXAMPLES = int(os.environ.get("PGBROKER_MACHINE_EXAMPLES", "40"))
COMPLETED, FAILED, DEAD, CANCELLED = Status.COMPLETED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED
READY, WAITING, BLOCKED = Status.READY, Status.WAITING, Status.BLOCKED
BAD = {FAILED, DEAD, CANCELLED}
POLICIES = ("cancel", "block", "ignore")

pytestmark = pytest.mark.django_db

searched = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


@dataclass
class Edge:
    """What somebody waits for, and what a bad end of that does to him."""

    on: UUID
    policy: str
    satisfied: bool = False


@dataclass
class Node:
    """A job: where it is, and what it waits for. *fell* tells that it was cancelled because of a prerequisite."""

    edges: list[Edge]
    group: UUID | None
    status: Status = WAITING
    fell: bool = False
    ran: int = 0


@dataclass
class Group:
    """A run group: how many bad ends it takes, and what it waits for itself."""

    edges: list[Edge]
    tolerance: int
    name: str
    state: GroupState = GroupState.OPEN
    called: set[GroupState] = field(default_factory=set)
    # It failed for what it waited for.
    barred: bool = False


class World:
    """The model: what is true once all passes have come by."""

    def __init__(self) -> None:
        self.jobs: dict[UUID, Node] = {}
        self.groups: dict[UUID, Group] = {}

    def outcome(self, prerequisite: UUID) -> Status | None:
        """Say how a prerequisite ended; None while it lives."""
        if prerequisite in self.groups:
            state = self.groups[prerequisite].state
            return Status(int(state)) if state >= 10 else None
        status = self.jobs[prerequisite].status
        return status if status >= 10 else None

    def settle(self) -> None:
        """Let everything follow until nothing changes any more."""
        while self._edges() or self._jobs() or self._ends():
            pass

    def _edges(self) -> bool:
        changed = False
        for node in [*self.jobs.values(), *self.groups.values()]:
            for edge in node.edges:
                ended = self.outcome(edge.on)
                if not edge.satisfied and ended and (ended == COMPLETED or edge.policy == "ignore"):
                    edge.satisfied = changed = True
        return changed

    def _bad(self, edges: list[Edge]) -> set[str]:
        return {edge.policy for edge in edges if not edge.satisfied and self.outcome(edge.on) in BAD}

    def _jobs(self) -> bool:
        changed = False
        for node in self.jobs.values():
            if node.status not in (WAITING, BLOCKED) and not node.fell:
                continue
            bad = self._bad(node.edges)
            target = (
                CANCELLED
                if "cancel" in bad
                else BLOCKED
                if "block" in bad
                else READY
                if all(edge.satisfied for edge in node.edges)
                else WAITING
            )
            if target != node.status:
                if node.status == CANCELLED:
                    self._revive(node)
                node.status, node.fell, changed = target, target == CANCELLED, True
        return changed

    def _revive(self, node: Node) -> None:
        group = self.groups.get(node.group) if node.group else None
        if group and group.state in (GroupState.FAILED, GroupState.CANCELLED):
            group.state = GroupState.SEALED

    def _ends(self) -> bool:
        changed = False
        for group_id, group in self.groups.items():
            members = [node for node in self.jobs.values() if node.group == group_id]
            live = any(node.status < 10 for node in members)
            bad = self._bad(group.edges)
            if group.state == GroupState.FAILED and group.barred and "cancel" not in bad:
                group.state, group.barred, changed = GroupState.SEALED, False, True
            if group.state != GroupState.SEALED or live:
                continue
            group.barred = "cancel" in bad
            failures = sum(node.status in BAD for node in members)
            if group.barred or failures > group.tolerance:
                group.state = GroupState.FAILED
            elif (not members and "block" in bad) or any(
                not edge.satisfied and self.outcome(edge.on) is None for edge in group.edges
            ):
                continue
            else:
                group.state = GroupState.COMPLETED
            group.called.add(group.state)
            changed = True
        return changed

    # -------------------------------------------------------------- what may be done

    def barred(self, node: Node) -> bool:
        """Tell whether a retry would end again at once."""
        return bool(self._bad(node.edges))

    def retry(self, job_id: UUID) -> None:
        """Let an ended job live again."""
        node = self.jobs[job_id]
        self._revive(node)
        node.fell = False
        node.status = WAITING


def _add_job(world: World, draw: st.DataObject) -> None:
    edges = _draw_edges(world, draw)
    open_groups = [each for each, group in world.groups.items() if group.state == GroupState.OPEN]
    group = draw.draw(st.sampled_from([None, *open_groups]))
    # A member that waits for its own group, by whatever way, would be a cycle: those come before it alone.
    if group is not None:
        order = list(world.groups)
        edges = [edge for edge in edges if _older(world, edge.on, order.index(group))]
    row = {"depends_on": [_reference(world, edge) for edge in edges]}
    (answer,) = links({**row, **({"group": world.groups[group].name} if group else {})})
    assert answer.outcome == "created", answer
    inherited = (
        []
        if group is None
        else [Edge(edge.on, edge.policy) for edge in world.groups[group].edges if not edge.satisfied]
    )
    known = {edge.on for edge in edges}
    world.jobs[answer.job_id] = Node([*edges, *(edge for edge in inherited if edge.on not in known)], group)


def _older(world: World, prerequisite: UUID, place: int) -> bool:
    """Tell whether a prerequisite was complete before the group at that place was opened."""
    if prerequisite in world.groups:
        return list(world.groups).index(prerequisite) < place
    group = world.jobs[prerequisite].group
    if group is not None:
        return list(world.groups).index(group) <= place
    return all(_older(world, edge.on, place) for edge in world.jobs[prerequisite].edges)


def _draw_edges(world: World, draw: st.DataObject) -> list[Edge]:
    targets = [*world.jobs, *world.groups]
    if not targets:
        return []
    chosen = draw.draw(st.lists(st.sampled_from(targets), max_size=3, unique=True))
    return [Edge(each, draw.draw(st.sampled_from(POLICIES))) for each in chosen]


def _reference(world: World, edge: Edge) -> dict[str, str]:
    what = {"group": world.groups[edge.on].name} if edge.on in world.groups else {"job": str(edge.on)}
    return {**what, "on_failure": edge.policy}


def _add_group(world: World, draw: st.DataObject) -> None:
    edges = [
        edge
        for edge in _draw_edges(world, draw)
        if edge.on in world.groups or _older(world, edge.on, len(world.groups))
    ]
    name, tolerance = f"g{len(world.groups)}", draw.draw(st.integers(0, 1))
    group_id = open_group(
        name,
        tolerate_count=tolerance,
        depends_on=[_reference(world, edge) for edge in edges],
        on_completed={"job_type": "tests.ok", "correlation_id": f"{name} completed"},
        on_failed={"job_type": "tests.ok", "correlation_id": f"{name} failed"},
    )
    world.groups[group_id] = Group(edges, tolerance, name)


def _act(world: World, draw: st.DataObject) -> None:
    """Do one thing to one job or group, in the database and in the model."""
    what = draw.draw(
        st.sampled_from(
            ["job", "job", "job", "group", "seal", "end", "end", "end", "cancel", "retry", "retry", "unblock"]
        )
    )
    if what == "job":
        _add_job(world, draw)
    elif what == "group" and len(world.groups) < 3:
        _add_group(world, draw)
    elif what == "seal":
        _on_one(
            draw,
            [g for g, group in world.groups.items() if group.state == GroupState.OPEN],
            lambda g: _seal(world, g),
        )
    elif what == "end":
        how = draw.draw(st.sampled_from([COMPLETED, COMPLETED, FAILED, DEAD]))
        _on_one(draw, _those(world, READY), lambda job_id: _end(world, job_id, how))
    elif what == "cancel":
        _on_one(draw, _those(world, READY, WAITING, BLOCKED), lambda job_id: _cancel(world, job_id))
    elif what == "retry":
        _on_one(draw, _those(world, FAILED, DEAD, CANCELLED), lambda job_id: _retry(world, job_id))
    elif what == "unblock":
        _on_one(draw, _those(world, BLOCKED), lambda job_id: _unblock(world, job_id))


def _those(world: World, *statuses: Status) -> list[UUID]:
    return [job_id for job_id, node in world.jobs.items() if node.status in statuses]


def _on_one(draw: st.DataObject, those: list[UUID], act: object) -> None:
    if those:
        act(draw.draw(st.sampled_from(those)))  # type: ignore[operator]


def _seal(world: World, group_id: UUID) -> None:
    seal(group_id)
    world.groups[group_id].state = GroupState.SEALED


def _end(world: World, job_id: UUID, how: Status) -> None:
    end(job_id, status=how)
    world.jobs[job_id].status = how
    world.jobs[job_id].ran += 1


def _cancel(world: World, job_id: UUID) -> None:
    (answer,) = cancel_many([job_id])
    assert answer.outcome == "cancelled"
    world.jobs[job_id].status = CANCELLED


def _retry(world: World, job_id: UUID) -> None:
    (answer,) = retry_many([job_id])
    node = world.jobs[job_id]
    assert answer.outcome == ("prerequisite_failed" if world.barred(node) else "retried")
    if answer.outcome == "retried":
        world.retry(job_id)


def _unblock(world: World, job_id: UUID) -> None:
    (answer,) = unblock_many([job_id])
    assert answer.outcome == "unblocked"
    for edge in world.jobs[job_id].edges:
        if world.outcome(edge.on) in BAD:
            edge.satisfied = True


def _compare(world: World) -> None:
    found = dict(Job.objects.filter(pk__in=list(world.jobs)).values_list("pk", "status"))
    assert {each: Status(status) for each, status in found.items()} == {
        each: node.status for each, node in world.jobs.items()
    }
    states = dict(RunGroup.objects.filter(pk__in=list(world.groups)).values_list("pk", "state"))
    assert {each: GroupState(state) for each, state in states.items()} == {
        each: group.state for each, group in world.groups.items()
    }
    for each, group in world.groups.items():
        row = RunGroup.objects.get(pk=each)
        called = {GroupState.COMPLETED: row.completed_job_id, GroupState.FAILED: row.failed_job_id}
        assert {state for state, job_id in called.items() if job_id is not None} == group.called
        assert row.callback_error is None
    made = JobPayload.objects.exclude(correlation_id=None).values_list("correlation_id", flat=True)
    assert sorted(made) == sorted(
        f"{group.name} {state.label}" for group in world.groups.values() for state in group.called
    )
    for each, node in world.jobs.items():
        if node.fell or node.status == BLOCKED:
            reason = why(each)
            assert reason is not None
            assert reason[0] == "prerequisite_failed"
            assert reason[1] is not None or not _has_members(world, node)


def _has_members(world: World, node: Node) -> bool:
    """Tell whether a bad end that a node suffers from has a job to name; an empty group that failed may have none."""
    return all(
        edge.on in world.jobs or any(other.group == edge.on for other in world.jobs.values())
        for edge in node.edges
        if not edge.satisfied and world.outcome(edge.on) in BAD
    )


@searched
@given(draw=st.data(), steps=st.integers(3, 25))
def test_everybody_stands_where_the_ends_of_his_prerequisites_put_him(draw, steps):
    with transaction.atomic():
        world = World()
        for _ in range(steps):
            _act(world, draw)
            world.settle()
            passes()
            _compare(world)
        transaction.set_rollback(True)


@searched
@given(draw=st.data(), steps=st.integers(3, 25))
def test_whenever_the_passes_come_by_the_end_is_in_order(draw, steps):
    """A pass now and then, of any size: what was left to the last of them stands where its edges say."""
    with transaction.atomic():
        world = World()
        for _ in range(steps):
            _read_back(world)
            _act_unseen(world, draw)
            if draw.draw(st.booleans()):
                resolve(limit=draw.draw(st.integers(1, 20)))
            assert_nothing_starts_too_early()
        passes()
        assert_in_order()
        assert repaired() == []
        transaction.set_rollback(True)


def _act_unseen(world: World, draw: st.DataObject) -> None:
    """Do something by what the database says now; what the model says of it is of no interest."""
    what = draw.draw(
        st.sampled_from(["job", "group", "seal", "end", "end", "cancel", "retry", "retry", "unblock"])
    )
    if what == "job":
        _add_job(world, draw)
    elif what == "group" and len(world.groups) < 3:
        _add_group(world, draw)
    elif what == "seal":
        _on_one(draw, [g for g, group in world.groups.items() if group.state == GroupState.OPEN], seal)
    elif what == "end":
        how = draw.draw(st.sampled_from([COMPLETED, FAILED]))
        _on_one(draw, _those(world, READY), lambda job_id: end(job_id, status=how))
    elif what == "cancel":
        _on_one(draw, _those(world, READY, WAITING, BLOCKED), lambda job_id: cancel_many([job_id]))
    elif what == "retry":
        _on_one(draw, _those(world, FAILED, CANCELLED), lambda job_id: retry_many([job_id]))
    elif what == "unblock":
        _on_one(draw, _those(world, BLOCKED), lambda job_id: unblock_many([job_id]))


def _read_back(world: World) -> None:
    for each, status in Job.objects.filter(pk__in=list(world.jobs)).values_list("pk", "status"):
        world.jobs[each].status = Status(status)
    for each, state in RunGroup.objects.filter(pk__in=list(world.groups)).values_list("pk", "state"):
        world.groups[each].state = GroupState(state)

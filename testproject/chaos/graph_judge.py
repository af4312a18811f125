"""The verdict on graphs of run groups: everybody stands where the plan says, and nobody ran too early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from uuid import UUID

from pgbroker.lifecycle.reconcile import START, reconcile
from pgbroker.states import GroupState, Status
from testproject.chaos.graph_plans import Graph, callback_tag, ends
from testproject.chaos.judge import Verdict, rows

NOBODY = UUID(int=0)

# A job began although an edge of it was met later, or never.
TOO_EARLY = """
select edge.dependent_id, edge.prerequisite_id
from pgbroker.job_dependency as edge
join pgbroker.execution on execution.job_id = edge.dependent_id
where execution.started_at < coalesce(edge.satisfied_at, 'infinity')
"""


def standing(graphs: Iterable[Graph], *, repaired: bool) -> list[str]:
    """Say of everybody in these graphs who does not stand where he must in the end."""
    members, groups = _members(), _groups()
    wrong = []
    for graph in graphs:
        expected = ends(graph, repaired=repaired)
        for (group, name), status in expected.members.items():
            _, found = members.get((group, name), (None, None))
            if found is None or (status is not None and found != status):
                wrong.append(f"{group}/{name} is {_label(found)}, not {_label(status)}")
        for name, state in expected.groups.items():
            if (found_state := groups.get(name)) != state:
                wrong.append(f"{name} is {_label(found_state)}, not {_label(state)}")
    return wrong


def accepted(graphs: Iterable[Graph]) -> dict[UUID, Status | None]:
    """
    Return the ledger of these graphs for the judge of jobs: their members, and the callbacks that are there.

    How a member ends is told there where it runs once: what is retried has ended before.
    """
    members = _members()
    ledger: dict[UUID, Status | None] = {}
    for graph in graphs:
        before, after = ends(graph, repaired=False), ends(graph, repaired=True)
        for place, status in after.members.items():
            if place in members:
                once = status is not None and before.members[place] == status == Status.COMPLETED
                ledger[members[place][0]] = status if once else None
    callbacks = rows(
        "select job_id from pgbroker.job_tag where tag like '%% completed' or tag like '%% failed'"
    )
    return ledger | {job_id: Status.COMPLETED for (job_id,) in callbacks}


def judge(found: Verdict, graphs: Iterable[Graph]) -> None:
    """Add to a verdict what became of these graphs. Looks through the reconciler's eyes, too: it must find nothing."""
    graphs = list(graphs)
    members = _members()
    for wrong in standing(graphs, repaired=True):
        found.blame("lost", NOBODY, wrong)
    completed = Counter(job_id for (job_id,) in rows("select job_id from pgbroker.execution where state = 1"))
    for graph in graphs:
        for place, status in ends(graph, repaired=True).members.items():
            job_id, _ = members.get(place, (NOBODY, None))
            if status is not None and completed[job_id] != (status == Status.COMPLETED):
                found.blame("doubled", job_id, f"{place} completed {completed[job_id]} times")
    _judge_callbacks(found, graphs)
    for dependent, prerequisite in rows(TOO_EARLY):
        found.blame("inconsistent", dependent, f"it began before its edge to {prerequisite} was met")
    for table in ("unresolved", "deferred_reference"):
        if (left := rows(f"select count(*) from pgbroker.{table}")[0][0]) > 0:  # noqa: S608 - one of two names
            found.blame("inconsistent", NOBODY, f"{left} rows are left in {table}")
    after: UUID | None = START
    while after is not None:
        page = reconcile(after=after, limit=500)
        for job_id in page.repaired:
            found.blame("inconsistent", job_id, "the reconciler had to repair it")
        after = page.last


def _judge_callbacks(found: Verdict, graphs: Iterable[Graph]) -> None:
    """Once for each end that a group has come to; an end that is none yet when others are retried may come first."""
    counted: Mapping[str, int] = dict(rows("select tag, count(*) from pgbroker.job_tag group by tag"))
    for graph in graphs:
        before, after = ends(graph, repaired=False).groups, ends(graph, repaired=True).groups
        for group in graph.groups:
            for ending, state in (("completed", GroupState.COMPLETED), ("failed", GroupState.FAILED)):
                times = counted.get(callback_tag(group, ending), 0)
                must = state in (before[group.name], after[group.name])
                may = must or (ending == "failed" and before[group.name] == GroupState.SEALED)
                if times > may or times < must:
                    found.blame(
                        "doubled" if times > may else "lost", NOBODY, f"{group.name}: {times} times {ending}"
                    )


def _members() -> dict[tuple[str, str], tuple[UUID, Status]]:
    return {
        (group, name): (job_id, Status(status))
        for group, name, job_id, status in rows(
            "select run_group.name, job.name, job.id, job.status from pgbroker.job "
            "join pgbroker.run_group on run_group.id = job.run_group_id"
        )
    }


def _groups() -> dict[str, GroupState]:
    return {name: GroupState(state) for name, state in rows("select name, state from pgbroker.run_group")}


def _label(value: Status | GroupState | None) -> str:
    return "anything" if value is None else value.label

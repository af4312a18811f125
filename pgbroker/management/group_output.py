"""What is printed of run groups and of edges: what waits for what, and what a cancel would take along."""

from typing import Any
from uuid import UUID

from pgbroker import group_reports
from pgbroker.group_reports import GroupLine, Link, Links, MemberCounts, Preview
from pgbroker.management.output import harmless, table
from pgbroker.states import GroupState, Status


def facts_of(group: GroupLine, progress: MemberCounts) -> dict[str, Any]:
    """Tell a group with its progress to a program."""
    return {
        **group._asdict(),
        "state": GroupState(group.state).label,
        "policy": group.policy,
        "members": {status.label: count for status, count in sorted(progress.counts.items())},
        "over": progress.over,
        "exact": progress.is_exact,
    }


def facts_of_links(links: Links) -> dict[str, Any]:
    """Tell what a job or a group waits for, and what waits for it, to a program."""
    return {
        "prerequisites": [_facts_of_link(each) for each in links.prerequisites],
        "dependents": [_facts_of_link(each) for each in links.dependents],
    }


def text_of_links(links: Links) -> str:
    """Draw both sides as tables with a heading; of a side where nothing is, nothing."""
    told = ""
    for heading, side, more in (
        ("waits for", links.prerequisites, links.more_prerequisites),
        ("what waits for it", links.dependents, links.more_dependents),
    ):
        if side:
            rows = ((each.id, each.name, each.status_label, each.outcome_label, each.policy) for each in side)
            shown = table(("id", "name", "status", "outcome", "on failure"), rows)
            told += f"\n{heading}{', the first of them' if more else ''}\n{shown}\n"
    return told


def _facts_of_link(link: Link) -> dict[str, Any]:
    """Tell what waits, or is waited for, to a program."""
    return {
        "kind": link.kind,
        "id": link.id,
        "name": link.name,
        "status": link.status_label or None,
        "on_failure": link.policy,
        "outcome": link.outcome_label or None,
        "satisfied_at": link.satisfied_at,
        "deadline_at": link.deadline_at,
    }


def facts_of_preview(group: GroupLine, progress: MemberCounts, preview: Preview) -> dict[str, Any]:
    """Tell what a cancel would take along to a program."""
    return {
        "id": group.id,
        "members": {"live": progress.live, "running": progress.counts.get(Status.RUNNING, 0)},
        "totals": preview.totals,
        "exact": preview.is_exact and progress.is_exact,
        "along": facts_of_fates(preview),
    }


def facts_of_fates(preview: Preview) -> list[dict[str, Any]]:
    """Tell a program what a cancel would change besides what is cancelled by name."""
    return [
        {
            "kind": each.kind,
            "id": each.id,
            "name": each.name,
            "status": each.status_label,
            "fate": each.fate,
            "callback": each.callback,
        }
        for each in preview.fates
    ]


def text_of_preview(group: GroupLine, progress: MemberCounts, preview: Preview) -> str:
    """Tell what a cancel would take along to a person."""
    lines = [f"{jobs(progress.live)} of {harmless(group.name)} would be cancelled."]
    if running := progress.counts.get(Status.RUNNING, 0):
        lines.append(f"{jobs(running)} of them run, and would be asked to stop.")
    return "\n".join([*lines, text_of_fates(preview)])


def text_of_fates(preview: Preview) -> str:
    """Tell what a cancel would change besides what is cancelled by name."""
    if not preview.fates:
        return "Nothing else would change."
    rows = (
        (each.fate, each.kind, each.id, each.name, each.status_label, each.callback) for each in preview.fates
    )
    return "\n".join(
        [
            *(f"{preview.told(fate)}." for fate in group_reports.FATES if fate in preview.totals),
            "",
            table(("fate", "kind", "id", "name", "now", "enqueues"), rows),
        ]
    )


def text_of_callback(entry: dict[str, Any] | None, job_id: UUID | None) -> str | None:
    """Name the job that a group enqueues at its end, with its id once it was; None without one."""
    if entry is None:
        return None
    return f"{entry.get('job_type')}{f' ({job_id})' if job_id else ''}"


def many(count: int) -> str:
    """Write a bounded count."""
    return f"{count}+" if count >= group_reports.BOUND else str(count)


def jobs(count: int) -> str:
    """Write a bounded count of jobs."""
    return "1 job" if count == 1 else f"{many(count)} jobs"

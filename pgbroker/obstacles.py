"""What is in the way of a retry, by kind and name, and the command that clears it."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from pgbroker.lifecycle.find_group import identify_group
from pgbroker.lifecycle.look import look
from pgbroker.lifecycle.retry import Retried
from pgbroker.states import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """
    What keeps a job, or a run group, from its retry.

    *words* name it, *cure* is the command that clears it, or what else to do. *job_id* or *group_id* is what has to be
    retried first, where that is there; *label* what it is called.
    """

    words: str
    cure: str
    job_id: UUID | None = None
    group_id: UUID | None = None
    label: str = ""

    def __str__(self) -> str:
        return f"{self.words}: {self.cure}"


def find_obstacles(answers: Iterable[Retried], *, using: str) -> dict[UUID, Obstacle]:
    """Find what is in the way of each job whose retry was refused with prerequisite_failed; of many it is often one."""
    known: dict[tuple[UUID | None, str | None], Obstacle] = {}
    found = {}
    for answer in answers:
        if answer.outcome != "prerequisite_failed":
            continue
        key = (answer.holder_id, answer.missing)
        if key not in known:
            known[key] = find_obstacle(answer, using=using)
        found[answer.job_id] = known[key]
    return found


def find_obstacle(answer: Retried, *, using: str) -> Obstacle:
    """Find what keeps a job from its retry, which was refused with prerequisite_failed."""
    if answer.holder_id is None:
        is_job = (answer.missing or "").startswith("job ")
        return Obstacle(
            words=f"it waits for {answer.missing}, which is not there",
            cure="enqueue that first, with .options(group=..., name=...)"
            if is_job
            else "open that first, with run_group(...)",
        )
    return obstacle_at(answer.holder_id, using=using)


def obstacle_at(prerequisite_id: UUID, *, using: str) -> Obstacle:
    """Name a prerequisite that ended badly, and what makes it live again: of a job that of its cause."""
    group = identify_group(prerequisite_id, using=using)
    if group is not None:
        return Obstacle(
            words=f"its prerequisite, run group {group.name}, is {group.state.label}",
            cure=f"broker_groups retry {shlex.quote(group.name)}",
            group_id=prerequisite_id,
            label=f"run group {group.name}",
        )
    job = look(prerequisite_id, using=using)
    if job is None:
        return Obstacle(
            words=f"its prerequisite {prerequisite_id} is not there any more",
            cure="let a worker's upkeep repair that",
        )
    cause = job.cause_id if job.reason_code == "prerequisite_failed" and job.cause_id else job.id
    because = "" if cause == job.id else f" because of job {cause}"
    return Obstacle(
        words=f"its prerequisite, job {job.id} ({job.job_type}), is {Status(job.status).label}{because}",
        cure=f"broker_jobs retry {cause}",
        job_id=cause,
        label=f"job {cause}",
    )

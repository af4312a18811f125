"""What is in the way of a retry, by kind and name, and the command that clears it."""

import shlex
from uuid import UUID

from pgbroker import group_reports, reports
from pgbroker.lifecycle.retry import Retried
from pgbroker.states import Status


def obstacle_of(answer: Retried, *, using: str) -> str:
    """Say what keeps a job from its retry, which was refused with prerequisite_failed, and what to do."""
    if answer.holder_id is None:
        return f"it waits for {answer.missing}, which is not there: open or enqueue that first"
    return cure_of(answer.holder_id, using=using)


def cure_of(prerequisite_id: UUID, *, using: str) -> str:
    """Name a prerequisite that ended badly, and the command that makes it live again: of a job that of its cause."""
    groups = group_reports.read_groups([prerequisite_id], using=using)
    if groups:
        name = groups[0].name
        return f"its prerequisite, run group {name}, is {groups[0].label}: broker_groups retry {shlex.quote(name)}"
    story = reports.read_story(prerequisite_id, using=using)
    if story is None:
        return f"its prerequisite {prerequisite_id} is not there any more"
    job = story.job
    cause = job.cause_id if job.reason_code == "prerequisite_failed" and job.cause_id else job.id
    because = "" if cause == job.id else f" because of job {cause}"
    return (
        f"its prerequisite, job {job.id} ({job.job_type}), is {Status(job.status).label}{because}: "
        f"broker_jobs retry {cause}"
    )

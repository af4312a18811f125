"""What is to be true of jobs that wait for each other, whatever has happened."""

from __future__ import annotations

from uuid import UUID

from django.db import connection

from pgbroker.models import DeferredReference, Job, JobDependency, JobState, RunGroup, Unresolved
from pgbroker.states import GroupState, Status

COMPLETED, CANCELLED, WAITING, BLOCKED = Status.COMPLETED, Status.CANCELLED, Status.WAITING, Status.BLOCKED


def assert_nothing_starts_too_early() -> None:
    """Look for a job that may run, or runs, before its last edge is satisfied."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select count(*) from pgbroker.job where status in (0, 2, 3) and exists (select from "
            "pgbroker.job_dependency as edge where edge.dependent_id = job.id and edge.satisfied_at is null)"
        )
        assert cursor.fetchone() == (0,)


def assert_in_order() -> None:
    """Ask of every row whether it stands where its edges say, which say what is so."""
    ends = dict(Job.objects.values_list("pk", "status")) | dict(RunGroup.objects.values_list("pk", "state"))
    open_edges: dict[UUID, list[tuple[int, int]]] = {}
    for edge in JobDependency.objects.filter(satisfied_at=None):
        ended = ends[edge.prerequisite_id]
        assert edge.outcome == (ended if ended >= 10 else 0)
        assert ended != COMPLETED
        open_edges.setdefault(edge.dependent_id, []).append((edge.on_failure, edge.outcome))
    fell = set(JobState.objects.filter(reason_code="prerequisite_failed").values_list("job_id", flat=True))
    expired = set(JobState.objects.filter(reason_code="reference_expired").values_list("job_id", flat=True))
    for job_id, status in Job.objects.values_list("pk", "status"):
        bad = {policy for policy, outcome in open_edges.get(job_id, ()) if outcome}
        if status == WAITING:
            assert job_id in open_edges or DeferredReference.objects.filter(dependent_id=job_id).exists()
            assert not bad
        elif status == BLOCKED:
            assert bad == {1} or (job_id in expired and 0 not in bad)
        elif status == CANCELLED and job_id in fell:
            assert 0 in bad
    for group_id, state in RunGroup.objects.values_list("pk", "state"):
        if state == GroupState.SEALED:
            live = Job.objects.filter(run_group_id=group_id, status__lt=10).exists()
            assert live or open_edges.get(group_id)
    assert Unresolved.objects.count() == 0

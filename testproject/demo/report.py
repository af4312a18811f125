"""What became of the jobs, read from the database: the summary, and the speed of those that do nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from django.db.models import Avg, Count, F, Max, Min, Q

from pgbroker.models import Job
from pgbroker.states import LIVE, AttemptState, Status
from pgbroker.tenancy import scope_all, tenant_context
from testproject.demo.batch import Batch
from testproject.demo.progress import table

_WENT_ON = Q(attempt_no__lt=F("job__attempt_count"))
ATTEMPTS = {
    "retried": Count(
        "attempt_no", filter=Q(state__in=[AttemptState.FAILED, AttemptState.TIMED_OUT]) & _WENT_ON
    ),
    "snoozed": Count("attempt_no", filter=Q(state=AttemptState.SNOOZED)),
    "reaped": Count("attempt_no", filter=Q(state__in=[AttemptState.LEASE_EXPIRED, AttemptState.CRASHED])),
    "released": Count("attempt_no", filter=Q(state=AttemptState.RELEASED)),
}
ENDS = {
    "completed": Status.COMPLETED,
    "discarded": Status.FAILED,
    "dead": Status.DEAD_LETTER,
    "cancelled": Status.CANCELLED,
}
COLUMNS = ["jobs", "completed", "retried", "snoozed", "discarded", "dead", "cancelled"]
# Columns of what a quiet run has none of.
SOMETIMES = ["reaped", "released", "not ended"]


def live_jobs() -> int:
    """Count the jobs of the database, whoever made them, that have not ended."""
    with scope_all():
        return Job.objects.filter(status__in=LIVE).count()


def failures(tenant: str) -> dict[str, str]:
    """Say where the admin lists the jobs of a tenant that ended badly, as paths below its address."""
    named = {"dead letters": Status.DEAD_LETTER, "discarded": Status.FAILED, "cancelled": Status.CANCELLED}
    with tenant_context(tenant):
        return {
            what: f"pgbroker/job/?status={int(status)}"
            for what, status in named.items()
            if Job.objects.filter(status=status).exists()
        }


@dataclass
class Line:
    """What happened to one job type; *seconds* is the mean of the attempts that completed."""

    numbers: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seconds: float | None = None


def summary(batches: Sequence[Batch]) -> str:
    """Lay out what ran, was retried, snoozed, discarded, cancelled or died, by job type."""
    lines: dict[str, Line] = defaultdict(Line)
    with scope_all():
        for batch in batches:
            _count_jobs(batch, lines)
            _count_attempts(batch, lines)
    everything = Line()
    for line in lines.values():
        for name, number in line.numbers.items():
            everything.numbers[name] += number
    columns = COLUMNS + [name for name in SOMETIMES if everything.numbers[name]]
    rows = [_row(name, line, columns) for name, line in [*sorted(lines.items()), ("all", everything)]]
    return table(["job type", *columns, "mean time"], rows)


def _count_jobs(batch: Batch, lines: dict[str, Line]) -> None:
    for name, status, number in (
        batch.jobs().values_list("job_type__name", "status").annotate(number=Count("id"))
    ):
        numbers = lines[name].numbers
        numbers["jobs"] += number
        end = next((end for end, ended in ENDS.items() if ended == status), "not ended")
        numbers[end] += number


def _count_attempts(batch: Batch, lines: dict[str, Line]) -> None:
    mean = Avg("duration_seconds", filter=Q(state=AttemptState.COMPLETED))
    counted = batch.executions().values_list("job__job_type__name").annotate(mean=mean, **ATTEMPTS)
    for name, seconds, *numbers in counted:
        lines[name].seconds = seconds
        for column, number in zip(ATTEMPTS, numbers, strict=True):
            lines[name].numbers[column] += number


def _row(name: str, line: Line, columns: list[str]) -> list[str]:
    numbers = (line.numbers[column] for column in columns)
    mean = "" if line.seconds is None else f"{line.seconds * 1000:,.1f} ms"
    return [name, *(f"{number:,}" if number else "-" for number in numbers), mean]


@dataclass(frozen=True)
class Speed:
    """How fast jobs ran: from the start of the first to the commit of the last, by the database's clock."""

    jobs: int
    time: timedelta
    workers: int

    @property
    def a_second(self) -> float:
        """Jobs a second."""
        return self.jobs / max(self.time.total_seconds(), 0.001)


def speed(batch: Batch) -> Speed:
    """Measure a batch whose jobs have all ended."""
    with scope_all():
        seen = (
            batch.executions()
            .filter(state=AttemptState.COMPLETED)
            .aggregate(
                jobs=Count("*"),
                began=Min("started_at"),
                ended=Max("completed_at"),
                workers=Count("worker_id", distinct=True),
            )
        )
    return Speed(jobs=seen["jobs"], time=seen["ended"] - seen["began"], workers=seen["workers"])

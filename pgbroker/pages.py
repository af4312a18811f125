"""
What the admin's own pages show: facts as text, pictures as numbers for SVG templates.

The templates draw with attributes and classes only, so that any content security policy allows it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.timezone import localtime

from pgbroker import reports
from pgbroker.bodies import Reference
from pgbroker.policy.timeline import Bar, place, stack
from pgbroker.states import AttemptState, Status

WIDTH, ROW, GAP, LABEL = 560, 22, 8, 230
CHART_HEIGHT, STEP = 120, 12
# Characters of arguments, results, tracebacks and logs that a page shows.
TEXT_MAX = 100_000
FACTS = (
    "queue", "tenant_id", "priority", "crash_count", "created_at", "ready_at", "available_at", "deadline_at",
    "leased_at", "worker_id", "cancel_requested_at", "finished_at", "idempotency_key", "correlation_id",
    "reason_code", "reason",
)  # fmt: skip


def pretty(value: Any) -> str:
    """Write JSON to be read."""
    return short(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def shown(value: Any) -> str:
    """Write a stored value; of a body, which may be huge, only where it lies."""
    return str(value) if isinstance(value, Reference) else pretty(value)


def short(text: str | None) -> str:
    """Cut what is too long for a page."""
    if not text or len(text) <= TEXT_MAX:
        return text or ""
    return f"{text[:TEXT_MAX]}\n… {len(text) - TEXT_MAX} characters more"


def describe_job(story: reports.Story, *, now: datetime) -> dict[str, Any]:
    """Return what the page of a job shows."""
    job = story.job
    values = {**job._asdict(), "worker_id": reports.who_runs(job)}
    facts = [(name.replace("_", " ").removesuffix(" id"), values[name]) for name in FACTS]
    attempts = [
        {
            **each._asdict(),
            "state": AttemptState(each.state).label,
            "state_words": AttemptState(each.state).label.replace("_", " "),
            "traceback": short(each.traceback),
            "log_tail": short(each.log_tail),
        }
        for each in reversed(story.attempts)
    ]
    return {
        "job": job,
        "status": job.status.label,
        "status_words": job.status.label.replace("_", " "),
        "tags": job.tags or [],
        "facts": [(name, _written(value)) for name, value in facts if value not in (None, "")],
        "arguments": shown(reports.arguments_of(job.stored_call)),
        "options": pretty(job.options) if job.options else "",
        "result": shown(job.stored_result) if job.status == Status.COMPLETED else "",
        "attempts": attempts,
        "moments": reports.moments(story),
        "picture": draw_timeline(story, now=now),
    }


def _written(value: Any) -> Any:
    """Write an instant with its seconds, which Django's formats leave out."""
    return localtime(value).strftime("%Y-%m-%d %H:%M:%S %Z") if isinstance(value, datetime) else value


def describe_queue(
    depth: reports.QueueDepth | None, pauses: Sequence[reports.PauseLine], minutes: Sequence[reports.Minute]
) -> dict[str, Any]:
    """Return what the page of a queue shows besides its form."""
    counts = depth.counts if depth else {}
    return {
        "depth": {
            reports.heading(name).replace("_", " "): reports.at_most(count) for name, count in counts.items()
        },
        "oldest": depth.oldest_ready_seconds if depth else None,
        "pauses": pauses,
        "paused": any(pause.tenant is None for pause in pauses),
        "picture": draw_throughput(minutes),
    }


@dataclass(frozen=True, slots=True)
class Lane:
    """One attempt in the picture of a job: its bar, where it stands, and the wait before it."""

    y: float
    middle: float
    bar: Bar
    wait: Bar | None

    @property
    def end_of_wait(self) -> float:
        """Where the attempt began."""
        return self.wait.x + self.wait.width if self.wait else 0.0

    @property
    def text_y(self) -> float:
        """The base line of the label."""
        return self.middle + 4


@dataclass(frozen=True, slots=True)
class TimelinePicture:
    """A job from its enqueueing to its end, or to its last attempt's; to now while it runs."""

    width: int
    height: int
    lanes: list[Lane]
    begin: datetime
    end: datetime
    seconds: float

    @property
    def labels(self) -> int:
        """Where the labels begin: beside the bars, which then cannot run through them."""
        return self.width + GAP

    @property
    def full_width(self) -> int:
        """The picture's width with its labels."""
        return self.width + LABEL


def draw_timeline(story: reports.Story, *, now: datetime) -> TimelinePicture | None:
    """Draw a job's attempts; None when there was none."""
    spans = reports.spans(story)
    if not spans:
        return None
    job = story.job
    last = now if job.status == Status.RUNNING else job.finished_at or job.created_at
    end = max([last, *(span.end for span in spans if span.end)])
    begin = min([job.created_at, *(span.start for span in spans)])
    bars, waits = place(spans, begin=begin, end=end, width=WIDTH)
    before = {wait.row: wait for wait in waits}
    lanes = [Lane(bar.row * ROW + 4, bar.row * ROW + 11, bar, before.get(bar.row)) for bar in bars]
    return TimelinePicture(WIDTH, len(lanes) * ROW + 4, lanes, begin, end, (end - begin).total_seconds())


@dataclass(frozen=True, slots=True)
class Column:
    """One minute in the picture of a queue: stacked parts, from the bottom up."""

    x: int
    parts: list[tuple[str, float, float]]
    title: str


@dataclass(frozen=True, slots=True)
class ThroughputPicture:
    """A queue's last minutes."""

    width: int
    height: int
    bar: int
    top: int
    columns: list[Column]
    done: int
    wrong: int
    begin: datetime
    end: datetime

    @property
    def right(self) -> int:
        """Where the labels of the scale begin."""
        return self.width + GAP

    @property
    def legend(self) -> int:
        """The base line of the labels of time."""
        return self.height + 15

    @property
    def full_width(self) -> int:
        """The picture's width with its labels."""
        return self.width + 60

    @property
    def full_height(self) -> int:
        """The picture's height with its labels."""
        return self.height + 20


def draw_throughput(minutes: Sequence[reports.Minute]) -> ThroughputPicture:
    """Draw what was completed and what went wrong, minute by minute."""
    counts = [(each.done, each.retried, each.failed + each.dead) for each in minutes]
    top, placed = stack(counts, height=CHART_HEIGHT)
    columns = [
        Column(
            place * STEP,
            [
                (name, y, tall)
                for name, (y, tall) in zip(("done", "retried", "failed"), parts, strict=True)
                if tall
            ],
            f"{each.bucket:%H:%M} {done} completed, {retried} retried, {wrong} failed",
        )
        for place, (each, (done, retried, wrong), parts) in enumerate(
            zip(minutes, counts, placed, strict=True)
        )
    ]
    return ThroughputPicture(
        width=len(minutes) * STEP,
        height=CHART_HEIGHT,
        bar=STEP - 2,
        top=top,
        columns=columns,
        done=sum(each.done for each in minutes),
        wrong=sum(each.failed + each.dead for each in minutes),
        begin=minutes[0].bucket,
        end=minutes[-1].bucket,
    )

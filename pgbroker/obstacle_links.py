"""What the admin says of a retry that was refused: what is in the way, with a link to where that is retried."""

from collections import Counter
from collections.abc import Iterable

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from pgbroker.lifecycle.retry import Retried
from pgbroker.obstacles import Obstacle, find_obstacles

# Obstacles that are named; one is told once, whatever number of jobs it bars.
NAMED_MAX = 5


def tell_obstacles(answers: Iterable[Retried], *, of: str = "", using: str) -> list[SafeString]:
    """Tell how many jobs each obstacle bars, the worst first; *of* says whose jobs they are."""
    barred = Counter(find_obstacles(answers, using=using).values()).most_common()
    told = [
        format_html("{}{} left alone: {}", _jobs(count), of, link_to(obstacle))
        for obstacle, count in barred[:NAMED_MAX]
    ]
    if more := sum(count for _, count in barred[NAMED_MAX:]):
        told.append(format_html("{}{} left alone because of others.", _jobs(more), of))
    return told


def link_to(obstacle: Obstacle) -> SafeString:
    """Name an obstacle, and link to the page of what has to be retried first."""
    page, pk = ("rungroup", obstacle.group_id) if obstacle.group_id else ("job", obstacle.job_id)
    if pk is None:
        return format_html("{}.", obstacle)
    return format_html(
        '{}. Retry <a href="{}">{}</a> first: what waited for it comes back by itself.',
        obstacle.words,
        reverse(f"admin:pgbroker_{page}_change", args=[pk]),
        obstacle.label,
    )


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"

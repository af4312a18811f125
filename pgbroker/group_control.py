"""What an operator does with a run group that exists: retry its failed part, cancel it. In pages, each a commit."""

from collections.abc import Iterator
from uuid import UUID

from pgbroker import control
from pgbroker.lifecycle.cancel_group import CancelledGroup, cancel_group
from pgbroker.lifecycle.group_progress import find_failed_members
from pgbroker.lifecycle.retry import Retried, retry_many

# Members that one statement takes.
PAGE = 500
# How often members are tried again that were in the way of each other.
ROUNDS_MAX = 10


def retry_failed_pages(
    group_id: UUID,
    *,
    cancelled: bool = False,
    attempts: int = 1,
    limit: int | None = None,
    using: str,
) -> Iterator[list[Retried]]:
    """
    Retry the members of a group that failed, page by page; with *cancelled* those too that were cancelled by hand.

    Each gets *attempts* more. What was cancelled because of them comes back by itself, and the group with them.
    Of a member that is answered more than once, the last answer holds.
    """
    after, left, barred = UUID(int=0), limit, list[UUID]()
    while left is None or left > 0:
        most = PAGE if left is None else min(PAGE, left)
        page = find_failed_members(group_id, cancelled=cancelled, after=after, limit=most, using=using)
        if not page:
            break
        answers = _retry(page, attempts, using)
        yield answers
        barred += [each.job_id for each in answers if each.outcome == "prerequisite_failed"]
        after, left = page[-1], None if left is None else left - len(page)
    for _ in range(ROUNDS_MAX):
        # What was in their way may have come later in the order of ids.
        tried, barred = barred, []
        progressed = False
        for start in range(0, len(tried), PAGE):
            answers = _retry(tried[start : start + PAGE], attempts, using)
            freed = [each for each in answers if each.outcome == "retried"]
            barred += [each.job_id for each in answers if each.outcome == "prerequisite_failed"]
            progressed = progressed or bool(freed)
            yield freed
        if not progressed:
            return


def _retry(job_ids: list[UUID], attempts: int, using: str) -> list[Retried]:
    answers = retry_many(job_ids, attempts=attempts, using=using)
    control.wake_queues(answers, using=using)
    return answers


def cancel_group_pages(
    group_id: UUID, *, reason: str = "", by: str = "", using: str
) -> Iterator[CancelledGroup]:
    """Seal a group and cancel its live members, page by page; nothing where this tenant has no such group."""
    while (page := cancel_group(group_id, reason=reason, by=by, limit=PAGE, using=using)) is not None:
        yield page
        if not page.is_left:
            return

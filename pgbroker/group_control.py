"""What an operator does with a run group that exists: retry its failed part, cancel it. In pages, each a commit."""

from collections.abc import Iterator
from uuid import UUID

from pgbroker import control
from pgbroker.lifecycle.cancel_group import CancelledGroup, cancel_group
from pgbroker.lifecycle.group_progress import BEFORE_ALL, find_failed_members
from pgbroker.lifecycle.retry import Retried, retry_many

# Members that one statement takes.
PAGE = 500
# Members that are looked for at a time: they are sorted, so a look costs as much as all that are left.
LOOK = 5000
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
    after, left, barred = BEFORE_ALL, limit, list[UUID]()
    while left is None or left > 0:
        most = LOOK if left is None else min(LOOK, left)
        found = find_failed_members(group_id, cancelled=cancelled, after=after, limit=most, using=using)
        if not found:
            break
        for answers in _retry_pages([each.job_id for each in found], attempts, using):
            yield answers
            barred += [each.job_id for each in answers if each.outcome == "prerequisite_failed"]
        after, left = found[-1], None if left is None else left - len(found)
    for _ in range(ROUNDS_MAX):
        # What was in their way may have come later: levels are not always what they should be.
        tried, barred = barred, []
        progressed = False
        for answers in _retry_pages(tried, attempts, using):
            freed = [each for each in answers if each.outcome == "retried"]
            barred += [each.job_id for each in answers if each.outcome == "prerequisite_failed"]
            progressed = progressed or bool(freed)
            yield freed
        if not progressed:
            return


def _retry_pages(job_ids: list[UUID], attempts: int, using: str) -> Iterator[list[Retried]]:
    for start in range(0, len(job_ids), PAGE):
        answers = retry_many(job_ids[start : start + PAGE], attempts=attempts, using=using)
        control.wake_queues(answers, using=using)
        yield answers


def cancel_group_pages(
    group_id: UUID, *, reason: str = "", by: str = "", using: str
) -> Iterator[CancelledGroup]:
    """Seal a group and cancel its live members, page by page; nothing where this tenant has no such group."""
    while (page := cancel_group(group_id, reason=reason, by=by, limit=PAGE, using=using)) is not None:
        yield page
        if not page.is_left:
            return

"""What a job waited for, as its handler sees it: which jobs and groups, how they ended, what they returned."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from pgbroker.bodies import Reference
from pgbroker.lifecycle.list_prerequisites import START, AnswerRow, list_members, list_prerequisites
from pgbroker.states import GroupState, Status
from pgbroker.tenancy import tenant_context

# Read at once, with their results: so many of the largest fit into memory.
PAGE = 100


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """
    A job or a run group that a job waited for; *group* is the name of the group that it is in, or is.

    *status* is a `Status`, of a group a `GroupState`. Where its row is gone, it is how it ended.
    """

    id: UUID
    name: str | None
    group: str | None
    status: Status | GroupState
    is_group: bool
    _stored: Any = field(repr=False)
    _members: "Prerequisites | None" = field(repr=False)

    @property
    def result(self) -> Any:
        """
        What the handler returned, as JSON values; None of a job that has not completed, and of a group.

        Reads a body, each time: may raise `BodyUnreadable`.
        """
        return self._stored.read() if isinstance(self._stored, Reference) else self._stored

    @property
    def members(self) -> "Prerequisites":
        """The jobs of a group, read when they are asked for; of a job there are none."""
        return self._members if self._members is not None else Prerequisites(lambda _: [])


class Prerequisites:
    """
    Prerequisites, or members of a group, read page by page: `for` and `async for`, as often as wanted.

    However many there are, few are in memory at once. They come by their ids, roughly as they were enqueued, and not in
    the order of `depends_on`: tell them apart by *id* or *name*.
    """

    def __init__(self, page: Callable[[UUID], list[Prerequisite]]) -> None:
        self._page = page

    def __iter__(self) -> Iterator[Prerequisite]:
        page = self._page(START)
        while page:
            yield from page
            page = self._page(page[-1].id) if len(page) == PAGE else []

    async def __aiter__(self) -> AsyncIterator[Prerequisite]:
        read = sync_to_async(self._page, thread_sensitive=True)
        page = await read(START)
        while page:
            for each in page:
                yield each
            page = await read(page[-1].id) if len(page) == PAGE else []


def prerequisites_of(job_id: UUID, *, tenant: str, using: str) -> Prerequisites:
    """Return what a job of that tenant waited for. Nothing is read yet."""
    return Prerequisites(partial(_page, list_prerequisites, job_id, tenant, using))


def _page(
    listed: Callable[..., list[AnswerRow]], of: UUID, tenant: str, using: str, after: UUID
) -> list[Prerequisite]:
    with tenant_context(tenant):
        rows = listed(of, after=after, limit=PAGE, using=using)
    return [_prerequisite(row, tenant, using) for row in rows]


def _prerequisite(row: AnswerRow, tenant: str, using: str) -> Prerequisite:
    stored = row.result
    if row.result_body is not None:
        stored = Reference(row.result_body, row.result, tenant)
    members = Prerequisites(partial(_page, list_members, row.id, tenant, using)) if row.is_group else None
    status = GroupState(row.status) if row.is_group else Status(row.status)
    return Prerequisite(row.id, row.name, row.group, status, row.is_group, stored, members)

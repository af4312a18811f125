"""
How calls about waiting look to a type checker: mypy reads this file, nobody runs it.

What must be wrong is marked so, and mypy tells when it is wrong no more.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from pgbroker import (
    DeferredRef,
    Edge,
    GroupRef,
    JobContext,
    JobRef,
    RunGroup,
    add_dependency,
    enqueue_many,
    get_group,
    get_job,
    job,
    run_group,
    unblock,
)
from pgbroker.states import GroupState


@job
def extract(source: str) -> int:
    return len(source)


@job(takes_context=True)
def total(context: JobContext) -> int:
    context.graft(extract, "a")
    context.graft(extract, 7)  # type: ignore[arg-type]
    names: list[str | None] = [each.name for each in context.prerequisites]
    return len(names)


@job
def tell() -> None: ...


def fill(job_id: UUID) -> None:
    with run_group("nightly", tolerate="5%", on_completed=tell, on_failed=extract.bind("x")) as group:
        first = group.enqueue(extract, "a", name="first")
        group.enqueue(extract.bind("b"), depends_on=[first, ("nightly", "first"), JobRef("nightly", "first")])
        call = extract.bind("c")
        group.enqueue_many(
            [call, extract.options(depends_on=[call, Edge(first, on_failure="ignore")]).bind("d")]
        )
        group.enqueue(
            extract, "e", depends_on=[group, GroupRef("x"), DeferredRef("x", within=5), job_id, "id"]
        )
        group.enqueue(extract, "f", depends_on=[7])  # type: ignore[list-item]
        group.enqueue(extract, "f", depends_on=[call, get_job(job_id)])
    run_group("nightly", on_completed=extract)  # type: ignore[arg-type] # it has parameters
    run_group("nightly", depends_on=[group, first], on_failure="block", seal=False)
    DeferredRef("x")  # type: ignore[call-arg]
    enqueue_many([extract.bind("a"), extract.bind(7)])  # type: ignore[arg-type]


def act(job_id: UUID) -> float:
    group: RunGroup = get_group("nightly")
    state: GroupState = group.seal()
    assert state >= GroupState.SEALED
    added: int = add_dependency(
        job_id, [DeferredRef("x", "y", within=timedelta(hours=1))], on_failure="ignore"
    )
    statuses = [answer.status for answer in unblock(job_id, group.enqueue(extract, "z"))]
    retried: int = group.retry_failed(attempts=2, cancelled=True)
    return group.progress().percent + added + retried + sum(statuses)


async def later() -> int:
    async with run_group("later") as group:
        await group.aenqueue(extract, "a")
        await group.aenqueue_many([extract.bind("b")])
    cancelled = await group.acancel(reason="enough")
    return cancelled.cancelled

"""What is enqueued, decided by a seed alone: the same run can be made again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from pgbroker.registry import Call
from pgbroker.states import Status
from testproject.chaos import jobs

TENANTS = ("acme", "globex", "initech")
LONGEST_SECONDS = 0.2
KINDS = {"plain": 78, "later": 8, "flaky": 7, "snoozed": 2, "given up": 2, "hopeless": 1, "cancelled": 2}
# The share of jobs that end as completed.
COMPLETING = 1 - sum(KINDS[kind] for kind in ("given up", "hopeless", "cancelled")) / sum(KINDS.values())


@dataclass(frozen=True, kw_only=True)
class Item:
    """One job to come: the call, and how it must end. Its key finds it, however often it was asked for."""

    key: str
    tenant: str
    call: Call
    ends: Status
    is_cancelled: bool = False


def items(seed: int) -> Iterator[Item]:
    """Yield the jobs of a run, for ever."""
    dice = random.Random(seed)
    number = 0
    while True:
        number += 1
        yield _item(f"{seed}:{number}", dice)


def _item(key: str, dice: random.Random) -> Item:
    (kind,) = dice.choices([*KINDS], [*KINDS.values()])
    tenant = dice.choice(TENANTS)
    seconds = round(LONGEST_SECONDS * dice.random() ** 3, 4)
    load = "x" * dice.choice((10, 10, 10, 100, 1_000, 20_000))
    task = dice.choice((jobs.work, jobs.work, jobs.work_async))
    ends = Status.COMPLETED
    match kind:
        case "snoozed":
            call = jobs.come_back.bind(seconds=seconds)
        case "given up":
            call, ends = jobs.give_up.bind(), Status.FAILED
        case "hopeless":
            call, ends = jobs.never.bind(), Status.DEAD_LETTER
        case "flaky":
            call = task.bind(seconds=seconds, load=load, fails=dice.choice((1, 1, 2)))
        case _:
            call = task.bind(seconds=seconds, load=load)
    chosen = call.task.using(priority=dice.choice((0, 0, 0, -5, 5)))
    if kind == "later":
        chosen = chosen.using(run_after=timedelta(seconds=round(2 * dice.random(), 3)))
    elif kind == "cancelled":
        chosen, ends = chosen.using(run_after=timedelta(hours=1)), Status.CANCELLED
    # Retained: whoever asks again, because the first answer never came, gets the same job, ended or not.
    chosen = chosen.options(idempotency_key=key, idempotency_scope="retained", tenant=tenant)
    return Item(
        key=key,
        tenant=tenant,
        call=chosen.bind(*call.args, **call.kwargs),
        ends=ends,
        is_cancelled=kind == "cancelled",
    )

"""Many jobs of all kinds while workers are killed: each ends once in its right state, and nothing grows."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import connection, connections

from pgbroker import enqueue_many
from pgbroker.tenancy import scope_all
from testproject.bench import claim_clock, jobs, ran, stage
from testproject.bench.compare import figure, percentile, ratio, row, tell
from testproject.bench.conditions import versions
from testproject.bench.rows import Row, Scale
from testproject.bench.worker import Child, start_worker

SEED = 20261129
TENANTS = 50
WORKERS = 2
BURST = (500, 8_000)
# The bursts stop while so many jobs have not run, so that claims meet the same backlog from first to last.
BACKLOG = 20_000
KILL_SECONDS = (4.0, 10.0)
PARTS = 10
PATIENCE_SECONDS = 120.0
SETTINGS = {
    "LEASE_SECONDS": 3,
    "HEARTBEAT_SECONDS": 1,
    "REAP_SECONDS": 0.5,
    # A kill takes hundreds of held jobs along: none shall be given up for that.
    "MAX_CRASHES": 1000,
}
HOT_INDEXES = ("job_claim", "job_due", "job_lease", "job_deadline")


@dataclass(frozen=True, slots=True)
class Kind:
    """One job of the mix, and so how it must end."""

    tenant: str
    priority: int
    fails: int
    seconds: float
    size: int

    @property
    def dies(self) -> bool:
        """True when it fails at every attempt it has."""
        return self.fails >= 1000


def kinds(count: int) -> list[Kind]:
    """Return the mix: the same for the same number."""
    chance = random.Random(SEED)
    return [
        Kind(
            tenant=f"tenant-{int(TENANTS * chance.random() ** 2)}",
            priority=chance.choice((-10, 0, 0, 0, 10)),
            fails=chance.choices((0, 1, 2, 1000), (960, 25, 10, 5))[0],
            seconds=chance.choices((0.0, 0.002, 0.05), (970, 25, 5))[0],
            size=chance.choices((20, 500, 4_000, 30_000), (850, 120, 28, 2))[0],
        )
        for _ in range(count)
    ]


class Enqueuer(threading.Thread):
    """Enqueues the mix in bursts, each of them one call for many tenants."""

    def __init__(self, mix: list[Kind], look: ran.Look) -> None:
        super().__init__(daemon=True)
        self.mix, self.look = mix, look
        self.done = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        chance = random.Random(SEED + 1)
        try:
            while self.done < len(self.mix):
                if self.done - (len(self.mix) - self.look.missing) > BACKLOG:
                    time.sleep(0.05)
                    continue
                part = range(self.done, min(len(self.mix), self.done + chance.randint(*BURST)))
                outcomes = enqueue_many([self._call(number) for number in part])
                assert all(outcome.outcome == "created" for outcome in outcomes)
                self.done = part.stop
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()

    def _call(self, number: int) -> Any:
        kind = self.mix[number]
        task = jobs.mixed.using(priority=kind.priority).options(
            tenant=kind.tenant, max_attempts=3 if kind.dies else None
        )
        return task.bind(number, kind.fails, kind.seconds, "x" * kind.size)


@dataclass
class Fleet:
    """The workers, one of which is killed now and then; another one takes its place."""

    directory: Path
    look: ran.Look
    chance: random.Random
    running: list[Child]
    killed: int = 0
    next_kill: float = 0.0

    def start(self) -> None:
        """Start workers until there are enough."""
        while len(self.running) < WORKERS:
            self.running.append(
                start_worker(
                    "--concurrency=16",
                    settings=SETTINGS,
                    **{ran.VARIABLE: str(self.look.path), claim_clock.VARIABLE: str(self.directory)},
                )
            )

    def kill_when_due(self) -> None:
        """Kill one of them if it is time to; a real SIGKILL, in the middle of whatever it does."""
        now = time.monotonic()
        if not self.next_kill:
            self.next_kill = now + self.chance.uniform(*KILL_SECONDS)
        elif now >= self.next_kill:
            self.running.pop(self.chance.randrange(len(self.running))).kill()
            self.killed += 1
            self.next_kill = now + self.chance.uniform(*KILL_SECONDS)
            self.start()

    def end(self) -> None:
        """End them all."""
        for child in self.running:
            child.kill()


@dataclass(frozen=True)
class Sizes:
    """Bytes after a vacuum."""

    per_row: float
    hot: int


def sizes() -> Sizes:
    """Vacuum, and return what the tables take for each row, and what the indexes of live rows take."""
    with connection.cursor() as cursor:
        for table in ("job", "job_payload"):
            cursor.execute(f"vacuum analyze pgbroker.{table}")
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(
            "select pg_total_relation_size('pgbroker.job')::float / count(*) from pgbroker.job having count(*) > 0"
        )
        (per_row,) = cursor.fetchone()
        cursor.execute(
            "select sum(pg_relation_size(('pgbroker.' || name)::regclass)) from unnest(%s::text[]) as name",
            [list(HOT_INDEXES)],
        )
        (hot,) = cursor.fetchone()
    return Sizes(per_row=float(per_row), hot=int(hot))


def wrong_jobs(mix: list[Kind], look: ran.Look) -> int:
    """Return how many jobs are lost, twice there, not in their right state, or completed other than once."""
    with scope_all(), connection.cursor() as cursor:
        cursor.execute(
            """
            select (coalesce(payload.args -> 'kwargs' -> 'number', payload.args -> 'args' -> 0))::int,
                job.status, job.tenant_id, coalesce(ended.completed, 0)
            from pgbroker.job
            join pgbroker.job_payload as payload on payload.job_id = job.id
            left join (
                select job_id, count(*) filter (where state = 1) as completed
                from pgbroker.execution
                group by job_id
            ) as ended on ended.job_id = job.id
            """
        )
        rows = cursor.fetchall()
    expected = {
        number: (12 if kind.dies else 10, kind.tenant, 0 if kind.dies else 1)
        for number, kind in enumerate(mix)
    }
    right = {number for number, *found in rows if expected[number] == tuple(found)}
    # How often one ran is not known: a kill ends an attempt before its handler begins, or after. Not never.
    times = look.times()
    right -= {number for number in right if times[number] == 0 and not mix[number].dies}
    return len(mix) - len(right) + (len(rows) - len({number for number, *_ in rows}))


def _soak(scale: Scale) -> dict[str, Any]:
    count = scale.count(quick=50_000, full=1_000_000)
    stage.empty()
    mix, look = kinds(count), stage.notes(count)
    directory = stage.directory() / "claims"
    directory.mkdir(exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    fleet = Fleet(directory, look, random.Random(SEED + 2), [])
    enqueuer = Enqueuer(mix, look)
    seen: list[Sizes] = []
    began = last_change = time.monotonic()
    left = count
    try:
        fleet.start()
        enqueuer.start()
        while left or enqueuer.is_alive():
            time.sleep(0.1)
            if enqueuer.error is not None:
                raise enqueuer.error
            fleet.kill_when_due()
            if look.missing < left:
                left, last_change = look.missing, time.monotonic()
                tell(f"{count - left:,} of {count:,} jobs have run, {fleet.killed} workers killed")
            assert time.monotonic() - last_change < PATIENCE_SECONDS, [
                child.said() for child in fleet.running
            ]
            if len(seen) < PARTS and (count - left) >= count * (len(seen) + 1) // PARTS:
                seen.append(sizes())
        # What was killed last, and what is due again.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while live() and time.monotonic() < deadline:
            time.sleep(0.1)
        seconds = time.monotonic() - began
    finally:
        fleet.end()
    claims = claim_clock.read(directory)
    tenth = max(1, len(claims) // PARTS)
    first, last = (1000 * percentile(part, 0.99) for part in (claims[:tenth], claims[-tenth:]))
    wrong = wrong_jobs(mix, look)
    stage.empty()
    # The first parts fill what later parts use again.
    early = seen[len(seen) // 3]
    return row(
        count / seconds,
        "jobs/s",
        [
            figure("jobs that are lost, twice, or not in their right state", wrong, at_most=0),
            ratio(
                "p99 of the claims of the last tenth by that of the first, ms", [last], [first], at_most=1.3
            ),
            ratio(
                "bytes a job after vacuum, at the end by a third on",
                [seen[-1].per_row],
                [early.per_row],
                at_most=1.1,
            ),
            ratio(
                "bytes of the indexes of live jobs after vacuum, at the end by a third on",
                [seen[-1].hot],
                [early.hot],
                at_most=1.2,
            ),
        ],
        kills=fleet.killed,
        claims=len(claims),
        minutes=round(seconds / 60, 1),
        jobs=count,
        rounds=1,
        quick=scale.quick,
        versions=versions(),
    )


def live() -> bool:
    """Tell whether a job has not ended."""
    with scope_all(), connection.cursor() as cursor:
        cursor.execute("select exists (select from pgbroker.job where status < 10)")
        (any_left,) = cursor.fetchone()
    return bool(any_left)


ROWS = [
    Row(
        name="soak",
        what="1,000,000 jobs of a seeded mix (sizes, durations, retries, priorities, 50 tenants, bursts) while workers "
        "are killed",
        measure=_soak,
    )
]

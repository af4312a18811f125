"""What a worker process takes of the machine's memory, beside a Django process that does nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pgbroker import pause, resume
from testproject.bench import jobs, ran, stage
from testproject.bench.compare import NotRun, ratio, row, tell
from testproject.bench.conditions import versions
from testproject.bench.rows import Row, Scale
from testproject.bench.worker import Child, is_anything_live, wait_until, workers

# Long enough for a heartbeat, a pass of upkeep and a poll of an idle worker.
REST_SECONDS = 20.0
WAITING = 1_000_000


def mebibytes(pid: int) -> float:
    """Return the resident memory of a process."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError as error:
        raise NotRun("there is no /proc here to read memory from") from error
    (line,) = (line for line in text.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def _memory(scale: Scale) -> dict[str, Any]:
    count, rounds = scale.count(quick=60_000, full=300_000), scale.turns(quick=1, full=3)
    waiting = count if scale.quick or scale.jobs else WAITING
    rest = 6.0 if scale.quick or scale.jobs else REST_SECONDS
    seen: dict[str, list[float]] = {
        name: [] for name in ("bare", "idle", "at work", "after", "with many waiting")
    }
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        stage.empty()
        look = stage.notes(count)
        bare = Child("testproject.bench.bare")
        try:
            wait_until(lambda bare=bare: "ready" in bare.said(), [bare])
            with workers(1, "--concurrency=8", **{ran.VARIABLE: str(look.path)}) as (only,):
                time.sleep(rest)
                seen["bare"].append(mebibytes(bare.process.pid))
                seen["idle"].append(mebibytes(only.process.pid))
                pause(queue=jobs.QUEUE)
                stage.fill(jobs.noop_sync, count)
                resume(queue=jobs.QUEUE)
                wait_until(lambda look=look: look.missing < count / 2, [only])
                seen["at work"].append(mebibytes(only.process.pid))
                wait_until(lambda look=look: look.missing == 0 and not is_anything_live(), [only])
                time.sleep(rest)
                seen["after"].append(mebibytes(only.process.pid))
                pause(queue=jobs.QUEUE)
                stage.fill(jobs.noop_sync, waiting)
                time.sleep(rest)
                seen["with many waiting"].append(mebibytes(only.process.pid))
        finally:
            bare.kill()
        look.prove_once()
    stage.empty()
    return row(
        sorted(seen["idle"])[rounds // 2],
        "MiB resident, idle",
        [
            ratio(
                "a Django process of the same project that does nothing",
                seen["idle"],
                seen["bare"],
                at_most=1.4,
            ),
            ratio(
                f"the same worker before {count:,} jobs, after them",
                seen["after"],
                seen["idle"],
                at_most=1.05,
            ),
            ratio(
                f"the same worker before, with {waiting:,} jobs waiting",
                seen["with many waiting"],
                seen["idle"],
                at_most=1.05,
            ),
            ratio("the same worker before, at work", seen["at work"], seen["idle"]),
        ],
        jobs=count,
        rounds=rounds,
        quick=scale.quick,
        versions=versions(),
    )


ROWS = [
    Row(
        name="memory",
        what="resident memory of a worker process: idle, after 300,000 jobs, and with 1,000,000 waiting",
        measure=_memory,
    )
]

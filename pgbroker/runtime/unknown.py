"""Jobs of a type this worker has not loaded: put back with a growing delay, dead after a grace."""

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from pgbroker import telemetry
from pgbroker.db import Session
from pgbroker.lease import Lease
from pgbroker.lifecycle.release import release
from pgbroker.lifecycle.settle import settle
from pgbroker.lifecycle.unknown import type_names, unknown_since
from pgbroker.outcomes import Ended
from pgbroker.states import AttemptState

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker

CODE = "unknown_job_type"
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0


def put_back_unknown(worker: "Worker", leases: Sequence[Lease], *, using: Session) -> None:
    """
    Release jobs that another worker may know, and dead-letter those that nobody knew for the grace.

    Nothing is burned by a release, so a deploy that rolls out slowly loses nothing.
    """
    since = unknown_since([lease.job_id for lease in leases], using=using)
    names = type_names(list({lease.job_type_id for lease in leases}), using=using)
    grace = worker.settings.UNKNOWN_TYPE_GRACE_SECONDS
    back: list[tuple[Lease, timedelta]] = []
    dead: list[Ended] = []
    for lease in leases:
        seconds, times = since.get(lease.job_id, (0.0, 0))
        name = names.get(lease.job_type_id)
        telemetry.emit("job.unknown_type", **{**worker.keys(lease), "job_type": name}, error_code=CODE)
        if seconds >= grace and (times or grace == 0):
            dead.append(
                Ended(
                    lease,
                    AttemptState.FAILED,
                    lease.leased_at,
                    0.0,
                    dead=True,
                    error_code=CODE,
                    error=(
                        f"unknown job type: no worker that claimed this job in {grace:g} s has loaded {name!r} in "
                        f"version {lease.type_version}. Declare it in jobs.py or tasks.py of an installed app, deploy "
                        "the code, then retry the job."
                    ),
                )
            )
        else:
            delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(times, 10), max(grace - seconds, FIRST_DELAY))
            back.append((lease, timedelta(seconds=delay * (0.8 + random.random() * 0.2))))  # noqa: S311 - jitter
    if back:
        release(back, code=CODE, using=using)
        worker.claimer.due_in(min(delay for _, delay in back).total_seconds())
    if dead:
        settle(dead, using=using)

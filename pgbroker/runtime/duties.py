"""The duties of the upkeep: what the leader does for all, and what every process does for itself."""

from pgbroker.upkeep.dependencies import Reconcile, Resolve, ResolveDeferred
from pgbroker.upkeep.duty import Duty
from pgbroker.upkeep.history import (
    FoldCounters,
    Partitions,
    PartitionsNow,
    TidyWorkers,
    TrimSamples,
    TrimScheduleRuns,
)
from pgbroker.upkeep.recovery import Adopt, Expire, Reap, TellOverLong
from pgbroker.upkeep.samples import Sample

# What the lease of the leader is on.
UPKEEP = "upkeep"


def duties() -> list[Duty]:
    """Make the duties, in the order in which they are looked at. A further one is added here."""
    return [
        Reap(),
        PartitionsNow(),
        Resolve(),
        # From here on the leader's.
        Expire(),
        TellOverLong(),
        Adopt(),
        ResolveDeferred(),
        Reconcile(),
        Partitions(),
        Sample(),
        FoldCounters(),
        TrimSamples(),
        TidyWorkers(),
        TrimScheduleRuns(),
    ]

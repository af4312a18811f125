"""Tables that grow: history partitions ahead, counters folded, old samples and rows of workers deleted."""

import math
from datetime import timedelta

from pgbroker.conf import Settings
from pgbroker.lifecycle import fold as folding
from pgbroker.lifecycle.partitions import AHEAD, ensure_partitions
from pgbroker.lifecycle.sample import trim_samples
from pgbroker.lifecycle.tidy import tidy_workers
from pgbroker.lifecycle.trim_schedule_runs import trim_schedule_runs
from pgbroker.upkeep.duty import Duty, Round

# Every sample for some hours, and those that are coarse for longer.
SAMPLES_KEPT = ((False, timedelta(hours=6)), (True, timedelta(days=30)))
# As long as executions, which name a worker, are kept by default.
WORKERS_KEPT = timedelta(days=30)


class PartitionsNow(Duty):
    """Make the partition of this moment, and the next: each process when it starts, whoever leads."""

    name = "partitions_now"
    everybodys = True

    def period(self, settings: Settings) -> float:
        """Once."""
        return math.inf

    def page(self, now: Round) -> bool:
        """Make what is missing."""
        ensure_partitions(now.settings.PARTITION, ahead=1, using=now.session)
        return False


class Partitions(Duty):
    """Make history partitions ahead. One that fails is harmless: the default partition takes the rows."""

    name = "partitions"

    def __init__(self) -> None:
        self._ahead = 0

    def period(self, settings: Settings) -> float:
        """Once an hour."""
        return 3600.0

    def page(self, now: Round) -> bool:
        """Make those of one more width: each takes locks, and may have to wait for them."""
        self._ahead = 0 if now.first else self._ahead + 1
        ensure_partitions(now.settings.PARTITION, ahead=self._ahead, using=now.session)
        return self._ahead < AHEAD


class FoldCounters(Duty):
    """Add old counters up in wider buckets."""

    name = "fold_counters"
    paged = True

    def __init__(self) -> None:
        self._step = 0

    def period(self, settings: Settings) -> float:
        """Once a minute."""
        return 60.0

    def page(self, now: Round) -> bool:
        """Fold a page, and go on with the next wider bucket when there is no more."""
        if now.first:
            self._step = 0
        if folding.fold(folding.STEPS[self._step], limit=now.limit, using=now.session) < now.limit:
            self._step += 1
        return self._step < len(folding.STEPS)


class TrimSamples(Duty):
    """Delete samples that are older than their kind is kept."""

    name = "trim_samples"
    paged = True

    def __init__(self) -> None:
        self._kind = 0

    def period(self, settings: Settings) -> float:
        """Every five minutes."""
        return 300.0

    def page(self, now: Round) -> bool:
        """Delete a page, and go on with the other kind when there is no more."""
        if now.first:
            self._kind = 0
        coarse, age = SAMPLES_KEPT[self._kind]
        if trim_samples(coarse=coarse, age=age, limit=now.limit, using=now.session) < now.limit:
            self._kind += 1
        return self._kind < len(SAMPLES_KEPT)


class TidyWorkers(Duty):
    """Delete rows of workers that are long gone; a crash loop makes one every few seconds."""

    name = "tidy_workers"
    paged = True

    def period(self, settings: Settings) -> float:
        """Once an hour."""
        return 3600.0

    def page(self, now: Round) -> bool:
        """Delete a page."""
        return tidy_workers(silent=WORKERS_KEPT, limit=now.limit, using=now.session) >= now.limit


class TrimScheduleRuns(Duty):
    """Delete what became of ticks long ago: of each minute's schedule that is half a million rows a year."""

    name = "trim_schedule_runs"
    paged = True

    def __init__(self) -> None:
        self._left = 0

    def period(self, settings: Settings) -> float:
        """Every five minutes."""
        return 300.0

    def page(self, now: Round) -> bool:
        """Delete a page, and go on behind what lives or is held."""
        kept = now.settings.KEEP_SCHEDULE_RUNS_SECONDS
        if kept is None:
            return False
        if now.first:
            self._left = 0
        trimmed = trim_schedule_runs(
            age=timedelta(seconds=kept), limit=now.limit, skip=now.skip + self._left, using=now.session
        )
        self._left += trimmed.seen - trimmed.deleted
        return trimmed.seen >= now.limit

"""Samples: how much stands in each queue, every few seconds."""

from datetime import timedelta

from pgbroker.conf import Settings
from pgbroker.lifecycle.sample import EVERYTHING, NO_HINTS, sample
from pgbroker.upkeep.duty import Duty, Looks, Round

# How far back a look that is not full looks for scheduled jobs: what was due then is ready long ago.
SCHEDULED_WITHIN = timedelta(minutes=10)


class Sample(Duty):
    """
    Keep a sample of each queue. The one duty that is not idempotent, so its statement carries the fence.

    Between full looks it begins where the first jobs stood the last time: what becomes ready or is claimed
    later stands behind that, but for what commits very late.
    """

    name = "sample"

    def __init__(self) -> None:
        self._looks = Looks()
        self._hints = NO_HINTS

    def period(self, settings: Settings) -> float:
        """SAMPLE_SECONDS."""
        return settings.SAMPLE_SECONDS

    def page(self, now: Round) -> bool:
        """Sample all queues with one statement."""
        assert now.reign is not None
        self._looks.begin(full=self._looks.is_due)
        full = self._looks.is_full
        with self._looks.measured():
            hints = sample(
                now.reign.duty,
                holder=now.reign.holder,
                epoch=now.reign.epoch,
                lease=timedelta(seconds=now.settings.LEASE_SECONDS),
                hints=NO_HINTS if full else self._hints,
                within=EVERYTHING if full else SCHEDULED_WITHIN,
                using=now.session,
            )
        # Nothing comes back where another one leads: the old hints are as good.
        self._hints = hints or self._hints
        return False

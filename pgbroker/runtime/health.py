"""Whether a worker lives and whether it works, as probes ask; answered from memory, never from the database."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pgbroker.runtime.scheduler import Scheduler
    from pgbroker.runtime.supervisor import Worker

# A claim loop that began no turn for so long is stuck, not slow. It waits for an answer of the database for half
# a lease at most, so a whole lease counts where that is longer.
STUCK_SECONDS = 60.0


class Verdict(NamedTuple):
    """The answer to a probe, and why."""

    holds: bool
    reason: str


class Health:
    """
    Liveness: the claim loop turns. A database that is away is no reason to be killed.

    Readiness: it is connected, registered, and takes new work.
    """

    def __init__(
        self,
        worker: "Worker",
        *,
        facts: Mapping[str, object] | None = None,
        stuck_seconds: float | None = None,
    ) -> None:
        self.worker = worker
        # Where it works, as it was told at the start: a worker that polls a wrong database looks healthy.
        self.facts = dict(facts or {})
        chosen = worker.settings
        self.stuck_after = stuck_seconds or max(STUCK_SECONDS, chosen.LEASE_SECONDS, 3 * chosen.POLL_SECONDS)

    @property
    def turn_age(self) -> float:
        """How long ago the claim loop began its last turn, in seconds."""
        return time.monotonic() - self.worker.services["claim"].turned_at

    def live(self) -> Verdict:
        """Tell whether the claim loop turns; while the worker drains it has no need to."""
        claim = self.worker.services["claim"]
        if self.worker.draining:
            return Verdict(True, "draining")
        if claim.ident is None:
            # It may wait for its name until the lease of a dead worker has run out.
            age, limit = self.turn_age, self.stuck_after + self.worker.lease_time.total_seconds()
            return Verdict(age <= limit, f"starting for {age:.0f} s, limit {limit:g} s")
        if not claim.is_alive():
            return Verdict(False, "the claim loop has ended")
        age = self.turn_age
        if age > self.stuck_after:
            return Verdict(
                False, f"the claim loop has not turned for {age:.0f} s, limit {self.stuck_after:g} s"
            )
        return Verdict(True, f"the claim loop turned {age:.1f} s ago")

    def ready(self) -> Verdict:
        """Tell whether the worker can take new work."""
        worker = self.worker
        if worker.draining:
            return Verdict(False, "draining: nothing more is claimed")
        if not (live := self.live()).holds:
            return live
        if not worker.heartbeats.keep_up:
            return Verdict(False, "not registered: no heartbeat has reached the database lately")
        for loop in ("claim", "settle"):
            if worker.services[loop].failing or not worker.sessions[loop].is_open:
                return Verdict(False, f"not connected: the {loop} loop has no connection to the database")
        return Verdict(True, "connected, registered and claiming")

    def report(self, verdict: Verdict) -> str:
        """Write what a person may want to know who looks at a probe's answer."""
        worker = self.worker
        facts: dict[str, object] = {
            "worker": f"{worker.name} ({worker.id})",
            "pid": worker.pid,
            "alias": worker.alias,
            **self.facts,
            "queues": ",".join(sorted(worker.claimer.by_name)),
            "running": f"{worker.board.running} of {worker.board.slots}",
            "held": worker.board.held,
            "unsettled": worker.settler.backlog,
        }
        lines = [verdict.reason, "", *(f"{name}: {value}" for name, value in facts.items())]
        return "\n".join(lines) + "\n"


class SchedulerHealth:
    """
    Liveness: both loops turn. A database that is away is no reason to be killed.

    Readiness: it is connected, and leads or stands by.
    """

    def __init__(self, scheduler: "Scheduler", *, facts: Mapping[str, object] | None = None) -> None:
        self.scheduler = scheduler
        self.facts = dict(facts or {})

    def live(self) -> Verdict:
        """Tell whether its loops turn; while it ends they have no need to."""
        if self.scheduler.stopping:
            return Verdict(True, "stopping")
        ages = []
        for name, service in self.scheduler.services.items():
            age = time.monotonic() - service.turned_at
            if service.ident is not None and not service.is_alive():
                return Verdict(False, f"the {name} loop has ended")
            if age > STUCK_SECONDS:
                return Verdict(
                    False, f"the {name} loop has not turned for {age:.0f} s, limit {STUCK_SECONDS:g} s"
                )
            ages.append(f"{name} {age:.1f} s ago")
        return Verdict(True, f"the loops turned: {', '.join(ages)}")

    def ready(self) -> Verdict:
        """Tell whether it creates what is due, or would as soon as the lead is free."""
        if self.scheduler.stopping:
            return Verdict(False, "stopping")
        if not (live := self.live()).holds:
            return live
        service, session = self.scheduler.services["schedule"], self.scheduler.sessions["schedule"]
        if service.failing or not session.is_open:
            return Verdict(False, "not connected: the schedule loop has no connection to the database")
        return Verdict(True, "leads" if self.scheduler.leads else "stands by")

    def report(self, verdict: Verdict) -> str:
        """Write what a person may want to know who looks at a probe's answer."""
        scheduler = self.scheduler
        facts: dict[str, object] = {
            "scheduler": f"{scheduler.name} ({scheduler.id})",
            "pid": scheduler.pid,
            "alias": scheduler.alias,
            **self.facts,
            "leads": "yes" if scheduler.leads else "no",
        }
        lines = [verdict.reason, "", *(f"{name}: {value}" for name, value in facts.items())]
        return "\n".join(lines) + "\n"

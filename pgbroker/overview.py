"""One look at everything: what an operator wants to see first, gathered from the reports. Reads only."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from shlex import quote
from typing import NamedTuple

from pgbroker import db, reports
from pgbroker.lifecycle.clock import database_time
from pgbroker.lifecycle.over_long import OverLong
from pgbroker.lifecycle.take_due import SCHEDULER, next_schedule
from pgbroker.policy.misfire import GRACE
from pgbroker.states import AttemptState

# Minutes of history that are drawn.
HISTORY_MINUTES = 30
# What fails: of the newest so many failed attempts of the last hour, so many kinds.
FAILING_SINCE = timedelta(hours=1)
FAILING_BOUND = 1000
FAILING_MAX = 20
# Schedules in trouble that are listed, of each kind of it.
TROUBLED_MAX = 200
# Waiting for less is no trouble in itself.
LONG_WAIT_SECONDS = 60.0


class Failing(NamedTuple):
    """A type of job and the error it fails with; *state* is that of the newest such attempt."""

    job_type: str
    error_code: str | None
    state: int
    times: int
    last_seconds: float

    @property
    def error(self) -> str:
        """The error code, or how the attempt ended where there was none."""
        return self.error_code or AttemptState(self.state).label


class TroubledSchedule(NamedTuple):
    """
    A schedule that does not do what it says; *trouble* is overdue, failing, or disabled since it could not be read.

    It is overdue for *seconds*, or failed so long ago the last time. *times* counts failures in a row.
    """

    name: str
    tenant_id: str
    trouble: str
    seconds: float | None
    times: int
    error: str


class QueueRates(NamedTuple):
    """How many attempts ended in a queue."""

    queue_id: int
    done: int
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """
    Everything at one moment.

    *rates*, *minutes* and *totals* are None where only one tenant is looked at: counters know none, and what
    all did is not told as if it were one's. *rated_seconds* is the time over which rates were counted.
    """

    database_time: datetime
    tenant: str | None
    depths: list[reports.QueueDepth]
    pauses: list[reports.PauseLine]
    workers: list[reports.WorkerLine]
    leaders: list[reports.LeaderLine]
    over_long: list[OverLong]
    failing: list[Failing]
    # Whether a schedule has anything to come; None where only one tenant is looked at.
    ticks_come: bool | None
    troubled_schedules: list[TroubledSchedule]
    rates: dict[int, QueueRates] | None
    minutes: list[reports.Minute] | None
    totals: dict[str, float] | None
    rated_minutes: int

    @property
    def paused_queues(self) -> set[str]:
        """The queues that stand still for all tenants."""
        return {each.queue for each in self.pauses if each.queue and each.tenant is None}

    @property
    def dead_letters(self) -> int:
        """How many wait for a person; at most the bound."""
        return min(sum(each.dead_letter for each in self.depths), reports.BOUND)

    @property
    def oldest_ready_seconds(self) -> float:
        """How long the oldest ready job has waited."""
        return max((each.oldest_ready_seconds or 0.0 for each in self.depths), default=0.0)

    @property
    def rated_seconds(self) -> float:
        """Over how long the rates were counted: the current minute has just begun."""
        return (self.rated_minutes - 1) * 60 + self.database_time.second + 1

    def per_minute(self, count: float) -> float:
        """Make a rate of what was counted."""
        return count * 60 / self.rated_seconds

    @property
    def scheduler(self) -> reports.LeaderLine | None:
        """Who creates what schedules are due; None while nobody does."""
        return next((each for each in self.leaders if each.duty == SCHEDULER and each.leads), None)

    @property
    def overdue_schedules(self) -> int:
        """How many schedules have a tick that is late; at most `TROUBLED_MAX`."""
        return sum(each.trouble == "overdue" for each in self.troubled_schedules)

    @property
    def more_troubled(self) -> bool:
        """Tell whether more schedules may be in trouble than are listed."""
        kinds = [each.trouble for each in self.troubled_schedules]
        return any(kinds.count(each) >= TROUBLED_MAX for each in set(kinds))

    @property
    def lacks_scheduler(self) -> bool:
        """Tell whether nobody creates what is to come, or is late already."""
        return self.scheduler is None and bool(self.ticks_come or self.overdue_schedules)

    def cure_of(self, troubled: TroubledSchedule) -> str:
        """Return the command that ends the trouble, or tells how to."""
        which = f"{quote(troubled.name)} --tenant {troubled.tenant_id}"
        if troubled.trouble == "disabled":
            return f"broker_schedules enable {which}"
        if troubled.trouble == "overdue" and self.lacks_scheduler:
            return "broker_scheduler"
        return f"broker_schedules show {which}"

    def rates_of(self, depth: reports.QueueDepth) -> QueueRates | None:
        """Return how many attempts ended in a queue; None where that is not known."""
        if self.rates is None:
            return None
        return self.rates.get(depth.id) or QueueRates(depth.id, 0, 0)

    def most_trouble_first(self) -> list[reports.QueueDepth]:
        """Sort queues: by how long jobs wait, if that is long; then by errors, dead letters and what is ready."""

        def trouble(depth: reports.QueueDepth) -> tuple[float, ...]:
            oldest, rates = depth.oldest_ready_seconds or 0.0, self.rates_of(depth)
            return (
                oldest if oldest >= LONG_WAIT_SECONDS else 0.0,
                rates.errors if rates else 0,
                depth.failed + depth.dead_letter,
                depth.ready,
                depth.running,
                rates.done if rates else 0,
            )

        return sorted(self.depths, key=lambda each: (*(-number for number in trouble(each)), each.queue))


def list_failing(*, using: str | db.Session) -> list[Failing]:
    """List what failed most in the last hour, among the newest `FAILING_BOUND` failed attempts."""
    asked = {
        "tenant": reports.tenant_predicate(),
        "since": FAILING_SINCE,
        "bound": FAILING_BOUND,
        "limit": FAILING_MAX,
    }
    return db.fetch("failing", asked, Failing._make, using=using)


def list_troubled_schedules(*, using: str | db.Session) -> list[TroubledSchedule]:
    """List schedules that are overdue, that fail, or that a pass has disabled: at most `TROUBLED_MAX` of each."""
    asked = {"tenant": reports.tenant_predicate(), "grace": GRACE, "bound": TROUBLED_MAX}
    return db.fetch("schedule_troubles", asked, TroubledSchedule._make, using=using)


def look(*, tenant: str | None, minutes: int, using: str | db.Session) -> Overview:
    """
    Look at everything, in the scope of the context, which shows *tenant* alone or, without one, all.

    Rates are over the last *minutes*. Each statement has a bound of its own.
    """
    now = database_time(using=using)
    rates = history = totals = ticks_come = None
    if tenant is None:
        coming = next_schedule(using=using)
        ticks_come = coming.seconds is not None or coming.waits
        counted = db.fetch("queue_rates", {"minutes": minutes}, QueueRates._make, using=using)
        rates = {each.queue_id: each for each in counted}
        history = reports.list_minutes(minutes=max(minutes, HISTORY_MINUTES + 1), using=using)
        totals = reports.total(history[-minutes:])
    return Overview(
        database_time=now,
        tenant=tenant,
        depths=reports.list_depths(using=using),
        pauses=reports.list_pauses(using=using),
        workers=reports.list_workers(using=using),
        leaders=reports.list_leaders(using=using),
        over_long=reports.list_over_long(using=using),
        failing=list_failing(using=using),
        ticks_come=ticks_come,
        troubled_schedules=list_troubled_schedules(using=using),
        rates=rates,
        minutes=None if history is None else history[-HISTORY_MINUTES - 1 : -1],
        totals=totals,
        rated_minutes=minutes,
    )

"""What is to become of a schedule that is due: its ticks, what overlaps, and when it is looked at again. Pure."""

from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from pgbroker.errors import PgBrokerError
from pgbroker.lifecycle.dispatch import Decision
from pgbroker.lifecycle.take_due import Due
from pgbroker.policy import overlap
from pgbroker.policy.cron import Cron, Tick, parse
from pgbroker.policy.jitter import jitter
from pgbroker.policy.misfire import GRACE, Misfire, recover
from pgbroker.policy.misfire import Policy as MisfirePolicy
from pgbroker.policy.overlap import Occupancy

# What an expression is read from: text, zone, the two rules for changes of the clock, the bounds.
_Said = tuple[str, str, str, str, datetime | None, datetime | None]


def cron_of(due: Due) -> Cron:
    """Read a row's expression; raises what `parse` raises, for a row that somebody wrote in SQL."""
    return _read(_said(due))


def _said(due: Due) -> _Said:
    return due.expression, due.time_zone, due.ambiguous, due.nonexistent, due.starts_at, due.ends_at


def _read(said: _Said) -> Cron:
    expression, zone, ambiguous, nonexistent, start, end = said
    return parse(expression, zone, ambiguous=ambiguous, nonexistent=nonexistent, start=start, end=end)


@lru_cache(maxsize=4_096)
def _next_tick(said: _Said, rules: str, after: datetime) -> Tick | None:
    """
    Return the first tick after that one, of what so many schedules say that it is remembered.

    *rules* are the zone's fingerprint: by others the next tick may be another.
    """
    return _read(said).first_after(after)


def decide(due: Due, *, limit: int) -> Decision:
    """
    Decide about the ticks that have come, at most *limit* of which are created.

    A row that cannot be read is disabled, with the reason: it would be looked at again and again.
    """
    try:
        cron = cron_of(due)
    except PgBrokerError as error:
        return _unreadable(due, error)
    resume = due.paused_until is not None
    ticks = _Ticks(due)
    if due.buffered_for is not None and not due.live:
        ticks.release(due.buffered_for)
    recovery, following = _on_time(due, cron) or _recovered(due, cron, limit)
    for instant in recovery.create:
        ticks.add(instant)
    return Decision(
        id=due.id,
        expected=due.next_run_at,
        revision=due.revision,
        next_run_at=following.instant if following and due.enabled else None,
        watermark=recovery.watermark,
        zone_rules=cron.zone.fingerprint,
        create=[(tick, _start(due, tick)) for tick in ticks.create],
        skip=ticks.skip,
        buffer=ticks.buffer,
        release=ticks.released,
        cancel=ticks.cancel,
        resume=resume,
        missed=recovery.missed,
        gap=recovery.gap,
        late=sum(due.now - tick > GRACE for tick in ticks.create),
    )


def planned_anew(due: Due) -> Decision:
    """Work the next tick out by the rules of the zone as they are now, and decide about nothing else."""
    try:
        cron = cron_of(due)
    except PgBrokerError as error:
        return _unreadable(due, error)
    following = cron.first_after(due.watermark)
    return Decision(
        id=due.id,
        expected=due.next_run_at,
        revision=due.revision,
        next_run_at=following.instant if following else None,
        watermark=due.watermark,
        zone_rules=cron.zone.fingerprint,
    )


def _unreadable(due: Due, error: PgBrokerError) -> Decision:
    return Decision(
        id=due.id,
        expected=due.next_run_at,
        revision=due.revision,
        disable=f"[{error.code}] {error.message}",
    )


class _Found(NamedTuple):
    """What `Recovery` says, with instants alone."""

    create: tuple[datetime, ...]
    missed: int
    watermark: datetime
    gap: tuple[datetime, datetime] | None = None


def _on_time(due: Due, cron: Cron) -> tuple[_Found, Tick | None] | None:
    """
    Return what every policy says of one tick that is on time; None where more has to be asked.

    The row has the tick, so what is left to look for is the next one: a third of the work.
    """
    tick = due.next_run_at
    if tick is None or not tick <= due.now <= tick + GRACE or due.zone_rules != cron.zone.fingerprint:
        return None
    following = _next_tick(_said(due), cron.zone.fingerprint, tick)
    if following is not None and following.instant <= due.now:
        return None
    return _Found((tick,), 0, due.now), following


def _recovered(due: Due, cron: Cron, limit: int) -> tuple[_Found, Tick | None]:
    policy = MisfirePolicy(due.misfire)
    recovery = recover(
        cron,
        Misfire(policy, due.misfire_count, timedelta(seconds=due.misfire_window_seconds)),
        # What came while it was paused is nobody's.
        watermark=due.paused_until or due.watermark,
        now=due.now,
        limit=limit,
    )
    found = _Found(
        tuple(tick.instant for tick in recovery.create), recovery.missed, recovery.watermark, recovery.gap
    )
    return found, cron.first_after(recovery.watermark)


class _Ticks:
    """What becomes of each tick, one after the other, by the overlap policy."""

    def __init__(self, due: Due) -> None:
        self.policy = overlap.Policy(due.overlap)
        self.buffered = due.buffered_for
        self.occupancy = Occupancy(due.live, int(due.buffered_for is not None))
        self.create: list[datetime] = []
        self.skip: list[datetime] = []
        self.buffer: datetime | None = None
        self.released = self.cancel = False

    def release(self, buffered: datetime) -> None:
        """Let the tick start that has waited until nothing runs."""
        self.create.append(buffered)
        self.released = True
        self.occupancy = Occupancy(1, 0)

    def add(self, tick: datetime) -> None:
        """Decide about the next tick."""
        decision, self.occupancy = self.occupancy.decide(self.policy)
        match decision:
            case overlap.Decision.START:
                self.create.append(tick)
            case overlap.Decision.SKIP:
                self.skip.append(tick)
            case overlap.Decision.BUFFER:
                self.buffer = tick
            case overlap.Decision.CANCEL_AND_START:
                # Of several that come at once the last one is left, without any of the others.
                self.skip += self.create
                if self.buffered is not None and not self.released:
                    # It waits since another policy held.
                    self.skip.append(self.buffered)
                    self.released = True
                self.create = [tick]
                self.cancel = True


def _start(due: Due, tick: datetime) -> datetime | None:
    if not due.jitter_seconds:
        return None
    wait = jitter(due.id, tick, most=timedelta(seconds=due.jitter_seconds))
    return tick + wait if wait and tick + wait > due.now else None

"""Jobs that nobody ends: expired leases, passed deadlines, attempts that run longer than they may."""

import time
from datetime import timedelta
from uuid import UUID

from pgbroker import telemetry
from pgbroker.conf import Settings
from pgbroker.lifecycle import expire as expiry
from pgbroker.lifecycle.adopt import adopt
from pgbroker.lifecycle.over_long import START, OverLong, find_over_long
from pgbroker.lifecycle.reap import EVERYTHING, Reaped, reap
from pgbroker.states import Status
from pgbroker.tenancy import scope_all
from pgbroker.upkeep.duty import Duty, Looks, Round

# How many periods back a pass looks that does not look at everything.
PERIODS_BACK = 3
OVER_LONG_SECONDS = 60.0
ADOPT_SECONDS = 300.0


class NearAndFar:
    """How far back a pass looks: at all of it when that is affordable, otherwise a few periods."""

    def __init__(self) -> None:
        self.looks = Looks()
        self._ended_at = time.monotonic()
        self._never_ended = True

    def within(self, now: Round, *, may_look_far: bool) -> timedelta:
        """Return how long ago what is looked for may have come due."""
        if now.first:
            self.looks.begin(full=(may_look_far or self._never_ended) and self.looks.is_due)
        if self.looks.is_full:
            return EVERYTHING
        # What came due while this process stood still, or the database was away, is older than a few periods.
        since_last = time.monotonic() - self._ended_at
        return timedelta(seconds=max(PERIODS_BACK * now.settings.REAP_SECONDS, 2 * since_last))

    def ended(self) -> None:
        """Note that a pass has come to its end."""
        self._ended_at = time.monotonic()
        self._never_ended = False


class Reap(Duty):
    """
    Take expired leases back. Every process does it: recovery hangs on no one of them.

    Only the leader looks at everything again and again; the others once, and then near by.
    """

    name = "reap"
    everybodys = True
    paged = True

    def __init__(self) -> None:
        self._range = NearAndFar()

    def period(self, settings: Settings) -> float:
        """REAP_SECONDS."""
        return settings.REAP_SECONDS

    def page(self, now: Round) -> bool:
        """Take a page of attempts back and tell of each."""
        within = self._range.within(now, may_look_far=now.reign is not None)
        with self._range.looks.measured():
            reaped = reap(
                limit=now.limit,
                max_crashes=now.settings.MAX_CRASHES,
                backoff=now.settings.BACKOFF,
                within=within,
                in_touch=EVERYTHING if now.in_touch is None else timedelta(seconds=now.in_touch),
                skip=now.skip,
                using=now.session,
            )
        for each in reaped:
            self._tell(each, now)
        if any(each.status == Status.SCHEDULED for each in reaped):
            now.came_due()
        if len(reaped) < now.limit:
            self._range.ended()
            return False
        return True

    def _tell(self, each: Reaped, now: Round) -> None:
        telemetry.emit(
            "attempt.reaped",
            job_id=each.job_id,
            job_type=now.type_name(each.job_type_id),
            queue=now.queue_name(each.queue_id),
            tenant_id=each.tenant_id,
            attempt_no=each.attempt_no,
            lease_token=each.lease_token,
            worker_id=each.worker_id,
            error_code="worker_lost",
            status=Status(each.status).label,
        )


class Expire(Duty):
    """End jobs whose deadline passed before they ran. No claim takes them, so nobody waits for this."""

    name = "expire"
    paged = True

    def __init__(self) -> None:
        self._range = NearAndFar()

    def period(self, settings: Settings) -> float:
        """REAP_SECONDS."""
        return settings.REAP_SECONDS

    def page(self, now: Round) -> bool:
        """End a page of jobs and tell of each."""
        within = self._range.within(now, may_look_far=True)
        with self._range.looks.measured():
            expired = expiry.expire(limit=now.limit, within=within, skip=now.skip, using=now.session)
        for each in expired:
            telemetry.emit(
                "job.expired",
                job_id=each.job_id,
                job_type=now.type_name(each.job_type_id),
                queue=now.queue_name(each.queue_id),
                tenant_id=each.tenant_id,
                error_code="deadline_exceeded",
            )
        if len(expired) < now.limit:
            self._range.ended()
            return False
        return True


class TellOverLong(Duty):
    """
    Tell of attempts that run longer than they may while their lease is renewed: each of them once.

    They are not taken back: their worker still works on them, and the job would run twice at once.
    """

    name = "over_long"

    def __init__(self) -> None:
        self._place = START
        self._told: set[tuple[UUID, int]] = set()
        self._seen: set[tuple[UUID, int]] = set()

    def period(self, settings: Settings) -> float:
        """Once a minute."""
        return OVER_LONG_SECONDS

    def page(self, now: Round) -> bool:
        """Look at a page of running attempts."""
        if now.first:
            self._place, self._seen = START, set()
        with scope_all():
            found, place = find_over_long(
                timeout=now.settings.TIMEOUT_SECONDS,
                # An attempt's time begins when its handler starts, and it may have been held before; then its worker
                # asks it to stop, and gives it up.
                grace=timedelta(seconds=now.settings.LEASE_SECONDS),
                limit=now.limit,
                after=self._place,
                using=now.session,
            )
        for each in found:
            self._tell(each, now)
        if place is None:
            # What is not over-long any more has ended: only the others are remembered.
            self._told = self._seen
            return False
        self._place = place
        return True

    def _tell(self, each: OverLong, now: Round) -> None:
        attempt = (each.job_id, each.lease_token)
        self._seen.add(attempt)
        if attempt in self._told:
            return
        self._told.add(attempt)
        telemetry.emit(
            "job.over_long",
            job_id=each.job_id,
            job_type=now.type_name(each.job_type_id),
            queue=now.queue_name(each.queue_id),
            tenant_id=each.tenant_id,
            attempt_no=each.attempt_no,
            lease_token=each.lease_token,
            worker_id=each.worker_id,
            duration_seconds=each.seconds,
        )


class Adopt(Duty):
    """Bring jobs into sight that no claim looks at: what was written in SQL may lack the rows that claims go by."""

    name = "adopt"

    def period(self, settings: Settings) -> float:
        """Every five minutes, and first thing."""
        return ADOPT_SECONDS

    def page(self, now: Round) -> bool:
        """Look at all queues, and tell of what was missing."""
        adopted = adopt(using=now.session)
        if adopted.queues or adopted.priorities:
            telemetry.emit(
                "jobs.adopted", queue=",".join(adopted.queues) or None, priorities=adopted.priorities
            )
            now.came_due()
        return False

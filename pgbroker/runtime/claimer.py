"""The claimer: finds work and takes as much of it as the worker has room for."""

import math
import random
import time
from collections import deque
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from pgbroker import telemetry
from pgbroker.db import Session
from pgbroker.lease import Fence, Lease
from pgbroker.lifecycle.claim import claim
from pgbroker.lifecycle.declare import QueueRow
from pgbroker.lifecycle.heartbeat import own_leases
from pgbroker.lifecycle.pause import pauses
from pgbroker.lifecycle.probe import probe
from pgbroker.lifecycle.promote import EVERYTHING, promote
from pgbroker.lifecycle.release import release
from pgbroker.lifecycle.resolve import is_left
from pgbroker.runtime.take_in import take_in

if TYPE_CHECKING:
    from pgbroker.runtime.attempt import Attempt
    from pgbroker.runtime.supervisor import Worker

# A look from the very start of a lane may take this share of the time, and comes at least so rarely.
FULL_LOOK_SHARE = 0.05
FULL_LOOK_SECONDS = 0.5
# A worker with nothing in hand looks from the start straight away where that took no longer the last time.
CHEAP_SECONDS = 0.01
# How far back a promote looks between its full looks.
PROMOTE_WITHIN = timedelta(minutes=10)
PROMOTE_MAX = 1000
POLL_AGAIN_SECONDS = 0.25
# How long ready jobs that cannot be claimed are looked at again soon: whoever changes them locks them for a moment.
# Those of a paused queue stay so for longer.
PASSED_OVER_SECONDS = 1.0
# How long a burst that has nothing else to do waits for the passes over dependents.
LEFT_SECONDS = 5.0
# Looks that notifications ask for come no faster than this.
LOOK_AGAIN_SECONDS = 0.25


class Lane:
    """What the claimer remembers of one queue."""

    def __init__(self, queue: QueueRow) -> None:
        self.queue = queue
        # There may be something to claim.
        self.eager = True
        # A claim beyond the idle slots may find something.
        self.more_to_hold = True
        self.bounds: dict[int, tuple[datetime, UUID]] = {}
        # The last claim may have passed over jobs that cannot be held: they stand before the bounds.
        self.passed_over = False
        self.full_look_at = 0.0
        self.full_look_cost = 0.0
        # How many jobs of all queues had been taken at the last claim.
        self.taken_before = 0

    def waits_for_idle(self, now: float) -> bool:
        """Tell whether a slot must be idle for it: what it has, as far as known, cannot be held, or a look is due."""
        return self.passed_over or not self.more_to_hold or self.full_look_due(now)

    def is_owed_a_slot(self, taken: int, room: int, now: float) -> bool:
        """Tell whether a slot should fall idle for it: once for all that the others may hold."""
        return taken - self.taken_before >= room and self.waits_for_idle(now)

    def full_look_due(self, now: float) -> bool:
        """Tell whether a look from the start is affordable again, and worth it."""
        pause = self.full_look_cost / FULL_LOOK_SHARE
        return now - self.full_look_at >= (pause if self.passed_over else max(FULL_LOOK_SECONDS, pause))

    def remember(self, leases: list[Lease]) -> None:
        """Move the bounds to the last job taken in each priority."""
        for lease in leases:
            taken = (lease.ready_at, lease.job_id)
            known = self.bounds.get(lease.priority)
            if known is None or taken > known:
                self.bounds[lease.priority] = taken


class Claimer:
    """
    One statement a queue and batch; a batch is the free slots plus a small prefetch.

    It claims while it knows of work, and otherwise waits to be woken: by a notification, by room, by
    the time the next scheduled job is due, or by the poll interval, which alone is enough.
    """

    def __init__(self, worker: "Worker", session: Session) -> None:
        self.worker, self.session = worker, session
        self.lanes: dict[int, Lane] = {}
        self.by_name: dict[str, Lane] = {}
        self.probe_at = 0.0
        self._looked_at = 0.0
        self.dry = False
        self._promoted_all_at = 0.0
        self._served_last = -1
        self._taken = 0
        self._check_orphans = False
        # The one attempt in hand whose job has crashed a worker and that another crash would end, and its queue.
        self._suspect: Attempt | None = None
        self._suspect_queue_id = -1
        self._suspects_taken = 0
        # Told by other threads, taken in by `step`.
        self._heard: set[str] = set()
        self._due: deque[float] = deque()
        self._look_now = False
        # The last look saw ready jobs; since when no claim got any of them, infinity when there are none.
        self._saw_ready = False
        self._passed_over_since = self._left_since = math.inf

    # -------------------------------------------------------------- told from outside

    def serve(self, queues: list[QueueRow]) -> None:
        """Serve these queues from now on."""
        for queue in queues:
            if queue.id in self.lanes:
                self.lanes[queue.id].queue = queue
            else:
                lane = Lane(queue)
                # New dictionaries: other threads read them at any time.
                self.lanes = {**self.lanes, queue.id: lane}
                self.by_name = {**self.by_name, queue.name: lane}

    def heard(self, queue_name: str) -> None:
        """Take note that a queue has new work."""
        if queue_name in self.by_name:
            self._heard.add(queue_name)
            self.worker.wake_claimer()
        elif queue_name not in self.worker.options.exclude_queues:
            self.worker.catalogue.look_for_queues()

    def look_now(self) -> None:
        """Look at all queues at the next turn."""
        self._look_now = True
        self.worker.wake_claimer()

    def due_in(self, seconds: float) -> None:
        """Take note that some job, which the database knows of by now, is due again in so many seconds."""
        # Not written to probe_at: a look that began before that commit would write its own over it.
        self._due.append(time.monotonic() + seconds)
        self.worker.wake_claimer()

    def trust_nothing(self) -> None:
        """Forget what was remembered: a claim may have been lost with the connection."""
        self._check_orphans = True
        self._look_now = True
        for lane in self.lanes.values():
            lane.bounds.clear()

    # -------------------------------------------------------------- one turn

    def step(self) -> float:
        """Look if it is time to, claim what there is room for, and return how long to wait."""
        if self.worker.hand_back.pending:
            self.worker.hand_back.finish(using=self.session)
        if self._check_orphans:
            self._release_orphans()
            self._check_orphans = False
        if not (self.worker.heartbeats.keep_up and self.worker.settler.session.is_open):
            # What is claimed now could not be kept, or settled. Whichever of the two gets through wakes this loop.
            return min(self.worker.settings.POLL_SECONDS, 1.0)
        nothing_in_hand = self.worker.board.size == 0
        self._let_go_of_suspect()
        while self._due:
            self.probe_at = min(self.probe_at, self._due.popleft())
        looked = self._look_now or time.monotonic() >= self.probe_at or self._burst_ends()
        left = False
        if looked:
            self._look_now = False
            # Before the look, which then sees what it frees.
            left = nothing_in_hand and self.worker.options.burst and self._is_left_to_a_pass()
            self._look()
        while self._heard:
            self.by_name[self._heard.pop()].eager = True
            self.dry = False
            # What was enqueued may be due later: only a look tells when.
            self.probe_at = min(self.probe_at, self._looked_at + LOOK_AGAIN_SECONDS)
        if self._claim_round():
            self.dry = False
            self._passed_over_since = self._left_since = math.inf
            return 0.0
        if looked:
            passed_over = nothing_in_hand and (self._passes_over_for_a_moment() or left)
            if passed_over:
                self.probe_at = min(self.probe_at, self._looked_at + LOOK_AGAIN_SECONDS)
            # Nothing ran that could make more, nothing is due, and what is ready may not be claimed.
            self.dry = nothing_in_hand and not passed_over and self.probe_at > time.monotonic()
        return max(0.0, min([self.probe_at, *self._due]) - time.monotonic())

    def _passes_over_for_a_moment(self) -> bool:
        """Tell whether there are ready jobs that no claim has got, and not for long: their rows may be locked."""
        if not self._saw_ready:
            self._passed_over_since = math.inf
            return False
        self._passed_over_since = min(self._passed_over_since, time.monotonic())
        return time.monotonic() - self._passed_over_since < PASSED_OVER_SECONDS

    def _is_left_to_a_pass(self) -> bool:
        """
        Tell whether a pass of the upkeep, brought on hereby, may free jobs that wait; and not for long.

        Others, of other queues, may leave something to a pass all the time, and somebody may hold what one needs.
        """
        if not is_left(using=self.session):
            self._left_since = math.inf
            return False
        self.worker.resolve_now()
        self._left_since = min(self._left_since, time.monotonic())
        return time.monotonic() - self._left_since < LEFT_SECONDS

    def _burst_ends(self) -> bool:
        """A burst that has nothing left in hand looks at once whether there is more."""
        return (
            self.worker.options.burst
            and not self.dry
            and self.worker.board.size == 0
            and not any(lane.eager for lane in self.lanes.values())
        )

    def _look(self) -> None:
        """Probe all queues with one statement, promote what is due, and plan the next look."""
        self._looked_at = began = time.monotonic()
        prospects = probe(list(self.lanes), using=self.session)
        due = [
            each.queue_id
            for each in prospects
            if each.due_in_seconds is not None and each.due_in_seconds <= 0
        ]
        # Of each queue only the first due time is known. Where that has come, the next is asked for at once; and
        # soon where another worker is about to promote it.
        again = POLL_AGAIN_SECONDS if due else None
        if due:
            everything = began - self._promoted_all_at >= 60
            promoted = promote(
                due,
                limit=PROMOTE_MAX,
                within=EVERYTHING if everything else PROMOTE_WITHIN,
                using=self.session,
            )
            if everything:
                self._promoted_all_at = began
            elif not promoted:
                # Due longer ago than the hint looks.
                promoted = promote(due, limit=PROMOTE_MAX, within=EVERYTHING, using=self.session)
            for queue_id in promoted:
                self.lanes[queue_id].eager = True
            if promoted:
                again = 0.0
        self._saw_ready = any(each.ready for each in prospects)
        for each in prospects:
            if each.ready:
                self.lanes[each.queue_id].eager = True
        waits = [
            each.due_in_seconds
            for each in prospects
            if each.due_in_seconds is not None and each.due_in_seconds > 0
        ]
        poll = self.worker.settings.POLL_SECONDS * (0.8 + random.random() * 0.2)  # noqa: S311 - jitter
        if again is not None:
            poll = min(poll, again)
        self.probe_at = began + min([poll, *(max(wait, 0.001) for wait in waits)])
        if self.worker.board.held:
            self._release_paused()

    def _room(self) -> tuple[int, int]:
        """Return how many jobs may be taken for idle slots, and how many to hold."""
        board, settings = self.worker.board, self.worker.settings
        left = self.worker.jobs_left()
        # What has ended and is not settled yet takes memory too.
        most = board.slots + settings.PREFETCH_MAX + settings.SETTLE_MAX * 5 // 4 - board.size
        if left == 0 or most <= 0:
            return 0, 0
        idle = min(board.idle, settings.CLAIM_MAX, most)
        prefetch = self.worker.pace.prefetch(board.slots, settings.PREFETCH_MAX)
        board.low_water = prefetch // 2
        held = board.held
        hold = 0 if held > board.low_water else prefetch - held
        if left is not None:
            idle = min(idle, left)
            hold = min(hold, left - idle)
        hold = max(0, min(hold, settings.CLAIM_MAX - idle))
        # Rather wait for the settler than claim by little bits.
        return (idle, hold) if idle + hold <= most else (0, 0)

    def _claim_round(self) -> int:
        """Claim once from each queue that may have work, beginning after the one that was served last."""
        if self.worker.draining:
            return 0
        # By who was served, not by turns: turns without room would always favour the same queue. Where the place of
        # the one suspect is free, the queue that had it last comes last.
        free_for_other = self._suspect is None and len(self.lanes) > 1
        lanes = sorted(
            (lane for lane in self.lanes.values() if lane.eager),
            key=lambda lane: (
                free_for_other and lane.queue.id == self._suspect_queue_id,
                lane.queue.id <= self._served_last,
                lane.queue.id,
            ),
        )
        total = waiting = 0
        # Where a queue waits for an idle slot, what others hold must not keep it from its turn.
        room, now = self.worker.board.slots + self.worker.settings.PREFETCH_MAX, time.monotonic()
        owed = any(lane.is_owed_a_slot(self._taken, room, now) for lane in lanes)
        for lane in lanes:
            now = time.monotonic()
            idle, hold = self._room()
            # Let the held ones run out first: a look from the start must have idle slots to fill, or slow
            # and fragile jobs at the head would be passed over for ever.
            if idle == 0 and (owed or lane.waits_for_idle(now)):
                hold = 0
                waiting += 1
            if idle + hold and (taken := self._claim(lane, idle, hold, now)):
                self._served_last = lane.queue.id
                total += taken
        if waiting == len(lanes):
            # Until the held ones have run out, an end makes room for nothing.
            self.worker.board.low_water = 0
        return total

    def _claim(self, lane: Lane, idle: int, hold: int, now: float) -> int:
        full = not lane.bounds or (
            idle > 0 and (lane.full_look_due(now) or self._is_cheap_to_look_fully(lane))
        )
        suspects_before = self._suspects_taken
        taken = self._take(lane, idle, hold, full=full)
        if taken < idle and (not full or self._suspects_taken > suspects_before):
            # A hint is only a hint: what it does not show may stand before it. And beside the first suspect
            # others were passed over, which may have stood in the way.
            taken += self._take(lane, idle - taken, hold, full=True)
        lane.more_to_hold = taken >= idle + hold
        lane.passed_over = hold > 0 and not lane.more_to_hold and taken >= idle
        if idle and taken < idle:
            lane.eager = False
        return taken

    def _is_cheap_to_look_fully(self, lane: Lane) -> bool:
        """Tell whether one look from the start does for two: a hint that does not fill the slots asks for one."""
        return self.worker.board.size == 0 and lane.full_look_cost < CHEAP_SECONDS

    def _take(self, lane: Lane, idle: int, hold: int, *, full: bool) -> int:
        settings, queue = self.worker.settings, lane.queue
        began = time.monotonic()
        leases = claim(
            queue.id,
            limit=idle + hold,
            idle=idle,
            worker_id=self.worker.id,
            lease=self.worker.lease_time_of(queue.id),
            ageing=timedelta(
                seconds=settings.AGEING_SECONDS if queue.ageing_seconds is None else queue.ageing_seconds
            ),
            quick=self.worker.pace.quick_types() if hold else (),
            max_crashes=settings.MAX_CRASHES,
            suspects=0 if self._suspect else 1,
            bounds={} if full else lane.bounds,
            using=self.session,
        )
        self._taken += len(leases)
        lane.taken_before = self._taken
        if full:
            lane.full_look_at, lane.full_look_cost = began, time.monotonic() - began
        if leases:
            lane.remember(leases)
            if telemetry.wanted("batch.claimed"):
                telemetry.emit(
                    "batch.claimed",
                    worker_id=self.worker.id,
                    queue=queue.name,
                    count=len(leases),
                    leases=leases,
                    worker=self.worker,
                )
            take_in(self.worker, leases, began)
            for lease in leases:
                # Where all run in children a crash takes no neighbour along, and none has to be alone.
                if not self.worker.executors.all_in_children and lease.is_suspect(settings.MAX_CRASHES):
                    self._note_suspect(lease, lane)
        return len(leases)

    def _note_suspect(self, lease: Lease, lane: Lane) -> None:
        self._suspects_taken += 1
        self._suspect_queue_id = lane.queue.id
        self._suspect = self.worker.board.find(lease.job_id, lease.lease_token)
        if self._suspect is None:
            # It has ended already, and stood before others that this claim passed over.
            lane.bounds.clear()

    def _let_go_of_suspect(self) -> None:
        """Once the one suspect has ended, look from the start: others were passed over meanwhile."""
        suspect = self._suspect
        if suspect is None or self.worker.board.has(suspect.lease.job_id, suspect.lease.lease_token):
            return
        # One that was given up has its outcome, but its thread may still bring the process down.
        if not suspect.abandoned or suspect.returned:
            self._suspect = None
            for lane in self.lanes.values():
                lane.eager = True
                lane.bounds.clear()

    # -------------------------------------------------------------- what must go back

    def _release_paused(self) -> None:
        """Hand held jobs of a paused queue, type or tenant back."""
        stopped = pauses(using=self.session)
        if not stopped:
            return
        self.worker.executors.processes.recall()
        board = self.worker.board
        paused = [
            attempt
            for attempt in board.attempts()
            if attempt.started is None
            and any(
                each.stops(attempt.lease.queue_id, attempt.lease.job_type_id, attempt.lease.tenant_id)
                for each in stopped
            )
            and board.withdraw(attempt)
        ]
        if paused:
            self.worker.release(paused, code="paused", using=self.session)

    def _release_orphans(self) -> None:
        """Hand back what a claim took whose answer never arrived: nobody here would run it."""
        board = self.worker.board
        orphans = [
            (job_id, token)
            for job_id, token in own_leases(self.worker.id, using=self.session)
            if not board.has(job_id, token)
        ]
        if not orphans:
            return
        fences = [Fence(job_id, token, self.worker.id) for job_id, token in orphans]
        released = release([(fence, None) for fence in fences], code="claim_answer_lost", using=self.session)
        for each in released:
            telemetry.emit("attempt.released", job_id=each.job_id, lease_token=each.lease_token)

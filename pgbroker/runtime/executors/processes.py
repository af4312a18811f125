"""Child processes, for handlers that must not be able to harm the worker or each other."""

import selectors
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgbroker import telemetry
from pgbroker.errors import UndecodableArgument
from pgbroker.policy.prefetch import QUICK_SECONDS
from pgbroker.runtime.attempt import Attempt
from pgbroker.runtime.executors import wire
from pgbroker.runtime.executors.brood import Brood
from pgbroker.runtime.executors.child import Rules
from pgbroker.runtime.executors.child_link import ChildLink
from pgbroker.runtime.executors.endings import FailedInChild, outcome_of_lost
from pgbroker.runtime.executors.nursery import Nursery
from pgbroker.runtime.executors.orders import Orders
from pgbroker.runtime.isolation import losses

if TYPE_CHECKING:
    from pgbroker.context import StopReason
    from pgbroker.runtime.supervisor import Worker

# How long children that were killed may take to be gone, and idle ones to end.
KILL_SECONDS = 5.0
CLOSE_SECONDS = 3.0
# How often the thread looks round when nothing happens.
LOOK_SECONDS = 1.0
# Attempts that lie in a child's socket behind the one that runs, at most.
AHEAD = 16
_STEP_SECONDS = 0.01


class ProcessExecutor:
    """
    One attempt at a time in each child, children made in advance, one thread that talks to all of them.

    Other threads leave orders, which it takes at its next turn. A child that ends while it runs an attempt has
    crashed; an attempt that was on its way to a child and never started there goes to another, unharmed.
    """

    def __init__(self, worker: "Worker", nursery: Nursery | None, *, all_slots: bool) -> None:
        self.worker = worker
        self._nursery = nursery
        self._brood: Brood
        # The most jobs at once so far; one child more waits in advance.
        self._most = worker.board.slots if all_slots else 0
        self._all_slots = all_slots
        self._busy = 0
        self._waiting: deque[Attempt] = deque()
        # Made by `open`: most workers need neither.
        self._orders: Orders
        self._selector: selectors.BaseSelector
        self._closing_until: float | None = None
        self._thread: threading.Thread | None = None
        # Until the first child is ready: whatever would be claimed would have to wait for it.
        self.is_warming = False

    # -------------------------------------------------------------- from any thread

    def open(self) -> None:
        """Have children made; returns at once."""
        self.is_warming = self._all_slots
        self._orders, self._selector = Orders(), selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="pgbroker-children", daemon=True)
        self._thread.start()

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        """Run each in a child as soon as one is free; the board has given it a slot."""
        self._orders.give(self._start, attempts)

    def ask_to_stop(self, attempt: Attempt) -> None:
        """Tell the child; after a grace it is ended by force."""
        reason = attempt.told[-1]
        self._orders.give(self._stop, attempt, reason)
        if reason != "timed_out":
            self.worker.watchdog.give_grace(attempt)

    def end_by_force(self, attempt: Attempt) -> bool:
        """Kill the child; how the attempt ended is reported once it is gone."""
        self._orders.give(self._kill, attempt)
        return True

    def tell_shutting_down(self) -> None:
        """Let handlers know that their worker drains."""
        if self._is_running():
            self._orders.give(self._tell_all)

    def tell_loss(self) -> None:
        """Let children know that a connection was lost: those of their handlers may be dead as well."""
        if self._is_running():
            self._orders.give(self._tell_loss)

    def recall(self) -> None:
        """Put what lies ahead in the children's sockets back into the line; returns when it is there."""
        if self._is_running():
            done = threading.Event()
            self._orders.give(self._recall, done)
            done.wait(KILL_SECONDS)

    def end_all(self) -> None:
        """Kill whatever runs and wait until it is gone. Those attempts stay open, for whoever releases them."""
        if not self._is_running():
            return
        self._orders.give(self._end_all)
        until = time.monotonic() + KILL_SECONDS
        while (self._orders or self._busy) and self._is_running() and time.monotonic() < until:
            time.sleep(_STEP_SECONDS)

    def close(self) -> None:
        """Let idle children end, kill the rest, and end the nursery."""
        if self._thread is not None:
            self._orders.give(self._close)
            self._thread.join(CLOSE_SECONDS + 2 * KILL_SECONDS)
        elif self._nursery is not None:
            self._nursery.close()

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    # -------------------------------------------------------------- the thread

    def _run(self) -> None:
        options = self.worker.options
        rules = Rules(
            settings=self.worker.settings,
            alias=self.worker.alias,
            max_jobs=options.max_jobs_per_child,
            max_rss=options.max_rss,
        )
        try:
            self._selector.register(self._orders.ear, selectors.EVENT_READ, self._orders)
            self._brood = Brood(self._nursery, rules, self._selector)
            try:
                while self._closing_until is None or (
                    self._brood.size and time.monotonic() < self._closing_until
                ):
                    self._turn()
            finally:
                self._brood.close()
        except BaseException as error:
            telemetry.emit(
                "worker.loop_failed", loop="children", error_code=type(error).__name__, exception=error
            )
            self._free_slots()
            self.worker.fail(error)
        finally:
            self._selector.close()
            self._orders.close()

    def _turn(self) -> None:
        self._orders.follow()
        self._assign()
        wait = QUICK_SECONDS if any(len(link.queue) > 1 for link in self._brood.links()) else LOOK_SECONDS
        if self._closing_until is None:
            wanted = min(self.worker.board.slots, self._most + 1)
            wait = min(wait, self._brood.keep(wanted) or wait)
        else:
            self._let_go_all()
        self._orders.asleep = True
        # Looked at again: an order may have come between the look and the flag.
        events = self._selector.select(0 if self._orders else wait)
        self._orders.asleep = False
        look_round = not events
        links: list[ChildLink] = []
        for key, _ in events:
            if isinstance(key.data, ChildLink):
                links.append(key.data)
                self._heed(key.data)
            elif key.data is self._orders:
                self._orders.heard()
            else:
                look_round = True
        if look_round:
            for link, status in self._brood.ended():
                self._ended(link, status)
        self._free_what_is_stuck()
        self._assign()
        for link in links:
            if link.queue and not link.leaving:
                self._fill(link)

    # -------------------------------------------------------------- orders

    def _start(self, attempts: Sequence[Attempt]) -> None:
        self._waiting.extend(attempts)
        self._most = max(self._most, self._busy + len(self._waiting))

    def _stop(self, attempt: Attempt, reason: "StopReason") -> None:
        link: ChildLink | None = attempt.handle
        if link is not None:
            link.tell(reason, attempt)
        elif attempt in self._waiting:
            self._waiting.remove(attempt)
            stopped = attempt.stopped_before_it_ran()
            assert stopped is not None
            self._follow(self.worker.finish(attempt, attempt.failed(stopped, self.worker.settings)))

    def _kill(self, attempt: Attempt) -> None:
        link: ChildLink | None = attempt.handle
        if link is not None and link.running is attempt and not link.killed:
            telemetry.emit("attempt.killed", **self.worker.keys(attempt.lease))
            self._brood.kill(link)

    def _tell_all(self) -> None:
        for link in self._brood.links():
            link.tell(None)

    def _tell_loss(self) -> None:
        for link in self._brood.links():
            link.tell_loss(losses.last_at)

    def _recall(self, done: threading.Event) -> None:
        for link in self._brood.links():
            self._take_back(link)
        done.set()

    def _end_all(self) -> None:
        while self._waiting:
            self.worker.next_after(self._waiting.popleft())
        for link in self._brood.links():
            if (attempt := link.running) is not None:
                attempt.told = (*attempt.told, "shutdown")
                self._kill(attempt)

    def _close(self) -> None:
        self._closing_until = time.monotonic() + CLOSE_SECONDS

    def _let_go_all(self) -> None:
        for link in self._brood.links():
            if link.queue:
                self._brood.kill(link)
            elif not link.leaving:
                self._brood.let_go(link)

    # -------------------------------------------------------------- attempts go out

    def _assign(self) -> None:
        """Give what has a slot to whoever is free."""
        idle = self._brood.idle
        while self._waiting and idle:
            # The one that waits for the shortest time: its memory is warm, and the others' may be given back.
            link = idle.pop()
            if link.leaving:
                continue
            attempt = self._waiting.popleft()
            try:
                given = self._give(link, attempt)
            except UndecodableArgument as error:
                idle.append(link)
                self._follow(self.worker.finish(attempt, attempt.undecodable(error, self.worker.settings)))
                continue
            if not given:
                idle.append(link)
                self._waiting.appendleft(attempt)
                return
            self._began(attempt)

    def _began(self, attempt: Attempt) -> None:
        attempt.started = time.monotonic()
        self._busy += 1
        self.worker.watchdog.watch(attempt)

    def _give(self, link: ChildLink, attempt: Attempt) -> bool:
        """Send an attempt; False when there is no room now. Raises `UndecodableArgument` for one that never can be."""
        queue = self.worker.queue_name(attempt.lease.queue_id)
        body = wire.write_assignment(wire.Assignment.of(attempt, queue, losses.last_at))
        if not link.give(attempt, body):
            return False
        attempt.handle = link
        return True

    def _fill(self, link: ChildLink) -> None:
        """Let quick jobs lie ahead in a child's socket: it goes from one to the next without waiting for us."""
        board = self.worker.board
        most = min(AHEAD, board.held // max(1, self._busy))
        while len(link.queue) <= most and (attempt := board.take_ahead(self._may_lie_ahead)) is not None:
            try:
                given = self._give(link, attempt)
            except UndecodableArgument:
                # Its turn comes in a slot, where it is settled.
                given = False
            if not given:
                self._follow_all(board.give_back([attempt]))
                return

    def _may_lie_ahead(self, attempt: Attempt) -> bool:
        return attempt.executor is self and not attempt.lease.fragile

    def _take_back(self, link: ChildLink) -> None:
        """Take back what a child has not read, so that it waits for whichever is free first."""
        first, ahead = link.running, []
        while (attempt := link.take_back()) is not None:
            attempt.handle = None
            if attempt is not first:
                ahead.append(attempt)
                continue
            self._busy -= 1
            if "shutdown" in attempt.told:
                self.worker.next_after(attempt)
            else:
                self._waiting.appendleft(attempt)
            if not link.leaving:
                self._brood.idle.append(link)
        self._follow_all(self.worker.board.give_back(ahead))

    def _free_what_is_stuck(self) -> None:
        """Take back what lies behind jobs that turned out to be slow."""
        since = time.monotonic() - QUICK_SECONDS
        for link in self._brood.links():
            running = link.running
            if len(link.queue) > 1 and running is not None and (running.started or since) < since:
                self._take_back(link)

    # -------------------------------------------------------------- and come back

    def _heed(self, link: ChildLink) -> None:
        """Hear what a child says."""
        for body in link.hear():
            if body == wire.READY:
                self._brood.ready(link)
                if self.is_warming:
                    self.is_warming = False
                    self.worker.wake_claimer()
            else:
                self._take_outcome(link, body)
        if link.nonsense is not None and not link.killed:
            self._brood.kill(link)
        elif link.hung_up and link.listening:
            self._brood.hang_up(link)

    def _take_outcome(self, link: ChildLink, body: bytes) -> None:
        try:
            outcome = wire.read_outcome(body)
        except wire.Nonsense as error:
            link.nonsense = error
            return
        if not link.queue or outcome.number != link.queue[0][0]:
            link.nonsense = wire.Nonsense("an outcome that nobody waits for")
            return
        _, attempt = link.queue.popleft()
        attempt.handle = None
        self._busy -= 1
        ended = outcome.ended(attempt)
        if ended.error_code is not None:
            attempt.error = FailedInChild(ended.traceback or ended.error or ended.error_code)
        if outcome.leaving:
            link.leaving = True
            self._take_back(link)
        following = self.worker.finish(attempt, ended, link.running)
        if link.running is not None:
            self._began(link.running)
            return
        if not link.leaving:
            self._brood.idle.append(link)
        self._follow(following)

    def _follow_all(self, following: Sequence[Attempt]) -> None:
        for attempt in following:
            self._follow(attempt)

    def _follow(self, following: Attempt | None) -> None:
        """Run what has the slot now."""
        if following is None:
            return
        if following.executor is self:
            self._waiting.append(following)
        else:
            self.worker.start(following)

    def _ended(self, link: ChildLink, status: int | None) -> None:
        """Take note that a child is gone, and settle what it ran."""
        link.leaving = True
        self._heed(link)
        self._take_back(link)
        attempt = link.running
        self._brood.bury(link, status)
        if attempt is None:
            return
        self._busy -= 1
        attempt.handle = None
        ended = outcome_of_lost(attempt, link, status, self.worker.settings)
        if ended is None:
            self._follow(self.worker.next_after(attempt))
        else:
            self._follow(self.worker.finish(attempt, ended))

    def _free_slots(self) -> None:
        """At the end of a thread that failed: nobody waits for handlers that are gone."""
        for attempt in self.worker.board.attempts():
            if attempt.executor is self and attempt.started is not None and not attempt.returned:
                self.worker.next_after(attempt)

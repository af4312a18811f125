"""The children of one worker: as many as are wanted, each replaced when it goes."""

import os
import pickle
import selectors
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from pgbroker import telemetry
from pgbroker.errors import ChildrenUnavailable
from pgbroker.runtime.executors.child import Rules
from pgbroker.runtime.executors.child_link import ChildLink
from pgbroker.runtime.executors.endings import how_it_ended
from pgbroker.runtime.executors.nursery import Nursery, Report
from pgbroker.runtime.executors.nursery_process import Say

# Children in a row that ended, or could not be made, before they were ready; then the worker ends.
MOST_FAILURES = 5
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
# How long the nursery may take to answer: it may be a fresh interpreter that loads a large project.
BIRTH_SECONDS = 120.0
# How long a child that was asked to end may take: it closes its connections.
LEAVE_SECONDS = 10.0


class Brood:
    """Used by one thread, whose *selector* hears them. Nothing here waits."""

    def __init__(self, nursery: Nursery | None, rules: Rules, selector: selectors.BaseSelector) -> None:
        self._nursery = nursery or Nursery.spawned()
        self._rules = pickle.dumps(rules)
        self._selector = selector
        self._births: deque[ChildLink] = deque()
        self._births_since = 0.0
        self._by_pid: dict[int, ChildLink] = {}
        self._leaving_since: dict[int, float] = {}
        self._failures = 0
        self._again_at = 0.0
        # Those that wait for a job.
        self.idle: deque[ChildLink] = deque()
        # One was ready at some time.
        self.has_been_ready = False
        self._selector.register(self._nursery.control, selectors.EVENT_READ, None)

    def links(self) -> list[ChildLink]:
        """List the children that have been born and not ended."""
        return list(self._by_pid.values())

    @property
    def size(self) -> int:
        """How many there are, or are about to be."""
        return len(self._births) + len(self._by_pid)

    def keep(self, wanted: int) -> float | None:
        """Have *wanted* children that take jobs made; returns the seconds until it can be tried again, or None."""
        staying = sum(not link.leaving for link in self._by_pid.values())
        missing = wanted - staying - len(self._births)
        now = time.monotonic()
        if self._births and now - self._births_since > BIRTH_SECONDS:
            raise ChildrenUnavailable(f"No child process was made in {BIRTH_SECONDS:g} s.")
        if missing <= 0:
            return None
        if now < self._again_at:
            return self._again_at - now
        if not self._births:
            self._births_since = now
        for _ in range(missing):
            link = ChildLink()
            link.tell_rules(self._rules)
            self._births.append(link)
            self._nursery.bear(link.far_attempts, link.far_words)
        return None

    def ready(self, link: ChildLink) -> None:
        """Take note that a child waits for its first job."""
        link.ready = self.has_been_ready = True
        self._failures = 0
        self.idle.append(link)

    def kill(self, link: ChildLink) -> None:
        """Kill a child, whatever it does."""
        link.leaving = link.killed = True
        self._nursery.kill(link.pid)

    def let_go(self, link: ChildLink) -> None:
        """Ask a child to end once it has no job."""
        link.let_go()
        self._leaving_since.setdefault(link.pid, time.monotonic())

    def ended(self) -> Iterator[tuple[ChildLink, int | None]]:
        """Give the children that have ended, with their wait status; None where nobody knows it."""
        self._hurry()
        for report in self._nursery.reports():
            yield from self._hear(report)
        if self._nursery.gone:
            yield from self._orphans()

    def _hear(self, report: Report) -> Iterator[tuple[ChildLink, int | None]]:
        match report.say:
            case Say.BORN:
                link = self._births.popleft()
                self._births_since = time.monotonic()
                link.born(report.pid)
                self._by_pid[report.pid] = link
                self._selector.register(link.words, selectors.EVENT_READ, link)
                link.listening = True
            case Say.NOT_BORN:
                self._births.popleft().close()
                self._failed(os.strerror(report.detail))
            case Say.ENDED:
                if report.pid in self._by_pid:
                    yield self._by_pid.pop(report.pid), report.detail

    def _orphans(self) -> Iterator[tuple[ChildLink, int | None]]:
        """Begin again with another nursery: the old one was killed, and its children are nobody's."""
        self._selector.unregister(self._nursery.control)
        self._nursery.close()
        lost, self._by_pid = self._by_pid, {}
        for link in lost.values():
            with suppress(ProcessLookupError):
                os.killpg(link.pid, signal.SIGKILL)
            yield link, None
        for link in self._births:
            link.close()
        self._births.clear()
        self._failed("the process that makes them has ended")
        self._nursery = Nursery.spawned()
        self._selector.register(self._nursery.control, selectors.EVENT_READ, None)

    def hang_up(self, link: ChildLink) -> None:
        """Listen no more to a child that has nothing to say: it is ending, or is of no use."""
        self._unregister(link)
        if link.leaving and not link.queue:
            self._leaving_since.setdefault(link.pid, time.monotonic())
        else:
            self._nursery.kill(link.pid)
        link.leaving = True

    def bury(self, link: ChildLink, status: int | None) -> None:
        """Let go of all that belonged to an ended child."""
        self._unregister(link)
        self._leaving_since.pop(link.pid, None)
        if link in self.idle:
            self.idle.remove(link)
        link.close()
        if not link.ready:
            self._failed(how_it_ended(status))

    def _unregister(self, link: ChildLink) -> None:
        if link.listening:
            link.listening = False
            self._selector.unregister(link.words)

    def _failed(self, error: str) -> None:
        self._failures += 1
        telemetry.emit("children.failed", error_code=ChildrenUnavailable.code, error=error)
        if self._failures >= MOST_FAILURES:
            raise ChildrenUnavailable(
                f"{self._failures} child processes in a row ended before they were ready; the last: {error}. "
                "Read what they wrote to stderr."
            )
        self._again_at = time.monotonic() + min(LONGEST_WAIT, FIRST_WAIT * 2.0**self._failures)

    def _hurry(self) -> None:
        """Kill what was asked to end and does not."""
        now = time.monotonic()
        for pid, since in self._leaving_since.items():
            if now - since > LEAVE_SECONDS:
                self._nursery.kill(pid)

    def close(self) -> None:
        """End them all, and the nursery."""
        self._selector.unregister(self._nursery.control)
        self._nursery.close()
        for link in (*self._births, *self._by_pid.values()):
            link.close()

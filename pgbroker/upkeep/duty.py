"""A duty: what a page of it may use, and when a look at everything is affordable."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from pgbroker.conf import Settings
from pgbroker.db import Session
from pgbroker.lifecycle.lead import Reign

# A look at everything may take this share of the time.
FULL_LOOK_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one page of a duty may use."""

    session: Session
    settings: Settings
    type_name: Callable[[int], str | None]
    queue_name: Callable[[int], str | None]
    # For how many seconds the database has been reached without a break; None where it never was out of reach.
    in_touch: float | None
    # To be called when jobs have come due that a claimer near by does not know of.
    came_due: Callable[[], None]
    # What the page is done under; None where every process does it, and this one does not lead.
    reign: Reign | None
    # The first page of a pass.
    first: bool
    # Most rows of this page, and how many to leave alone at its head, for duties that are paged.
    limit: int
    skip: int


class Duty:
    """
    One thing that is done for all, in pages that are short: between two of them the lease is renewed.

    A process may be stopped in the middle of a page and go on when another one leads: a page takes rows
    skip-locked and may be done twice, or carries the fence of its reign into its statement.
    """

    name: ClassVar[str]
    # Done by every process, whoever leads: nothing that others wait for may hang on one of them.
    everybodys: ClassVar[bool] = False
    # Honours `limit` and `skip`, so that one row that breaks a page does not hide the rest.
    paged: ClassVar[bool] = False
    # Nobody waits for the rest of the pass, as far as the last page tells: the next one leaves the time to others.
    unhurried: bool = False

    def period(self, settings: Settings) -> float:
        """Return the seconds from one pass to the next."""
        raise NotImplementedError

    def page(self, now: Round) -> bool:
        """Do one page; tells whether there may be more."""
        raise NotImplementedError


class Looks:
    """
    When to look at everything and when only near by.

    What has left a partial index stays in it while an old snapshot is open, and a scan from its start reads
    all of that again. So the start is looked at as often as it is cheap, and a hint serves in between.
    """

    def __init__(self) -> None:
        self._looked_at: float | None = None
        self._cost = 0.0
        self._full = False

    @property
    def is_full(self) -> bool:
        """True while the pass that began last looks at everything."""
        return self._full

    @property
    def is_due(self) -> bool:
        """Tell whether a look at everything is affordable again."""
        return self._looked_at is None or time.monotonic() - self._looked_at >= self._cost / FULL_LOOK_SHARE

    def begin(self, *, full: bool) -> None:
        """Begin a pass."""
        self._full = full
        if full:
            self._looked_at, self._cost = time.monotonic(), 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure a page; one that fails has cost as much."""
        began = time.monotonic()
        try:
            yield
        finally:
            if self._full:
                self._cost += time.monotonic() - began

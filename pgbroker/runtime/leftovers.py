"""Bodies of results that no row took."""

from typing import TYPE_CHECKING

from pgbroker import bodies
from pgbroker.errors import BodyLeft
from pgbroker.outcomes import Ended
from pgbroker.removals import Removal, removals

if TYPE_CHECKING:
    from pgbroker.runtime.supervisor import Worker


class Leftovers:
    """
    Takes outcomes that were refused, given up or replaced, and has their bodies removed.

    Each is looked for in the database first: a settle whose answer was lost looks like a lost lease.
    """

    def __init__(self, worker: "Worker") -> None:
        self.worker = worker

    def put(self, ended: Ended) -> None:
        """Take an outcome that was not settled as it is; does nothing for one without a body. From any thread."""
        if ended.result_body is None:
            return
        removals.start()
        if not removals.put(Removal(ended.result_body, ended.lease.job_id, self.worker.alias)):
            bodies.tell_left(ended.result_body, BodyLeft("too many bodies wait for the storage"))

    def end(self, seconds: float) -> None:
        """Wait until what was put is removed, for *seconds* at most, and tell of the rest."""
        if not removals.settle(seconds):
            removals.tell_waiting()

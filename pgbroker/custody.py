"""
Keep a body exactly as long as its row: it is removed when the transaction that would have named it is undone.

A storage knows no transactions, so the custody of a body hangs on Django's own list of what to do after
the commit. Django runs that on commit and drops it on every rollback, of a savepoint too.
"""

import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.core.files.storage import Storage
from django.db import connections, transaction
from psycopg.pq import TransactionStatus

from pgbroker import bodies
from pgbroker.errors import BodyLeft
from pgbroker.removals import Removal, removals


@dataclass(slots=True)
class _Facts:
    """What is still known when the custody itself is gone."""

    name: str
    storage: Storage
    job_id: UUID
    using: str
    process: int
    # The driver's connection whose transaction decides.
    raw: Any
    # Django has rolled back a savepoint around the statement.
    undone: bool = False


class _Hook:
    """
    What `transaction.on_commit` runs, and drops on a rollback.

    Nobody else holds it: a custody lives on in the frames of an exception, and would be dropped long after the
    rollback, in the middle of another transaction.
    """

    def __init__(self, facts: _Facts, *, doubtful: bool) -> None:
        self._doubtful = doubtful
        self._finalizer = _finalizer(self, facts)

    def __call__(self) -> None:
        """Keep the body, whose row is committed; in doubt, ask whether there is one."""
        if self._doubtful:
            self._finalizer()
        else:
            self._finalizer.detach()


class _Savepoints(set[Any]):
    """
    The savepoints around a statement, which Django keeps beside the hook.

    Once it has rolled a savepoint back it looks here whether the hook goes with it. Nothing else tells that from
    a list that was emptied by hand, when the row may yet be committed.
    """

    def __init__(self, savepoints: Iterable[Any], facts: _Facts) -> None:
        super().__init__(savepoints)
        self._facts = facts

    def __contains__(self, savepoint: object) -> bool:
        inside = super().__contains__(savepoint)
        if inside:
            self._facts.undone = True
        return inside


class Custody:
    """
    A body that was saved and is not yet a row's for good.

    It ends by `keep`, `keep_with`, `remove` or `doubt`. A body whose hook was dropped was rolled back, as far as
    Django says: then the database is asked, by `removals`, and the body removed unless a row names it.
    """

    def __init__(self, name: str, storage: Storage, *, job_id: UUID, using: str) -> None:
        raw = connections[using].connection
        self._facts = _Facts(name, storage, job_id, using, os.getpid(), raw)
        # Now: what is dropped cannot start a thread.
        removals.start()
        self._finalizer = _finalizer(self, self._facts)

    def keep(self) -> None:
        """Leave the body to its row, which is committed."""
        self._finalizer.detach()

    def keep_with(self, *, job_id: UUID) -> None:
        """Keep the body if the current transaction commits its row, under *job_id*; at once where there is none."""
        self._facts.job_id = job_id
        connection = connections[self._facts.using]
        if connection.in_atomic_block:
            self._facts.raw = connection.connection
            self._hang_on_the_commit(doubtful=False)
        else:
            # Committed; or the caller runs its transactions by hand, where no hook can know how they end.
            self.keep()

    def remove(self) -> None:
        """Remove the body: certainly no row names it."""
        if self._finalizer.detach() is not None:
            bodies.remove(self._facts.name, self._facts.storage)

    def doubt(self) -> None:
        """Remove the body unless its statement did its work all the same: known once the transaction is over."""
        if not self._finalizer.alive:
            return
        facts, connection = self._facts, connections[self._facts.using]
        if facts.raw is None or connection.connection is not facts.raw:
            # Another connection than the statement's says nothing of how that ended.
            self.keep()
            bodies.tell_left(facts.name, BodyLeft("the connection was lost before the statement had ended"))
        elif connection.in_atomic_block:
            self._hang_on_the_commit(doubtful=True)
        else:
            self._finalizer()

    def _hang_on_the_commit(self, *, doubtful: bool) -> None:
        facts = self._facts
        hook = _Hook(facts, doubtful=doubtful)
        self._finalizer.detach()
        transaction.on_commit(hook, using=facts.using)
        hooks: list[Any] = connections[facts.using].run_on_commit
        # As Django has it: the savepoints, the hook, and more. Where it has not, less is known of a rollback.
        if hooks and hooks[-1][1] is hook:
            savepoints, *more = hooks[-1]
            hooks[-1] = (_Savepoints(savepoints, facts), *more)


def _finalizer(owner: object, facts: _Facts) -> Any:
    finalizer = weakref.finalize(owner, _dropped, facts)
    # At the end of the process another thread may be just about to commit.
    finalizer.atexit = False
    return finalizer


def _dropped(facts: _Facts) -> None:
    """
    Have a body removed whose custody was dropped, unless a row names it.

    "Dropped" is not always "rolled back": another hook of the same commit that raises makes Django drop the
    rest. The garbage collector may call this in any thread and in the middle of anything, so it looks at what
    the driver knows and puts that where another thread finds it, and does nothing else.
    """
    if facts.process != os.getpid():
        # A copy in a fork; the transaction is the parent's.
        return
    # Over, one way or the other, and what was committed can be seen. A closed connection may have been lost in
    # the middle of the commit, which the server may yet finish.
    info = getattr(facts.raw, "info", None)
    over = info is not None and info.transaction_status == TransactionStatus.IDLE
    removals.put(Removal(facts.name, facts.job_id, facts.using, facts.storage, certain=facts.undone or over))

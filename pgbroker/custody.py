"""
Keep a body exactly as long as its row: it is removed when the transaction that would have named it is undone.

A storage knows no transactions, so the custody of a body hangs on Django's own list of what to do after
the commit. Django runs that on commit and drops it on every rollback, of a savepoint too.
"""

import os
import weakref
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.core.files.storage import Storage
from django.db import connections, transaction

from pgbroker import bodies
from pgbroker.db import Session
from pgbroker.errors import BodyLeft
from pgbroker.lifecycle.find_bodies import find_bodies


@dataclass(slots=True)
class _Facts:
    """What is still known when the custody itself is gone."""

    name: str
    storage: Storage
    job_id: UUID
    using: str
    process: int
    # The driver's connection whose transaction decides.
    raw: Any = None


class Custody:
    """
    A body that was saved and is not yet a row's for good.

    It ends by `keep` or `remove`. One that is dropped without either was rolled back, as far as Django says:
    then the database is asked, and the body removed unless a row names it.
    """

    def __init__(self, name: str, storage: Storage, *, job_id: UUID, using: str) -> None:
        self._facts = _Facts(name, storage, job_id, using, os.getpid())
        self._finalizer = weakref.finalize(self, _dropped, self._facts)
        # At the end of the process another thread may be just about to commit.
        self._finalizer.atexit = False

    def keep(self) -> None:
        """Leave the body to its row, which is committed."""
        self._finalizer.detach()

    def __call__(self) -> None:
        """Keep it: what `transaction.on_commit` runs."""
        self.keep()

    def keep_with(self, *, job_id: UUID) -> None:
        """Keep the body if the current transaction commits its row, under *job_id*; at once where there is none."""
        self._facts.job_id = job_id
        connection = connections[self._facts.using]
        if connection.in_atomic_block:
            self._facts.raw = connection.connection
            transaction.on_commit(self, using=self._facts.using)
        else:
            # Committed; or the caller runs its transactions by hand, where no hook can know how they end.
            self.keep()

    def remove(self) -> None:
        """Remove the body: certainly no row names it."""
        if self._finalizer.detach() is not None:
            bodies.remove(self._facts.name, self._facts.storage)

    def take_over(self) -> _Facts | None:
        """End the custody for whoever goes on from its facts; None when it has ended already."""
        return self._facts if self._finalizer.detach() is not None else None


def doubt(custodies: list[Custody]) -> None:
    """Remove bodies whose statement failed, unless it did its work all the same and only its answer was lost."""
    by_alias: dict[str, list[_Facts]] = {}
    for facts in filter(None, (each.take_over() for each in custodies)):
        facts.raw = facts.raw or connections[facts.using].connection
        if facts.raw is None:
            # There was no connection, so there is no row.
            bodies.remove(facts.name, facts.storage)
        else:
            by_alias.setdefault(facts.using, []).append(facts)
    for alias, group in by_alias.items():
        _remove_unless_in_doubt(group, using=alias)


def _dropped(facts: _Facts) -> None:
    """
    Remove a body whose custody was dropped, unless a row names it.

    Asked over a connection of its own, because "dropped" is not always "rolled back": another hook of the
    same commit that raises makes Django drop the rest.
    """
    if facts.process != os.getpid():
        # A copy in a fork; the transaction is the parent's.
        return
    _remove_unless_in_doubt([facts], using=facts.using)


def _remove_unless_in_doubt(group: list[_Facts], *, using: str) -> None:
    certain = [facts for facts in group if facts.raw is None or not facts.raw.closed]
    for facts in group:
        if facts not in certain:
            # Lost, perhaps in the middle of the commit: the server may yet finish it.
            bodies.tell_left(facts.name, BodyLeft("the connection was lost before the transaction had ended"))
    if certain:
        entries = [(facts.job_id, facts.name, facts.storage) for facts in certain]
        remove_unless_named(entries, using=using)


def remove_unless_named(entries: list[tuple[UUID, str, Storage]], *, using: str) -> None:
    """Remove bodies, given as job, name and storage, that no row names; trouble is told, never raised."""
    session = Session(using, purpose="bodies", lock_timeout="2s")
    try:
        named = find_bodies([(job_id, name) for job_id, name, _ in entries], using=session)
    except Exception as error:
        for _, name, _ in entries:
            bodies.tell_left(name, error)
        return
    finally:
        session.drop()
    for _, name, storage in entries:
        if name not in named:
            bodies.remove(name, storage)

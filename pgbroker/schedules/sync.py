"""Make rows of the schedules that the code declares, and tell where code and rows differ."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

import psycopg
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, OperationalError, transaction

from pgbroker import db, telemetry
from pgbroker.conf import project
from pgbroker.declared_rows import HeldRow
from pgbroker.lifecycle.announce import announce
from pgbroker.lifecycle.schedule import ScheduleLine, hold_schedules, list_declared
from pgbroker.lock_waits import Patience, is_held
from pgbroker.schedules import operate
from pgbroker.schedules.declare import Declared, declarations
from pgbroker.schedules.definition import Definition
from pgbroker.schedules.written import told, written
from pgbroker.tenancy import tenant_context

# Why a schedule is disabled that the code declared once. One that comes back is enabled again.
GONE = "the code declares it no longer"
# Code that nobody has been seen to run for so long is no longer the newest, if other code is.
QUIET = timedelta(minutes=5)
# How long is waited for what others hold, all in all: by whoever does it by hand, by a process that starts, and by one
# that has other things to do. Another process that writes for the same project is waited for as well.
BY_HAND, AT_START, MEANWHILE = 5.0, 2.0, 0.5
_PAGE = 500
# What a synchronisation does something about.
_WRITTEN = frozenset({"missing", "changed", "gone"})
# What the database says of all work, and not of one row; and of one row after all.
_NOT_ITS_OWN = (psycopg.Error, DatabaseError, InterfaceError)
_ITS_OWN = (psycopg.DataError, psycopg.IntegrityError, DataError, IntegrityError)


class Drift(NamedTuple):
    """
    A schedule whose row is not what the code says. *what* is:

    missing (it has no row), changed (the code says something new), edited (somebody changed the row since), gone (the
    code has it no more), taken (one that was made by hand, or that another project declared, has its name), invalid (it
    cannot be stored; *detail* says why), held (it was to be written, and somebody's open transaction holds its row).
    """

    name: str
    tenant: str
    what: str
    detail: str = ""


class Synced(NamedTuple):
    """What a synchronisation did, by names, and what is left that differs."""

    created: list[str]
    updated: list[str]
    disabled: list[str]
    left: list[Drift]


def drift(*, using: str) -> list[Drift]:
    """Tell of each declared schedule whose row differs; changes nothing. Of all tenants."""
    found: list[Drift] = []
    declared = _declared(using)
    rows = {(line.tenant_id, line.name): line for line in _lines(declared, using)}
    for each in declared:
        said, why = _fingerprint(each)
        if said is None:
            found.append(Drift(each.name, each.tenant, "invalid", why))
            continue
        line = rows.get((each.tenant, each.name))
        if (what := _difference(line, said)) is not None:
            found.append(Drift(each.name, each.tenant, what))
    names = {(each.tenant, each.name) for each in declared}
    return found + [
        Drift(line.name, line.tenant_id, "gone")
        for key, line in rows.items()
        if key not in names and _is_ours(line) and line.enabled
    ]


def drift_of(lines: Iterable[ScheduleLine], *, using: str) -> dict[UUID, Drift]:
    """Tell of those of some rows that differ from what the code says, by their ids. Asks the database nothing."""
    declared = {(each.tenant, each.name): each for each in _declared(using)}
    found: dict[UUID, Drift] = {}
    for line in lines:
        each = declared.get((line.tenant_id, line.name))
        what, detail = _drifted(each, line) if each else _undeclared(line)
        if what is not None:
            found[line.id] = Drift(line.name, line.tenant_id, what, detail)
    return found


def missing(tenant: str, stored: Collection[str], *, using: str) -> list[str]:
    """Name the schedules of a tenant that the code declares and that are not *stored*."""
    return [each.name for each in _declared(using) if each.tenant == tenant and each.name not in stored]


def declared_of(names: Collection[str], *, using: str) -> list[Declared]:
    """List what the code declares under those names."""
    return [each for each in _declared(using) if each.name in names]


def declared_names(tenant: str, *, using: str) -> list[str]:
    """Name the schedules of a tenant that the code declares."""
    return missing(tenant, (), using=using)


def _drifted(declared: Declared, line: ScheduleLine) -> tuple[str | None, str]:
    said, why = _fingerprint(declared)
    return ("invalid", why) if said is None else (_difference(line, said), "")


def _undeclared(line: ScheduleLine) -> tuple[str | None, str]:
    return ("gone" if _is_ours(line) and line.enabled else None), ""


def _is_ours(line: ScheduleLine) -> bool:
    return line.declared and line.declared_by == project()


def _difference(line: ScheduleLine | None, said: str) -> str | None:
    if line is None:
        return "missing"
    if not _is_ours(line):
        return "taken"
    if line.declaration != said or (not line.enabled and line.disabled_reason == GONE):
        return "changed"
    return None if Definition.of(line).fingerprint == said else "edited"


def sync(*, using: str) -> Synced:
    """
    Make rows of what the code declares, in the tenants that it names; the code's job types must have theirs already.

    A row is written when the code says something new: what somebody edited since stays, and is told. What the code has
    no more is disabled, if it was this project that had declared it. One that cannot be stored is told and keeps no
    other from it; nor does one that somebody holds, which is left for the next time. From now on this code is the
    newest of its project, whatever was seen before.
    """
    done = _synced(using, BY_HAND, insist=True)
    assert done is not None
    return done


def sync_if_newest(*, patience: float = AT_START, using: str) -> Synced | None:
    """
    Do as `sync` does, as a process that starts; None, and nothing is changed, where newer code of the project runs.

    While a new release comes in, processes of both start in any order: what only the older ones declare, or declare
    otherwise, stays as the newer say. Code that was seen before is the newest again when no newer was seen for `QUIET`.
    Raises what `is_held` knows where somebody holds the row of the project for longer than *patience* seconds.
    """
    return _synced(using, patience, insist=False)


def speaks(*, using: str | db.Session) -> bool | None:
    """Say that this code runs still: True where it is the newest anew, so that `sync_if_newest` is due; None if not."""
    alias = using if isinstance(using, str) else using.alias
    return announce(project(), _digest(alias), quiet=QUIET, using=using)


def held_of(done: Synced | None) -> list[HeldRow]:
    """Name what a synchronisation has left since somebody holds it."""
    left = done.left if done is not None else []
    return [HeldRow("schedule", each.name, each.tenant) for each in left if each.what == "held"]


def _synced(using: str, seconds: float, *, insist: bool) -> Synced | None:
    done = Synced([], [], [], [])
    # One transaction: the row of the project makes writers of its schedules take turns.
    with transaction.atomic(using=using):
        with Patience(seconds).limiting(using=using):
            speaks = announce(project(), _digest(using), quiet=QUIET, insist=insist, using=using)
        if speaks is None:
            telemetry.emit("schedule.superseded", project=project(), alias=using)
            return None
        _write(done, Patience(seconds), using)
    for left in done.left:
        if left.what == "held":
            # Told by whoever knows whether it is written later.
            continue
        telemetry.emit(
            "schedule.drifted",
            schedule=left.name,
            tenant_id=left.tenant,
            what=left.what,
            error=left.detail or None,
        )
    return done


def _write(done: Synced, patience: Patience, using: str) -> None:
    found = drift(using=using)
    done.left.extend(each for each in found if each.what not in _WRITTEN)
    wanted = [each for each in found if each.what in _WRITTEN]
    free = hold_schedules([(each.tenant, each.name) for each in wanted], using=using)
    held = [each for each in wanted if each.what != "missing" and (each.tenant, each.name) not in free]
    by_name = {(each.tenant, each.name): each for each in _declared(using)}
    # Those that somebody holds come last, and each only while there is patience left.
    for each in [*(each for each in wanted if each not in held), *held]:
        if each in held and patience.is_spent:
            done.left.append(each._replace(what="held"))
            continue
        try:
            with patience.limiting(using=using):
                _write_one(each, by_name, done, using)
        except OperationalError as error:
            if not is_held(error):
                raise
            done.left.append(each._replace(what="held"))


def _write_one(each: Drift, by_name: Mapping[tuple[str, str], Declared], done: Synced, using: str) -> None:
    if each.what != "gone":
        _store(by_name[each.tenant, each.name], done, using)
        return
    with tenant_context(each.tenant):
        line = operate.disable(each.name, reason=GONE, using=using)
    telemetry.emit("schedule.gone", schedule=each.name, schedule_id=line.id, tenant_id=each.tenant)
    done.disabled.append(each.name)


def _digest(using: str) -> str:
    """Return a digest of all that the code declares: another one as soon as any of it is."""
    digest = hashlib.sha256()
    for each in _declared(using):
        said, _ = _fingerprint(each)
        digest.update(f"{each.tenant}\0{each.name}\0{said or 'invalid'}\n".encode())
    return digest.hexdigest()[:32]


def _fingerprint(declared: Declared) -> tuple[str | None, str]:
    definition, why = written(declared)
    return (definition.fingerprint if definition else None), why


def _store(declared: Declared, done: Synced, using: str) -> None:
    try:
        definition = declared.definition
        with tenant_context(declared.tenant), transaction.atomic(using=using):
            saved = operate.save(
                definition,
                declaration=definition.fingerprint,
                declared_by=project(),
                using=using,
                lasting=False,
            )
    except Exception as error:
        if isinstance(error, _NOT_ITS_OWN) and not isinstance(error, _ITS_OWN):
            raise
        done.left.append(Drift(declared.name, declared.tenant, "invalid", told(error)))
        return
    (done.created if saved.is_new else done.updated).append(declared.name)


def _declared(using: str) -> list[Declared]:
    return [each for each in declarations.all() if each.database == using]


def _lines(declared: Sequence[Declared], using: str) -> Sequence[ScheduleLine]:
    """Read the rows that matter: others may be many."""
    lines: list[ScheduleLine] = []
    said = [(each.tenant, each.name) for each in declared]
    while True:
        after = lines[-1].id if lines else UUID(int=0)
        page = list_declared(project(), said, after=after, limit=_PAGE, using=using)
        lines += page
        if len(page) < _PAGE:
            return sorted(lines, key=lambda line: (line.name, line.id))

"""declare: make rows of what the code declares, before anybody enqueues or claims."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pgbroker import db


class QueueRow(NamedTuple):
    """A queue as the database knows it; None: the setting's default applies."""

    id: int
    name: str
    ageing_seconds: float | None
    lease_seconds: float | None


class DeclaredType(NamedTuple):
    """A job type as its code declares it."""

    name: str
    version: int
    aliases: tuple[str, ...]
    defaults: dict[str, Any]


def declare_queues(names: Sequence[str], *, using: str | db.Session = "default") -> list[QueueRow]:
    """Make sure that the queues exist and return them."""
    wanted = sorted(set(names))
    # A name that another session is just committing answers at the second look.
    for _ in range(3):
        rows = db.fetch("register_queues", {"names": wanted}, QueueRow._make, using=using)
        if len(rows) == len(wanted):
            break
    return rows


def list_queues(*, using: str | db.Session = "default") -> list[QueueRow]:
    """List all queues by name."""
    return db.fetch("queues", {}, QueueRow._make, using=using)


class TypeRow(NamedTuple):
    """A job type as the database knows it; one that *is_held* by somebody says something else still."""

    id: int
    name: str
    is_held: bool


def declare_types(types: Sequence[DeclaredType], *, using: str | db.Session = "default") -> dict[str, int]:
    """Record what the code declares about its types, but for rows that somebody holds; returns their ids by name."""
    return {row.name: row.id for row in record_types(types, using=using)}


def record_types(types: Sequence[DeclaredType], *, using: str | db.Session = "default") -> list[TypeRow]:
    """Record what the code declares about its types; rows that somebody holds are left, and told."""
    if not types:
        return []
    parameters = {
        "names": [each.name for each in types],
        "versions": [each.version for each in types],
        "aliases": json.dumps([list(each.aliases) for each in types]),
        "defaults": json.dumps([each.defaults for each in types]),
    }
    for _ in range(3):
        rows = db.fetch("register_types", parameters, TypeRow._make, using=using)
        if len(rows) == len(types):
            break
    return rows


def type_ids(names: Sequence[str], *, using: str | db.Session = "default") -> dict[str, int]:
    """Return the ids of the types of these names that have a row."""
    return dict(db.fetch("type_ids", {"names": list(names)}, lambda row: (row[0], row[1]), using=using))


def table_exists(*, using: str | db.Session = "default") -> bool:
    """Tell whether the tables are there: false before the first migration, and after going back to zero."""
    return bool(db.fetch("installed", {}, lambda row: row[0], using=using)[0])

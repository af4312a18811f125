"""Make rows of the job types and queues that the code declares, and wait for nobody who holds some of them."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from pgbroker import telemetry
from pgbroker.conf import settings
from pgbroker.lifecycle.declare import DeclaredType, TypeRow, declare_queues, record_types, table_exists
from pgbroker.lock_waits import Patience, write_unhindered
from pgbroker.registry import declared_queues, declared_types

# How long a process that starts waits for all that others hold.
PATIENCE_SECONDS = 1.0


class HeldRow(NamedTuple):
    """A row that the code declares otherwise, or that is not there yet, and that somebody holds."""

    what: Literal["queue", "job type", "schedule", "project"]
    name: str
    tenant: str | None = None


class Written(NamedTuple):
    """The ids of the job types that have a row, by key, and which rows are left to be written."""

    ids: dict[str, int]
    held: list[HeldRow]


def write_names(*, using: str, queues: Sequence[str] = (), patience: float = PATIENCE_SECONDS) -> Written:
    """
    Make rows of all registered types, of their queues and of *queues*, but for what somebody holds.

    A type that exists keeps what its row says until it is written later. One whose first row is just being made by
    somebody else has no id yet, nor could there be a job of it: the process can do without until it is there.
    """
    waits = Patience(patience)
    rows: list[TypeRow] = []

    def record(part: Sequence[DeclaredType]) -> None:
        rows.extend(record_types(part, using=using))

    wanted = sorted({*declared_queues(), *queues})
    no_queues = write_unhindered(
        wanted, lambda part: declare_queues(part, using=using), patience=waits, using=using
    )
    no_types = write_unhindered(declared_types(), record, patience=waits, using=using)
    held = [HeldRow("queue", name) for name in no_queues]
    held += [HeldRow("job type", each.name) for each in no_types]
    held += [HeldRow("job type", row.name) for row in rows if row.is_held]
    return Written({row.name: row.id for row in rows}, sorted(held, key=lambda each: each[:2]))


def tell_held(held: Iterable[HeldRow]) -> None:
    """Tell of rows that are left to be written."""
    for each in held:
        telemetry.emit("declaration.held", what=each.what, name=each.name, tenant_id=each.tenant)


def declare_after_migrate(*, using: str, plan: Any = None, **_: Any) -> None:
    """Make rows of what the code declares once the tables are there; receiver of `post_migrate`."""
    if using in settings().DATABASES and table_exists(using=using):
        tell_held(write_names(using=using).held)

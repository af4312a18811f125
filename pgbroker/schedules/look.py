"""Look at schedules: list them, read one with what became of its ticks, and look ahead."""

from contextlib import AbstractContextManager
from datetime import UTC, datetime
from itertools import islice
from uuid import UUID

from pgbroker import correlation
from pgbroker.conf import settings
from pgbroker.errors import InvalidOption, InvalidSchedule, ScheduleNotFound
from pgbroker.lifecycle.schedule import RunLine, ScheduleLine, list_schedule_runs
from pgbroker.lifecycle.schedule import list_schedules as listing
from pgbroker.policy.cron import Tick
from pgbroker.policy.values import instant, whole
from pgbroker.schedules.declare import Declared, declarations
from pgbroker.schedules.definition import Definition, troubles_of
from pgbroker.schedules.written import written
from pgbroker.tenancy import tenant_context

MOST_TICKS = 1_000
# Before all names.
FIRST = ("", UUID(int=0))
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)

# Schedules among whose names is looked for those that may have been meant.
NEAR_MAX = 500

CURE_UNSTORED = "Run manage.py broker_schedules sync, or start a scheduler."

# A name, or an id.
ScheduleKey = UUID | str


def list_schedules(
    *, after: tuple[str, UUID] = FIRST, limit: int = 200, using: str | None = None
) -> list[ScheduleLine]:
    """List the current tenant's schedules by name, in `scope_all()` those of all; *after* is (name, id) of the last."""
    return listing(tenant=_tenant(), after=after, limit=limit, using=alias_of(using))


def get_schedule(schedule: ScheduleKey, *, using: str | None = None) -> ScheduleLine:
    """Read one schedule; raises `ScheduleNotFound`, also for a name that several tenants have, in `scope_all()`."""
    schedule_id = _id_of(schedule)
    name = None if schedule_id is not None else str(schedule)
    found = listing(tenant=_tenant(), schedule_id=schedule_id, name=name, limit=2, using=alias_of(using))
    if len(found) == 1:
        return found[0]
    if found or name is None:
        raise ScheduleNotFound(schedule, many=len(found) > 1)
    if (unstored := _why_unstored(name, alias_of(using))) is not None:
        raise ScheduleNotFound(schedule, unstored=unstored)
    raise ScheduleNotFound(schedule, known=_known(name, alias_of(using)))


def history(
    schedule: ScheduleKey,
    *,
    before: datetime | None = None,
    since: datetime | None = None,
    limit: int = 50,
    using: str | None = None,
) -> list[RunLine]:
    """List what became of ticks, the latest first; *before* is the `scheduled_for` of the last one seen."""
    line = get_schedule(schedule, using=using)
    with as_tenant_of(line):
        return list_schedule_runs(
            line.id,
            since=instant("since", since) if since else _EARLIEST,
            before=instant("before", before) if before else _LATEST,
            limit=limit,
            using=alias_of(using),
        )


def next_ticks(
    schedule: ScheduleKey, count: int = 5, *, after: datetime | None = None, using: str | None = None
) -> list[Tick]:
    """
    Return the next ticks of a schedule, later than *after* or now by the database's clock; it may be paused.

    Each has the instant in UTC, the time on the wall, and what a change of the clock makes of it: *repeat* for a time
    that the clock shows twice, *skipped* for the time that it never shows and the tick was moved from.
    """
    whole("count", count, 1, MOST_TICKS)
    if after is not None:
        instant("after", after)
    line = get_schedule(schedule, using=using)
    return list(islice(Definition.of(line).cron.after(after or line.now), count))


def preview(definition: Definition, count: int = 5, *, after: datetime) -> list[Tick]:
    """Return the first ticks of what is not stored yet; raises `InvalidSchedule`. Needs no database."""
    whole("count", count, 1, MOST_TICKS)
    instant("after", after)
    if troubles := troubles_of(definition):
        raise InvalidSchedule(definition.name, troubles)
    return list(islice(definition.cron.after(after), count))


def find(name: str, *, using: str) -> ScheduleLine | None:
    """Read the current tenant's schedule of that name, None when there is none."""
    found = listing(tenant=_own_tenant(), name=name, limit=1, using=using)
    return found[0] if found else None


def as_tenant_of(line: ScheduleLine) -> AbstractContextManager[None]:
    """Work as the schedule's tenant: an operator in `scope_all()` acts on one schedule at a time."""
    return tenant_context(line.tenant_id)


def _why_unstored(name: str, alias: str) -> str | None:
    """Say why a schedule of that name, which the code declares, has no row; None where no code declares it."""
    for each in _declared(alias):
        if each.name == name:
            _, why = written(each)
            return f"cannot be stored: {why}" if why else "is not stored yet. " + CURE_UNSTORED
    return None


def _known(name: str, alias: str) -> set[str]:
    """Name what may have been meant: the first of all, those that begin with that letter, and what is declared."""
    places = (FIRST, (name[:1], FIRST[1]))
    stored = [
        line.name
        for after in places
        for line in listing(tenant=_tenant(), after=after, limit=NEAR_MAX, using=alias)
    ]
    return {*stored, *(each.name for each in _declared(alias))}


def _declared(alias: str) -> list[Declared]:
    tenant = _tenant()
    return [each for each in declarations.all() if tenant in (None, each.tenant) and each.database == alias]


def _id_of(schedule: ScheduleKey) -> UUID | None:
    if isinstance(schedule, UUID):
        return schedule
    if not isinstance(schedule, str):
        raise InvalidOption("schedule", f"is a {type(schedule).__name__}", "Give its name, or its id.")
    try:
        return UUID(schedule) if len(schedule) in (32, 36) else None
    except ValueError:
        return None


def _own_tenant() -> str:
    return correlation.tenant.get() or correlation.DEFAULT_TENANT


def _tenant() -> str | None:
    return None if correlation.scope_all.get() else _own_tenant()


def alias_of(using: str | None) -> str:
    """Return the alias to work on: the first of DATABASES if none is named."""
    return using or settings().DATABASES[0]

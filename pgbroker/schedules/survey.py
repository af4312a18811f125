"""Where code and rows differ, for whoever asks: what is not stored yet is tried in the database, and undone."""

from collections.abc import Iterable

from pgbroker.errors import InvalidSchedule
from pgbroker.registry import names
from pgbroker.schedules import operate
from pgbroker.schedules.look import find
from pgbroker.schedules.sync import Drift, declared_of, drift
from pgbroker.schedules.written import written
from pgbroker.tenancy import tenant_context

# A process that starts stores the job types and queues of the code before its schedules.
_STORED_FIRST = frozenset({"unknown_job_type", "unknown_queue"})


def survey(*, using: str) -> list[Drift]:
    """Tell what `drift` does; what it would store, and the database would refuse, is invalid with the reason."""
    return [
        _tried(each, using) if each.what in ("missing", "changed") else each for each in drift(using=using)
    ]


def rowless_of(found: Iterable[Drift], *, using: str) -> list[Drift]:
    """Return what of it is declared and has no row yet, and why it will have none where that can be told."""
    return [
        each
        for each in found
        if each.what == "missing" or (each.what == "invalid" and not _is_stored(each, using))
    ]


def _is_stored(found: Drift, using: str) -> bool:
    with tenant_context(found.tenant):
        return find(found.name, using=using) is not None


def _tried(found: Drift, using: str) -> Drift:
    declared = next(each for each in declared_of([found.name], using=using) if each.tenant == found.tenant)
    definition, _ = written(declared)
    assert definition is not None
    with tenant_context(found.tenant):
        troubles = operate.check(definition, lasting=False, using=using)
    known = names()
    declares = all(str(each.get("job_type")) in known for each in definition.jobs)
    if troubles and not (declares and {each.code for each in troubles} <= _STORED_FIRST):
        return found._replace(what="invalid", detail=InvalidSchedule(found.name, troubles).message)
    return found

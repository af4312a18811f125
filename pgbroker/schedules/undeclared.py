"""Job types that a schedule creates jobs of, and that no code here declares: their jobs would wait for ever."""

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from pgbroker import db
from pgbroker.conf import project
from pgbroker.lifecycle.schedule import ScheduleLine
from pgbroker.registry import names

CURE = "Declare it again, or disable the schedule."


class Undeclared(NamedTuple):
    """A schedule that is enabled, and the types of its jobs that no code declares."""

    schedule_id: UUID
    tenant_id: str
    name: str
    types: list[str]


def undeclared_types(line: ScheduleLine) -> list[str]:
    """Name them, by keys in order; none for what another project declares, whose code only its processes know."""
    if line.declared and line.declared_by != project():
        return []
    known = names()
    jobs = line.template.get("jobs", ())
    return sorted({str(each.get("job_type")) for each in jobs if isinstance(each, Mapping)} - known.keys())


def tell_undeclared(line: ScheduleLine) -> str:
    """Say so in a sentence with its cure; nothing where all are declared."""
    if not (missing := undeclared_types(line)):
        return ""
    types = f"job type{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}"
    return (
        f"this project's code does not declare the {types}: ticks go on, and their jobs wait until a worker "
        f"declares it. {CURE}"
    )


def list_undeclared(*, tenant: str | None, limit: int, using: str) -> list[Undeclared]:
    """List the schedules of which `undeclared_types` names some, by name: of one tenant, in `scope_all()` of all."""
    asked = {"tenant": tenant, "project": project(), "known": list(names()), "limit": limit}
    return db.fetch("undeclared_types", asked, Undeclared._make, using=using)

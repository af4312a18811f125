"""Delete a schedule; what it has created goes on."""

from django.db import transaction

from pgbroker import telemetry
from pgbroker.conf import project
from pgbroker.errors import ScheduleDeclared
from pgbroker.lifecycle.schedule import ScheduleLine, delete_schedule
from pgbroker.schedules.held import held
from pgbroker.schedules.look import ScheduleKey, alias_of, as_tenant_of, get_schedule
from pgbroker.schedules.sync import GONE, declared_names


def delete(schedule: ScheduleKey, *, using: str | None = None) -> ScheduleLine:
    """
    Delete a schedule that no code declares, and return what it was. It creates nothing more.

    Its jobs and run groups go on, whatever their state. What became of its ticks is kept as long as ever, and belongs
    to no schedule of that name that comes later. A tick that is due or waits for its turn is not created. Raises
    `ScheduleDeclared` while this code, or that of another project, declares it, and `ScheduleNotFound`.
    """
    alias = alias_of(using)
    line = get_schedule(schedule, using=alias)
    with as_tenant_of(line), transaction.atomic(using=alias):
        held(line.id, using=alias)
        current = get_schedule(line.id, using=alias)
        refuse_declared(current, alias)
        delete_schedule(current.id, using=alias)
    telemetry.emit(
        "schedule.deleted", schedule=current.name, schedule_id=current.id, tenant_id=current.tenant_id
    )
    return current


def may_delete(line: ScheduleLine, *, using: str) -> bool:
    """Tell whether `delete` would."""
    try:
        refuse_declared(line, using)
    except ScheduleDeclared:
        return False
    return True


def refuse_declared(line: ScheduleLine, alias: str) -> None:
    """Raise `ScheduleDeclared` while code declares it."""
    if not line.declared:
        return
    ours = line.declared_by == project()
    if ours and line.name not in declared_names(line.tenant_id, using=alias):
        return
    # Of another project it is known from the row alone.
    if not ours and not line.enabled and line.disabled_reason == GONE:
        return
    raise ScheduleDeclared(line.name, line.declared_by, ours=ours)

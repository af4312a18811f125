"""Rows of a test: let time pass for them, write what no verb makes, empty the tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import pgtrigger
from django.apps import apps
from django.db import connections, transaction
from django.db.models import DateTimeField, F

from pgbroker.conf import settings
from pgbroker.control import job_id_of
from pgbroker.errors import JobNotFound
from pgbroker.models import (
    DeferredReference,
    Execution,
    Job,
    JobDependency,
    JobEvent,
    JobState,
    JobType,
    Pause,
    Queue,
    RunGroup,
    Unresolved,
)
from pgbroker.references import HasId
from pgbroker.removals import removals
from pgbroker.tenancy import scope_all

# They stay: code knows their numbers.
KEPT = (Queue, JobType)
# Rows whose times belong to a job, and what they call it.
_OF_A_JOB = (
    (Job, "pk"),
    (JobState, "job"),
    (Execution, "job"),
    (JobEvent, "job"),
    (JobDependency, "dependent_id"),
    (DeferredReference, "dependent_id"),
)
# A truncate makes new files for every partition; fewer rows than take so many bytes are sooner deleted.
TRUNCATED_BYTES = 5_000_000


def settle_bodies(*, seconds: float = 10.0) -> None:
    """
    Wait until bodies of what was rolled back or refused so far are removed; raises `TimeoutError`.

    A thread of its own removes them, moments after the rollback.
    """
    if not removals.settle(seconds):
        raise TimeoutError(f"the storage or the database did not answer within {seconds} s")


def age(job: UUID | str | HasId | None = None, *, using: str | None = None, **duration: float) -> None:
    """
    Let time pass for a job (or for all): move the times of its rows back by *duration* (`hours=1`).

    No clock is faked: what was due in an hour is due now, a lease of a minute has expired. Events, executions and
    edges of the job move along; pauses and run groups only when all jobs do. Raises `JobNotFound`.
    """
    alias = using or settings().DATABASES[0]
    back = timedelta(**duration)
    job_id = None if job is None else job_id_of(job)
    with guards_off(using=alias):
        for model, link in _OF_A_JOB:
            rows = model._base_manager.using(alias)
            if job_id is not None:
                rows = rows.filter(**{link: job_id})
            moved = rows.update(**_moved(model, back))
            if model is Job and job_id is not None and moved == 0:
                raise JobNotFound(job_id)
        if job_id is None:
            for other in (Pause, RunGroup, Unresolved):
                other._base_manager.using(alias).update(**_moved(other, back))


@contextmanager
def guards_off(*, using: str | None = None) -> Iterator[None]:
    """
    Write rows that no verb makes, in all tenants, without events and in one transaction.

    Policies and constraints hold as ever. By the guards' own switch, set here and not by
    `pgtrigger.ignore()`: that one puts a second statement into each, which a pipeline refuses.
    """
    alias = using or settings().DATABASES[0]
    guards = ",".join(trigger.get_pgid(model) for model, trigger in pgtrigger.registered())
    names = ("pgtrigger.ignore", "pgbroker.events")
    write = "select set_config('pgtrigger.ignore', %s, true), set_config('pgbroker.events', %s, true)"
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute(
            "select coalesce(nullif(current_setting(%s, true), ''), '{}'), "
            "coalesce(current_setting(%s, true), '')",
            names,
        )
        before = cursor.fetchone()
        cursor.execute(write, ("{" + guards + "}", "off"))
        with scope_all():
            yield
        cursor.execute(write, before)


def _moved(model: type, back: timedelta) -> dict[str, object]:
    return {
        field.name: F(field.name) - back
        for field in model._meta.concrete_fields  # type: ignore[attr-defined]
        if isinstance(field, DateTimeField)
    }


def flush(*, using: str | None = None) -> None:
    """
    Empty pgbroker's tables, but for queues and job types.

    Django's own flush (`TransactionTestCase`) does not see tables outside of the search path. Needs an alias
    that may write; `FlushMixin` and the pytest plugin call it where a test commits.
    """
    alias = using or settings().DATABASES[0]
    models = apps.get_app_config("pgbroker").get_models()
    tables = [model._meta.db_table.replace('"', "") for model in models if model not in KEPT]
    with guards_off(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("select pg_relation_size('pgbroker.job') > %s", (TRUNCATED_BYTES,))
        if cursor.fetchone()[0]:
            cursor.execute(f"truncate {', '.join(tables)}")
        else:
            cursor.execute("; ".join(f"delete from {table}" for table in tables))  # noqa: S608 - our own names
        # As after migrate: each queue has the priority 0.
        cursor.execute(
            "insert into pgbroker.queue_priority (queue_id, priority) select id, 0 from pgbroker.queue"
        )

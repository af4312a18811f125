"""System checks: what is wrong with settings and database, each with its cure. `msg` = problem, `hint` = cure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from shlex import quote
from typing import Any

import django
from django.apps import apps
from django.apps.config import AppConfig
from django.conf import settings as django_settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, Warning
from django.core.files.storage import storages
from django.db import DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from pgbroker import conf, registry, reports
from pgbroker.backend import PgBrokerBackend
from pgbroker.compat import task_backends
from pgbroker.errors import DuplicateJobType, InvalidOption, sentence
from pgbroker.schedules.declare import Declared, declarations
from pgbroker.schedules.otherwise import read_otherwise
from pgbroker.schedules.undeclared import Undeclared, list_undeclared
from pgbroker.schedules.written import written
from pgbroker.tenancy import scope_all

OLDEST_SERVER = 150000
BACKEND = "pgbroker.backend.PgBrokerBackend"
# From this day on two readings are compared: the same code is told the same every day.
ALIKE = date(2025, 1, 1)
# Schedules in the database that are told to create jobs which nobody runs, and of each type those that are named.
UNDECLARED_MAX, NAMED_MAX = 1_000, 5


@checks.register("pgbroker")
def check_settings(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Check `PGBROKER` and the aliases it names: one message for each wrong key."""
    values, troubles = conf.problems(getattr(django_settings, "PGBROKER", {}))
    found: list[CheckMessage] = [
        Error(
            sentence(f"PGBROKER[{trouble.key!r}] {trouble.trouble}" if trouble.key else trouble.trouble),
            hint=trouble.cure,
            id="pgbroker.E001",
        )
        for trouble in troubles
    ]
    names = "names" if "DATABASES" in values else "is not set and so names"
    for alias in values.get("DATABASES", conf.Settings().DATABASES):
        found += _check_alias(alias, 'PGBROKER["DATABASES"]', names, unknown="pgbroker.E002")
    if (direct := values.get("LISTEN_DATABASE")) is not None:
        found += _check_alias(direct, 'PGBROKER["LISTEN_DATABASE"]', "names", unknown="pgbroker.E005")
    if (storage := values.get("BODY_STORAGE")) is not None:
        found += _check_storage(storage)
    if (schema := getattr(django_settings, "PGTRIGGER_SCHEMA", "public")) != "public":
        found.append(
            Warning(
                f"PGTRIGGER_SCHEMA is {schema!r}: the hash of every trigger changes "
                "with it, and makemigrations will want to write a migration into pgbroker.",
                hint="Leave it out; pgbroker keeps the functions of its triggers in its own schema anyway.",
                id="pgbroker.W006",
            )
        )
    return found


def _check_storage(alias: str) -> Iterator[CheckMessage]:
    if alias not in storages.backends:
        yield Error(
            f'PGBROKER["BODY_STORAGE"] names {alias!r}, which is not in STORAGES.',
            hint=f"Known: {', '.join(storages.backends)}.",
            id="pgbroker.E008",
        )
        return
    try:
        _ = storages[alias]
    except Exception as error:  # whatever the storage's own code raises
        yield Error(
            sentence(f'PGBROKER["BODY_STORAGE"] names {alias!r}, which cannot be made: {error}'),
            hint=f"Look at STORAGES[{alias!r}].",
            id="pgbroker.E008",
        )
    if alias in ("default", "staticfiles"):
        yield Warning(
            f'PGBROKER["BODY_STORAGE"] is {alias!r}, whose files a project serves to its visitors.',
            hint="Give bodies a storage of their own in STORAGES, which is private.",
            id="pgbroker.W009",
        )


def _check_alias(alias: str, where: str, names: str, *, unknown: str) -> Iterator[CheckMessage]:
    if alias not in connections.settings:
        yield Error(
            f"{where} {names} {alias!r}, which is not in DATABASES.",
            hint=f"Known: {', '.join(connections.settings)}.",
            id=unknown,
        )
    elif connections[alias].vendor != "postgresql":
        yield Error(
            f"{where} {names} {alias!r}, which is {connections[alias].vendor}, not PostgreSQL.",
            hint=f"Set DATABASES[{alias!r}]['ENGINE'] to 'django.db.backends.postgresql'; "
            f"or name another alias, of PostgreSQL, in {where}.",
            id="pgbroker.E003",
        )


@checks.register("pgbroker")
def check_job_types(app_configs: Sequence[AppConfig] | None, **options: Any) -> list[CheckMessage]:
    """Check that each job type is declared once, and that what `@job` declares reaches pgbroker."""
    try:
        known = registry.types()
    except DuplicateJobType as error:
        problem, _, cure = error.message.partition(". ")
        return [Error(f"{problem}.", hint=cure, id="pgbroker.E004")]
    found = list(_check_exhausted(known))
    elsewhere = sorted(
        key for key, each in known.items() if not isinstance(each.task.get_backend(), PgBrokerBackend)
    )
    if elsewhere:
        found.append(
            Warning(
                f"TASKS sends {len(elsewhere)} job types to another backend: {', '.join(elsewhere[:5])}.",
                hint=f"Set TASKS['default']['BACKEND'] to {BACKEND!r}, or leave TASKS out.",
                id="pgbroker.W007",
            )
        )
    return found


def _check_exhausted(known: Mapping[str, registry.JobType]) -> Iterator[CheckMessage]:
    for key, each in sorted(known.items()):
        after = each.task.on_exhausted
        if after is None:
            continue
        try:
            name = registry.exhausted_name(after)
        except InvalidOption as error:
            yield Error(
                sentence(f"the on_exhausted of job type {key!r} {error.trouble}"),
                hint=error.cure,
                id="pgbroker.E012",
            )
            continue
        if name not in registry.names():
            yield Warning(
                f"the on_exhausted of job type {key!r} names {name!r}, which this project does not declare.",
                hint="Look at the name, or make sure that another project with the same database declares it.",
                id="pgbroker.W013",
            )


@checks.register("pgbroker")
def check_task_backends(app_configs: Sequence[AppConfig] | None, **options: Any) -> list[CheckMessage]:
    """Ask pgbroker's backends in TASKS for their own checks, where Django 5.2 has no app that does."""
    if django.VERSION >= (6, 0) or apps.is_installed("django_tasks"):
        return []
    aliases = getattr(django_settings, "TASKS", {})
    backends = [task_backends[alias] for alias in aliases]
    return [told for each in backends if isinstance(each, PgBrokerBackend) for told in each.check()]


@checks.register("pgbroker")
def check_schedules(app_configs: Sequence[AppConfig] | None, **options: Any) -> list[CheckMessage]:
    """Tell of declared schedules that cannot be stored, or whose expression another library reads otherwise."""
    return [told for each in declarations.all() for told in _check_schedule(each)]


def _check_schedule(declared: Declared) -> Iterator[CheckMessage]:
    definition, why = written(declared)
    if definition is None:
        # A warning: an error would keep the scheduler from starting, and all other schedules from firing.
        yield Warning(
            sentence(f"schedule {declared.name!r} cannot be stored, and so never fires: {why}"),
            hint="Correct its declaration; broker_schedules sync --dry-run tells what is left.",
            id="pgbroker.W015",
        )
    elif (told := read_otherwise(definition, ALIKE)) is not None:
        yield Warning(
            f"schedule {declared.name!r} has the cron expression {definition.expression!r}, which others read "
            f"otherwise: {told}",
            hint="If this is what you mean, silence it with SILENCED_SYSTEM_CHECKS; else write it in another way. See "
            "the reference of cron expressions.",
            id="pgbroker.W014",
        )


@checks.register(Tags.database)
def check_databases(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check the servers of the broker aliases among *databases*; nothing without any."""
    usable, troubles = conf.problems(getattr(django_settings, "PGBROKER", {}))
    aliases = usable.get("DATABASES", conf.Settings().DATABASES)
    found: list[CheckMessage] = []
    for alias in databases or ():
        # What is wrong with the settings has been told.
        if troubles or alias not in aliases or connections[alias].vendor != "postgresql":
            continue
        try:
            found += check_server(alias)
            if MigrationRecorder(connections[alias]).has_table():
                lacking = list(check_migrations(alias))
                found += lacking or check_types(alias)
        except DatabaseError as error:
            found.append(
                Warning(
                    sentence(f"database alias {alias!r} cannot be checked: {error}"),
                    hint=f"Look at DATABASES[{alias!r}] and whether PostgreSQL runs.",
                    id="pgbroker.W024",
                )
            )
    return found


def check_server(alias: str) -> Iterator[CheckMessage]:
    """Check what answers on an alias, and as whom pgbroker works there."""
    server = reports.read_server(using=alias)
    if server.version < OLDEST_SERVER:
        yield Error(
            f"database alias {alias!r} is PostgreSQL {server.version // 10000}.",
            hint=f"pgbroker needs PostgreSQL {OLDEST_SERVER // 10000} or later.",
            id="pgbroker.E020",
        )
    if server.superuser or server.bypasses:
        yield Warning(
            f"database alias {alias!r} is used as {server.username!r}, "
            f"{'a superuser' if server.superuser else 'which has BYPASSRLS'}: "
            "row-level security does not hold, every tenant sees all jobs.",
            hint="Use a plain user: create role app login; grant it what the project needs.",
            id="pgbroker.W021" if server.superuser else "pgbroker.W022",
        )


def check_migrations(alias: str) -> Iterator[CheckMessage]:
    """Check that our migrations are applied, in a database that has any: an empty one is no trouble of pgbroker."""
    if missing := missing_migrations(alias):
        yield Warning(
            f"database alias {alias!r} lacks migrations of pgbroker: {', '.join(missing)}.",
            hint=f"Run: manage.py migrate pgbroker --database {alias}",
            id="pgbroker.W023",
        )


def check_types(alias: str) -> Iterator[CheckMessage]:
    """Tell of job types that a schedule creates jobs of, and that this project does not declare."""
    try:
        with scope_all():
            found = list_undeclared(tenant=None, limit=UNDECLARED_MAX, using=alias)
    except DuplicateJobType:
        # It has been told.
        return
    by_type: dict[str, list[Undeclared]] = {}
    for each in found:
        for job_type in each.types:
            by_type.setdefault(job_type, []).append(each)
    for job_type, schedules in sorted(by_type.items()):
        named = ", ".join(f"{each.name!r} of tenant {each.tenant_id}" for each in schedules[:NAMED_MAX])
        more = len(schedules) - NAMED_MAX
        yield Warning(
            f"job type {job_type!r} is not declared by this project's code, and a schedule creates jobs of it, which "
            f"wait until a worker declares it: {named}{f' and {more} more' if more > 0 else ''}.",
            hint="Declare it again, perhaps as an alias; or stop it: manage.py broker_schedules disable "
            f"{quote(schedules[0].name)} --tenant {schedules[0].tenant_id}",
            id="pgbroker.W025",
        )


def missing_migrations(alias: str) -> list[str]:
    """List pgbroker's migrations that a database lacks."""
    executor = MigrationExecutor(connections[alias])
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes("pgbroker"))
    return [migration.name for migration, _ in plan if migration.app_label == "pgbroker"]

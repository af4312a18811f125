"""The schema: what migrations make is what the models say, forward, back and forward again; policies and partitions."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import DatabaseError, connection, models, transaction

from pgbroker import sql
from pgbroker.lifecycle.partitions import ensure_partitions
from pgbroker.tenancy import tenant_context
from tests.support.jobs import claim_many, completed, enqueue_one, guards_off, settle_one
from tests.support.sessions import InThread, second_session

RELEASED = Path(__file__).parent / "sql" / "released.json"
MODELS = list(apps.get_app_config("pgbroker").get_models())

# What the models know and PostgreSQL writes otherwise: text with a length is text, a serial is an identity.
TYPES = {"serial": "integer", "smallserial": "smallint", "bigserial": "bigint"}


def table(model: type[models.Model]) -> str:
    """Return the table's name without its schema."""
    schema, name = model._meta.db_table.split('"."')
    assert schema == "pgbroker"
    return name


def query(text: str, parameters: object = None) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(text, parameters)
        return cursor.fetchall()


def catalog(name: str) -> dict[str, tuple[str, bool]]:
    """Return each column's type and whether it may be null."""
    return {
        column: (kind, not required)
        for column, kind, required in query(
            "select attname, format_type(case typtype when 'd' then typbasetype else atttypid end, atttypmod), "
            "attnotnull from pg_attribute join pg_type on pg_type.oid = atttypid "
            "where attrelid = ('pgbroker.' || %s)::regclass and attnum > 0 and not attisdropped",
            [name],
        )
    }


def declared(model: type[models.Model]) -> dict[str, tuple[str, bool]]:
    """Return the same as the model says it."""
    columns = {}
    for each in model._meta.concrete_fields:
        kind = each.db_type(connection)
        kind = "text" if kind.startswith("varchar") else TYPES.get(kind, kind)
        columns[each.column] = (kind, each.null)
    return columns


def everything() -> dict[str, list]:
    """Return all that pgbroker has in the catalog, to compare before and after."""
    return {
        "relations": query(
            "select relname, relkind, relrowsecurity, relforcerowsecurity, reloptions::text from pg_class "
            "where relnamespace = to_regnamespace('pgbroker') order by 1"
        ),
        "columns": query(
            "select attrelid::regclass::text, attname, atttypid::regtype::text, attnotnull from pg_attribute "
            "join pg_class on pg_class.oid = attrelid "
            "where relnamespace = to_regnamespace('pgbroker') and attnum > 0 and not attisdropped order by 1, 2"
        ),
        "indexes": query("select indexdef from pg_indexes where schemaname = 'pgbroker' order by 1"),
        "constraints": query(
            "select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint "
            "where connamespace = to_regnamespace('pgbroker') order by 1, 2"
        ),
        "functions": query(
            "select proname, md5(pg_get_functiondef(oid)) from pg_proc "
            "where pronamespace = to_regnamespace('pgbroker') order by 1, 2"
        ),
        "triggers": query(
            "select tgrelid::regclass::text, tgname, pg_get_triggerdef(pg_trigger.oid) from pg_trigger "
            "join pg_class on pg_class.oid = tgrelid "
            "where relnamespace = to_regnamespace('pgbroker') and not tgisinternal order by 1, 2"
        ),
        "policies": query("select tablename, policyname, qual, with_check from pg_policies order by 1, 2"),
    }


# ------------------------------------------------------------------ models and catalog


@pytest.mark.django_db
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_columns_of_a_table_are_those_of_its_model(model):
    assert catalog(table(model)) == declared(model)


@pytest.mark.django_db
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_table_has_the_primary_key_of_its_model(model):
    key = query(
        "select array_agg(attname::text order by array_position(indkey::int2[], attnum)) from pg_index "
        "join pg_attribute on attrelid = indrelid and attnum = any (indkey) "
        "where indrelid = ('pgbroker.' || %s)::regclass and indisprimary",
        [table(model)],
    )[0][0]

    if table(model) in ("execution", "job_event"):
        assert key is None, "a partitioned table has no global key; the model has one for Django"
    else:
        assert key == [each.column for each in model._meta.pk_fields]


@pytest.mark.django_db
def test_every_table_has_a_model_and_every_model_a_table():
    tables = query(
        "select relname from pg_class where relnamespace = 'pgbroker'::regnamespace "
        "and relkind in ('r', 'p') and not relispartition"
    )

    assert {name for (name,) in tables} == {table(model) for model in MODELS}


@pytest.mark.django_db
def test_the_indexes_of_the_hot_row_are_the_ones_that_were_measured_and_no_other():
    indexes = {name for (name,) in query("select indexname from pg_indexes where tablename = 'job'")}

    assert indexes == {
        "job_pkey", "job_claim", "job_due", "job_lease", "job_deadline", "job_finished", "job_gone_wrong",
        "job_group", "job_group_name", "job_waiting",
    }  # fmt: skip
    assert query("select indexrelid::regclass::text from pg_index where not indisvalid") == []


@pytest.mark.django_db
def test_public_has_no_rights_in_the_schema():
    assert query(
        "select nspacl::text from pg_namespace where nspname = 'pgbroker' and nspacl::text ~ '[{,]=[^/]'"
    ) == []  # fmt: skip
    assert query(
        "select proname from pg_proc where pronamespace = 'pgbroker'::regnamespace "
        # Functions of triggers are not called; _pgtrigger_should_ignore is the library's and reads a setting.
        "and prorettype <> 'trigger'::regtype and proname <> '_pgtrigger_should_ignore' "
        "and (proacl is null or proacl::text ~ '[{,]=X')"
    ) == []  # fmt: skip


@pytest.mark.django_db
def test_no_migration_is_missing():
    call_command("makemigrations", "pgbroker", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db(transaction=True)
def test_b182_back_to_nothing_leaves_nothing_and_forward_again_makes_the_same():
    call_command("migrate", "pgbroker", "zero", verbosity=0)  # partitions that other tests made are gone
    call_command("migrate", "pgbroker", verbosity=0)
    before = everything()
    outside = (
        "select 'function', proname::text from pg_proc where pronamespace = 'public'::regnamespace "
        "union all select 'relation', relname from pg_class where relnamespace = 'public'::regnamespace "
        "and (relname like '%%pgbroker%%' or relname like '%%pgtrigger%%') "
        "union all select 'trigger', tgname from pg_trigger where tgname like 'pgtrigger%%'"
    )
    try:
        call_command("migrate", "pgbroker", "zero", verbosity=0)
        left = everything()
        schemas = query("select nspname from pg_namespace where nspname = 'pgbroker'")
        strays = query(outside)
    finally:
        call_command("migrate", "pgbroker", verbosity=0)

    assert {kind: found for kind, found in left.items() if found} == {}
    assert (schemas, strays) == ([], [])
    after = everything()
    for kind, found in before.items():
        assert after[kind] == found, kind


# ------------------------------------------------------------------ policies


@pytest.mark.django_db
def test_b135_every_table_with_a_tenant_is_secured_and_so_is_each_partition_and_tomorrows():
    ensure_partitions("day", ahead=40)
    tables = query(
        "select pg_class.oid::regclass::text, relrowsecurity, relforcerowsecurity, "
        "(select count(*) from pg_policy where polrelid = pg_class.oid) from pg_class "
        "join pg_attribute on attrelid = pg_class.oid and attname = 'tenant_id' "
        "where relnamespace = 'pgbroker'::regnamespace and relkind in ('r', 'p')"
    )

    assert len(tables) > 6 + 2 * 40
    assert [found for found in tables if found[1:] != (True, True, 1)] == []


@pytest.mark.django_db
def test_b135_a_partition_read_directly_shows_only_the_tenants_own_rows():
    for tenant in ("acme", "bolt"):
        with tenant_context(tenant):
            enqueue_one()
    for lease in claim_many():
        settle_one(completed(lease))
    partitions = query(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'pgbroker.execution'::regclass"
    )

    with tenant_context("acme"):
        seen = [row for (name,) in partitions for row in query(f"select tenant_id from {name}")]
        assert seen == [("acme",)]
        with pytest.raises(DatabaseError, match="row-level security"), transaction.atomic():
            query(
                "insert into pgbroker.execution_default (job_id, tenant_id, attempt_no, state) "
                "values (gen_random_uuid(), 'bolt', 1, 1) returning 1"
            )


@pytest.mark.django_db
def test_the_tests_run_as_a_role_that_the_policies_bind():
    assert query("select rolsuper, rolbypassrls from pg_roles where rolname = current_user") == [
        (False, False)
    ]


# ------------------------------------------------------------------ partitions


def bounds(parent: str) -> list[tuple[datetime, datetime]]:
    """Return the ranges of a table's partitions, in order."""
    with connection.cursor() as cursor:
        cursor.execute("set local timezone = 'UTC'")
    return sorted(
        query(
            "select (regexp_match(bound, 'FROM \\(''(.*)''\\) TO'))[1]::timestamptz, "
            "(regexp_match(bound, 'TO \\(''(.*)''\\)'))[1]::timestamptz "
            "from pg_inherits cross join lateral "
            "pg_get_expr((select relpartbound from pg_class where oid = inhrelid), inhrelid) as bound "
            "where inhparent = ('pgbroker.' || %s)::regclass and bound <> 'DEFAULT'",
            [parent],
        )
    )


def drop_partitions(*, keep_default: bool = True) -> None:
    """Begin as if no process had ever prepared a day."""
    for (name,) in query(
        "select inhrelid::regclass::text from pg_inherits "
        "where inhparent in ('pgbroker.execution'::regclass, 'pgbroker.job_event'::regclass)"
    ):
        if not (keep_default and name.endswith("_default")):
            with connection.cursor() as cursor:
                cursor.execute(f"drop table {name}")


@pytest.fixture
def no_partitions(db):
    drop_partitions()


def gapless(ranges):
    return all(one[1] == other[0] for one, other in pairwise(ranges))


@pytest.mark.parametrize(("width", "days"), [("day", 1), ("week", 7), ("month", 31)])
def test_partitions_cover_now_and_so_many_widths_to_come_without_a_gap(no_partitions, width, days):
    made = ensure_partitions(width, ahead=3)

    ranges = bounds("execution")
    now = datetime.now(UTC)
    assert len(made) == 8
    assert len(ranges) == 4
    assert gapless(ranges)
    assert ranges[0][0] <= now < ranges[0][1]
    assert timedelta(days=days - 3) <= ranges[0][1] - ranges[0][0] <= timedelta(days=days)
    assert bounds("job_event") == ranges


def test_making_sure_again_makes_nothing_and_a_later_call_only_what_is_new(no_partitions):
    ensure_partitions("day", ahead=3)

    assert ensure_partitions("day", ahead=3) == []
    assert len(ensure_partitions("day", ahead=5)) == 4


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/St_Johns"])
@pytest.mark.parametrize("style", ["ISO, MDY", "German", "SQL, DMY"])
def test_a_day_begins_in_utc_whatever_the_session_thinks(no_partitions, zone, style):
    with connection.cursor() as cursor:
        cursor.execute("set local timezone = %s", [zone])
        cursor.execute("select set_config('datestyle', %s, true)", [style])

    ensure_partitions("day", ahead=2)
    assert ensure_partitions("day", ahead=2) == []
    with connection.cursor() as cursor:
        cursor.execute("set local datestyle = 'ISO, MDY'")

    assert {start.astimezone(UTC).time().isoformat() for start, _ in bounds("execution")} == {"00:00:00"}


def test_a_change_of_width_leaves_no_overlap_and_no_error_and_goes_on_after_the_old_ones(no_partitions):
    ensure_partitions("day", ahead=3)
    for width in ("week", "month", "week", "day"):
        ensure_partitions(width, ahead=6)
        ranges = bounds("execution")
        assert all(one[1] <= other[0] for one, other in pairwise(ranges)), width
        assert ensure_partitions(width, ahead=6) == []


@pytest.mark.django_db
def test_a_width_that_is_none_of_the_three_is_refused():
    with pytest.raises(DatabaseError, match="day, week or month"), transaction.atomic():
        ensure_partitions("year", ahead=1)


def test_history_that_no_partition_covers_is_kept_in_the_default_one(no_partitions):
    enqueue_one()
    settle_one(completed(claim_many()[0]))

    assert query("select tableoid::regclass::text from pgbroker.execution") == [
        ("pgbroker.execution_default",)
    ]


@pytest.mark.parametrize("tenant", ["default", "acme"])
def test_a_range_with_rows_in_the_default_partition_is_left_to_it_whosever_rows_they_are(
    no_partitions, tenant
):
    """Row-level security hides another tenant's rows from the check, not from the attach."""
    with tenant_context(tenant):
        enqueue_one()
    settle_one(completed(claim_many()[0]))

    made = ensure_partitions("day", ahead=2)

    assert len(made) == 4
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    assert [start for start, _ in bounds("execution")] == [
        today + timedelta(days=1),
        today + timedelta(days=2),
    ]
    with tenant_context(tenant):
        assert query("select count(*) from pgbroker.execution") == [(1,)]


@pytest.mark.django_db
def test_new_partitions_have_the_indexes_and_guards_of_their_parent(no_partitions):
    (name, *_) = ensure_partitions("day", ahead=1)

    assert len(query("select from pg_indexes where tablename = %s", [name])) == 2
    guards = query(
        "select tgname from pg_trigger where tgrelid = ('pgbroker.' || %s)::regclass and tgname like 'pgtrigger%%'",
        [name],
    )
    assert len(guards) == 1
    with pytest.raises(DatabaseError, match="append-only"), guards_test_row(name), transaction.atomic():
        query(f"delete from pgbroker.{name} returning 1")


class guards_test_row:
    """A row in a partition for the length of a block."""

    def __init__(self, partition: str) -> None:
        self.partition = partition

    def __enter__(self) -> None:
        (day,) = query(
            f"select to_date(right('{self.partition}', 8), 'YYYYMMDD')::timestamptz at time zone 'UTC'"
        )[0]
        with guards_off():
            query(
                "insert into pgbroker.execution (job_id, tenant_id, attempt_no, state, completed_at) "
                "values (gen_random_uuid(), 'default', 1, 1, %s) returning 1",
                [day.replace(tzinfo=UTC) + timedelta(hours=12)],
            )

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def few_partitions(transactional_db):
    """Nothing but what every process makes: these tests commit what they make further ahead."""
    drop_partitions()
    ensure_partitions("day", ahead=2)
    yield
    drop_partitions()
    ensure_partitions("day", ahead=2)


def test_of_two_processes_one_makes_the_partitions_and_the_other_goes_on_at_once(few_partitions):
    with second_session() as other, other.transaction():
        made = other.execute("select pgbroker.ensure_partitions_1('day', 80)").fetchall()
        assert len(made) > 40
        assert InThread(lambda: ensure_partitions("day", ahead=80)).start().result() == []
        other.execute("select pg_current_xact_id()")
    assert ensure_partitions("day", ahead=80) == []


def test_partitions_are_made_beside_an_open_transaction_that_wrote_history(few_partitions):
    """The attach takes a lock on the parent that writers do not mind."""
    enqueue_one()
    (lease,) = claim_many()
    with transaction.atomic():
        settle_one(completed(lease))
        made = InThread(lambda: ensure_partitions("day", ahead=50)).start().result()
    assert len(made) > 0


# ------------------------------------------------------------------ frozen functions


def hashes() -> dict[str, str]:
    """Return the hash of every function file."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((sql.FOLDER / "functions").glob("*_[0-9]*.sql"))
    }


def test_a_released_function_file_never_changes():
    """A change is a new file with the next number and a migration: the old one may be running somewhere."""
    released = json.loads(RELEASED.read_text())

    assert {name: hashes().get(name) for name in released} == released


def test_every_function_file_that_is_called_by_name_carries_a_version():
    names = {path.stem for path in (sql.FOLDER / "functions").glob("*.sql")}

    assert {name for name in names if not name.rsplit("_", 1)[-1].isdigit()} == {"enqueue"}

"""The guards: whatever no verb does is refused by the database, whoever tries it."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest
from django.db import DatabaseError, connection, transaction

from pgbroker.models import Execution, Job, JobEvent, JobPayload
from pgbroker.models.triggers import ERRCODE
from pgbroker.states import ENTRY, LIVE, TERMINAL, TRANSITIONS, Status, legal_pairs
from pgbroker.tenancy import scope_all, tenant_context
from tests.factories import JobFactory
from tests.support.jobs import (
    WORKER,
    claim_one,
    completed,
    enqueue_one,
    queue_id,
    row,
    settle_one,
    status,
    type_id,
)
from tests.support.links import job, links, open_group

pytestmark = pytest.mark.django_db
LEGAL = set(legal_pairs())
PAIRS = [pair for pair in itertools.product(Status, Status) if pair[0] != pair[1]]

# What the constraints ask of a row in a state; the guards are asked on top of it.
CONSISTENT = """
    status = %(status)s::smallint,
    worker_id = case when %(status)s = 3 then %(worker)s::uuid end,
    lease_expires_at = case when %(status)s = 3 then statement_timestamp() end,
    available_at = case when %(status)s = 0 then statement_timestamp() end,
    ready_at = case when %(status)s in (2, 3) then statement_timestamp() else ready_at end,
    finished_at = case when %(status)s >= 10 then statement_timestamp() end
"""


def run(sql: str, parameters: object = None) -> int:
    """Run a statement as anybody in psql might; returns how many rows it touched."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.rowcount


def refused(sql: str, parameters: object = None) -> str:
    """Run a statement that a guard must refuse; returns the guard's sentence."""
    with pytest.raises(DatabaseError) as caught:
        run(sql, parameters)
    assert caught.value.__cause__.sqlstate == ERRCODE == "PB002"
    assert caught.value.__cause__.diag.message_hint
    return caught.value.__cause__.diag.message_primary


def names(pair: tuple[Status, Status]) -> str:
    return f"{pair[0].label}-{pair[1].label}"


@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_a_change_of_status_passes_exactly_if_some_verb_makes_it(pair):
    old, new = pair
    job = JobFactory(**{old.label: True}, history=None)
    sql = f"update pgbroker.job set {CONSISTENT} where id = %(id)s"
    parameters = {"status": int(new), "worker": WORKER, "id": job.pk}

    if pair in LEGAL:
        assert run(sql, parameters) == 1
        assert status(job.pk) == new
    else:
        assert "no verb" in refused(sql, parameters)
        assert status(job.pk) == old


def test_the_table_of_transitions_has_every_status_and_no_way_out_but_a_retry():
    pairs = {pair for pairs in TRANSITIONS.values() for pair in pairs}

    assert {status for pair in pairs for status in pair} == set(Status)
    assert {old for old, new in pairs if old in TERMINAL} == {
        Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED,
    }  # fmt: skip
    assert all(old != new for old, new in pairs)


@pytest.mark.parametrize("state", list(Status), ids=lambda each: each.label)
def test_a_job_begins_scheduled_waiting_or_ready_and_nothing_else(state):
    columns = (
        "insert into pgbroker.job (id, queue_id, job_type_id, status, worker_id, lease_expires_at, available_at, "
        "ready_at, finished_at)"
    )
    sql = f"""{columns} select gen_random_uuid(), %(queue)s, %(type)s, %(status)s::smallint,
        case when %(status)s = 3 then %(worker)s::uuid end,
        case when %(status)s = 3 then statement_timestamp() end,
        case when %(status)s = 0 then statement_timestamp() end,
        statement_timestamp(),
        case when %(status)s >= 10 then statement_timestamp() end"""
    parameters = {"queue": queue_id(), "type": type_id(), "status": int(state), "worker": WORKER}

    if state in ENTRY:
        assert run(sql, parameters) == 1
    else:
        assert "begins" in refused(sql, parameters)


@pytest.mark.parametrize("column", ["attempt_count", "max_attempts", "crash_count", "lease_token"])
def test_counts_and_tokens_only_rise(column):
    job = JobFactory(attempt_count=2, crash_count=1, lease_token=2)

    assert "only rise" in refused(f"update pgbroker.job set {column} = {column} - 1 where id = '{job.pk}'")
    assert run("update pgbroker.job set attempt_count = attempt_count + 1 where id = %s", [job.pk]) == 1


@pytest.mark.parametrize(
    "change",
    [
        "declared_attempts = declared_attempts + 1",
        "tenant_id = 'other'",
        "job_type_id = job_type_id + 1",
        "queue_id = queue_id + 1",
        "priority = priority + 1",
        "created_at = created_at + interval '1 s'",
        "id = gen_random_uuid()",
    ],
)
def test_what_makes_a_job_the_job_it_is_never_changes(change):
    job = JobFactory()

    assert "never change" in refused(
        f"select set_config('pgbroker.scope', 'all', true); update pgbroker.job set {change} where id = '{job.pk}'"
    )


def test_what_is_read_again_with_every_statement_is_short():
    """Constraints and the conditions of triggers are stored as trees: a long one outweighs the work on a row."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select conname, length(conbin::text) from pg_constraint "
            "where contype = 'c' and conrelid = any (%(hot)s::regclass[]) "
            "union all select tgname, length(tgqual::text) from pg_trigger "
            "where tgqual is not null and tgrelid = any (%(hot)s::regclass[])",
            {
                "hot": [
                    f"pgbroker.{name}"
                    for name in ("job", "job_payload", "execution", "job_event", "job_counter")
                ]
            },
        )
        lengths = dict(cursor.fetchall())

    assert lengths.keys() > {"job_status_valid", "job_payload_body_owned", "pgtrigger_legal_transition_64cbe"}
    assert {name: length for name, length in lengths.items() if length > 3_500} == {}


@pytest.mark.parametrize("state", sorted(TERMINAL), ids=lambda each: each.label)
def test_a_job_that_has_ended_does_not_change(state):
    job = JobFactory(**{state.label: True})

    for change in ("priority = 1", "finished_at = statement_timestamp()", "status = status"):
        assert "ended" in refused(f"update pgbroker.job set {change} where id = %s", [job.pk])


@pytest.mark.parametrize("state", list(Status), ids=lambda each: each.label)
def test_only_a_job_that_is_over_can_be_deleted(state):
    job = JobFactory(**{state.label: True}, history=None)
    delete = "delete from pgbroker.job where id = %s"

    if state in LIVE:
        assert "never deleted" in refused(delete, [job.pk])
    else:
        assert run(delete, [job.pk]) == 1


def test_history_and_payloads_are_written_once():
    enqueue_one()
    settle_one(completed(claim_one()))

    assert refused("update pgbroker.execution set state = 2") == "pgbroker: execution is append-only"
    assert refused("delete from pgbroker.execution") == "pgbroker: execution is append-only"
    assert refused("update pgbroker.job_event set event = 11") == "pgbroker: job_event is append-only"
    assert refused("delete from pgbroker.job_event") == "pgbroker: job_event is append-only"
    assert refused("update pgbroker.job_payload set args = '{}'") == "pgbroker: job_payload is written once"
    assert (Execution.objects.count(), JobEvent.objects.count(), JobPayload.objects.count()) == (1, 1, 1)


def test_history_is_guarded_in_its_partitions_too():
    enqueue_one()
    settle_one(completed(claim_one()))
    with connection.cursor() as cursor:
        cursor.execute("select tableoid::regclass::text from pgbroker.execution")
        (partition,) = cursor.fetchone()

    assert partition != "pgbroker.execution"
    assert "append-only" in refused(f"delete from {partition}")
    assert "append-only" in refused(f"update {partition} set state = 2")


def test_queues_and_types_are_never_deleted():
    queue_id("other"), type_id()

    assert "queue" in refused("delete from pgbroker.queue")
    assert "job_type" in refused("delete from pgbroker.job_type")


@pytest.mark.parametrize("table", ["queue", "job_type"])
@pytest.mark.parametrize("change", ["name = name || '2'", "name = upper(name)", "id = default"])
def test_queues_and_types_keep_their_number_and_their_name_and_change_in_all_else(table, change):
    queue_id(), type_id()

    assert "keeps its number" in refused(f"update pgbroker.{table} set {change}")
    assert run("update pgbroker.queue set ageing_seconds = 9, lease_seconds = 90") >= 1
    assert (
        run("update pgbroker.job_type set version = version + 1, last_seen_at = statement_timestamp()") >= 1
    )


@pytest.mark.parametrize(
    "change",
    [
        "delete from pgbroker.queue_priority",
        "delete from pgbroker.queue_priority where priority = 42",
        "update pgbroker.queue_priority set priority = 7",
        "update pgbroker.queue_priority set queue_id = queue_id + 1",
    ],
)
def test_a_ready_job_stays_in_the_sight_of_the_claim_whoever_edits_the_known_priorities(change):
    job = enqueue_one(priority=42)

    assert "queue_priority" in refused(change)
    assert claim_one().job_id == job


@pytest.mark.parametrize("state", list(Status), ids=lambda each: each.label)
def test_a_payload_is_kept_as_long_as_its_job(state):
    job = JobFactory(**{state.label: True}, history=None)
    delete = "delete from pgbroker.job_payload where job_id = %s"

    assert "as long as its job" in refused(delete, [job.pk])
    if state in TERMINAL:
        run("delete from pgbroker.job where id = %s", [job.pk])
        assert run(delete, [job.pk]) == 1


def test_the_orm_meets_the_same_guards():
    job = JobFactory(completed=True)

    with pytest.raises(DatabaseError, match="ended"), transaction.atomic():
        Job.objects.filter(pk=job.pk).update(priority=1)


def test_the_functions_of_the_guards_live_in_the_schema_and_nothing_is_left_in_public():
    with connection.cursor() as cursor:
        cursor.execute(
            "select n.nspname, p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace "
            "where p.proname like '%pgtrigger%'"
        )
        functions = cursor.fetchall()
        cursor.execute(
            "select t.tgname, n.nspname from pg_trigger t join pg_proc p on p.oid = t.tgfoid "
            "join pg_namespace n on n.oid = p.pronamespace join pg_class c on c.oid = t.tgrelid "
            "where c.relnamespace = 'pgbroker'::regnamespace and not t.tgisinternal"
        )
        triggers = cursor.fetchall()

    assert len(functions) > 10
    assert {schema for schema, _ in functions} == {"pgbroker"}
    assert {schema for _, schema in triggers} == {"pgbroker"}


def test_every_instant_of_a_job_is_one_that_python_can_read():
    """One that no claim can read would stop every worker, whatever queue it stands in."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select attname from pg_attribute "
            "where attrelid = 'pgbroker.job'::regclass and atttypid = 'timestamptz'::regtype and attnum > 0"
        )
        instants = {name for (name,) in cursor.fetchall()}
        cursor.execute(
            "select pg_get_constraintdef(oid) from pg_constraint where conname = 'job_times_readable'"
        )
        (definition,) = cursor.fetchone()
    assert {
        name: definition.count(f"{name},") + definition.count(f"{name})") for name in instants
    } == dict.fromkeys(instants, 2)

    # Other constraints say where these two may stand.
    for name, value in itertools.product(
        instants - {"lease_expires_at", "finished_at"}, ("infinity", "-infinity", "9000-01-02", "1969-12-31")
    ):
        with pytest.raises(DatabaseError, match="job_times_readable"):
            run(
                f"insert into pgbroker.job (id, queue_id, job_type_id, status, {name}) "
                "values (gen_random_uuid(), 1, 1, 1, %s)",
                [value],
            )


def test_a_reason_is_that_of_a_job_of_the_same_tenant():
    """A row that another tenant planted would hold up the verbs of the job's own tenant, and be told its reasons."""
    job = JobFactory()
    with tenant_context("evil"):
        refusal = refused(
            "insert into pgbroker.job_state (job_id, tenant_id, reason_code) values (%s, 'evil', 'planted')",
            [job.pk],
        )
    assert "no job" in refusal

    with tenant_context(job.tenant_id):
        assert (
            run(
                "insert into pgbroker.job_state (job_id, tenant_id, reason_code) values (%s, %s, 'mine')",
                [job.pk, job.tenant_id],
            )
            == 1
        )


PLANTED = {
    "a job in another's group": (
        "insert into pgbroker.job (id, queue_id, job_type_id, tenant_id, status, ready_at, run_group_id) "
        "select pgbroker.uuid7_1(), queue_id, job_type_id, 'evil', 2, now(), %(group)s "
        "from pgbroker.job where id = %(own)s"
    ),
    "an edge at another's job": (
        "insert into pgbroker.job_dependency (dependent_id, prerequisite_id, kind, tenant_id) "
        "values (%(job)s, %(own)s, 0, 'evil')"
    ),
    "an edge at another's group": (
        "insert into pgbroker.job_dependency (dependent_id, prerequisite_id, kind, tenant_id) "
        "values (%(group)s, %(own)s, 2, 'evil')"
    ),
    "a reference of another's job": (
        "insert into pgbroker.deferred_reference (dependent_id, group_name, deadline_at, tenant_id) "
        "values (%(job)s, 'never', now(), 'evil')"
    ),
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=list(PLANTED))
@pytest.mark.parametrize("sees_all", [False, True])
def test_no_tenant_lets_anothers_job_or_group_wait(planted, sees_all):
    """A row that another tenant planted would hold up a job or a group, or bring it down."""
    with tenant_context("acme"):
        ids = {"job": job(), "group": open_group("g")}
    with tenant_context("evil"):
        ids["own"] = job()
        with scope_all() if sees_all else nullcontext():
            refusal = refused(planted, ids)
    assert "tenant evil has no" in refusal

    with tenant_context("acme"):
        assert run(planted.replace("evil", "acme"), {**ids, "own": job()}) == 1


@pytest.mark.parametrize(
    "change", ["run_group_id = null", "run_group_id = %s", "name = 'other'", "name = null"]
)
def test_a_job_stays_in_its_group_and_keeps_its_name(change):
    group_id, other = open_group("g"), open_group("other")
    (member,) = links({"group": "g", "name": "one"})

    parameters = [other, member.job_id] if "%s" in change else [member.job_id]
    assert "never change" in refused(f"update pgbroker.job set {change} where id = %s", parameters)

    assert (row(member.job_id).run_group_id, row(member.job_id).name) == (group_id, "one")

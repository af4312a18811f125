"""on_exhausted: a job that becomes a dead letter brings forth another one, in the same commit and once a death."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.declare import DeclaredType, declare_types
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.lifecycle.expire import expire
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.settle import settle
from pgbroker.models import Job, JobEvent, JobPayload
from pgbroker.outcomes import Ended
from pgbroker.states import ON_EXHAUSTED, AttemptState, Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import (
    OTHER_TYPE,
    TYPE,
    age,
    age_worker,
    alive,
    claim_many,
    claim_one,
    completed,
    ended,
    enqueue_one,
    failed,
    guards_off,
    queue_id,
    reap_all,
    settle_one,
    status,
    type_id,
)
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db
AFTER = "tests.after"


@pytest.fixture(autouse=True)
def declared() -> None:
    type_id(), type_id(AFTER)


def doomed(**options: Any) -> UUID:
    """Enqueue a job with one attempt that has an on_exhausted."""
    return enqueue_one(max_attempts=1, options={"on_exhausted": AFTER}, **options)


def die(**how: Any) -> UUID:
    """Claim the one ready job and let it end as a dead letter."""
    (lease,) = claim_many(1)
    assert settle_one(failed(lease, **how)).status == Status.DEAD_LETTER
    return lease.job_id


def made(job_type: str = AFTER) -> list[tuple[UUID, dict[str, Any]]]:
    """List the jobs that were made of dead letters, with their argument."""
    with scope_all():
        rows = JobPayload.objects.filter(job__job_type__name=job_type).order_by("job__created_at", "pk")
        return [(each.pk, each.args["args"][0]) for each in rows]


def told(job_id: UUID) -> list[dict[str, Any]]:
    with scope_all():
        return list(
            JobEvent.objects.filter(job=job_id, event=ON_EXHAUSTED)
            .order_by("id")
            .values_list("metadata", flat=True)
        )


# ------------------------------------------------------------------ what is a death


def test_a_job_that_used_its_last_attempt_brings_forth_the_job_that_was_asked_for():
    dead = doomed()

    die()

    ((after, argument),) = made()
    job = Job.objects.get(pk=dead)
    assert datetime.fromisoformat(argument.pop("died_at")) == job.finished_at
    assert argument == {
        "job_id": str(dead), "job_type": TYPE, "queue": "default", "attempts": 1, "error_code": "boom",
        "error": "it broke",
    }  # fmt: skip
    assert status(after) == Status.READY
    assert told(dead) == [{"job_id": str(after), "job_type": AFTER}]


def lose_the_worker() -> None:
    lease = claim_one()
    age(lease.job_id, only=["lease_expires_at"], hours=1)
    alive()
    age_worker(hours=1)
    (taken,) = reap_all(max_crashes=1)
    assert taken.status == Status.DEAD_LETTER


def run_out_of_lease_on_the_last_attempt() -> None:
    lease = claim_one()
    age(lease.job_id, only=["lease_expires_at"], hours=1)
    alive()
    (taken,) = reap_all(max_crashes=9)
    assert taken.status == Status.DEAD_LETTER


def be_of_an_unknown_type() -> None:
    outcome = ended(
        claim_one(), AttemptState.FAILED, dead=True, error_code="unknown_job_type", error="unknown"
    )
    assert settle_one(outcome).status == Status.DEAD_LETTER


def be_moved_by_hand() -> None:
    lease = claim_one()
    with connection.cursor() as cursor:
        cursor.execute(
            "update pgbroker.job set status = 12, finished_at = now(), worker_id = null, lease_expires_at = null "
            "where id = %s",
            [lease.job_id],
        )


@pytest.mark.parametrize(
    ("death", "code"),
    [
        (lose_the_worker, "worker_lost"),
        (run_out_of_lease_on_the_last_attempt, "worker_lost"),
        (be_of_an_unknown_type, "unknown_job_type"),
        (be_moved_by_hand, None),
    ],
)
def test_whoever_makes_a_job_a_dead_letter_makes_the_other_job_too(death, code):
    dead = doomed()

    death()

    ((_, argument),) = made()
    assert (argument["job_id"], argument["error_code"]) == (str(dead), code)


def complete() -> None:
    settle_one(completed(claim_one()))


def fail_for_good() -> None:
    settle_one(failed(claim_one(), permanent=True))


def be_cancelled() -> None:
    cancel_many([Job.objects.get().pk])


def be_cancelled_while_running() -> None:
    lease = claim_one()
    cancel_many([lease.job_id])
    settle_one(failed(lease))


def miss_the_deadline() -> None:
    job_id = Job.objects.get().pk
    with guards_off():
        Job.objects.filter(pk=job_id).update(deadline_at="2020-01-01T00:00:00Z")
    assert expire(limit=1)


@pytest.mark.parametrize(
    "end", [complete, fail_for_good, be_cancelled, be_cancelled_while_running, miss_the_deadline]
)
def test_no_other_end_is_a_death(end):
    doomed()

    end()

    assert made() == []


def test_of_a_batch_only_the_dead_letters_are_deaths():
    jobs = [doomed() for _ in range(3)]
    leases = {lease.job_id: lease for lease in claim_many()}
    completed_one, failed_one, dead = (leases[job_id] for job_id in jobs)

    settle([completed(completed_one), failed(failed_one, permanent=True), failed(dead)])

    assert [argument["job_id"] for _, argument in made()] == [str(dead.job_id)]


def test_a_job_that_will_be_tried_again_is_not_dead():
    enqueue_one(max_attempts=2, options={"on_exhausted": AFTER})

    settle_one(failed(claim_one()))

    assert made() == []


def test_each_death_of_a_job_makes_one():
    dead = doomed()
    die()
    claim_many()  # what the first death made
    retry_many([dead])

    die(delay=timedelta(0))

    first, second = made()
    assert (first[1]["attempts"], second[1]["attempts"]) == (1, 2)
    assert first[1]["job_id"] == second[1]["job_id"] == str(dead)
    assert len(told(dead)) == 2


# ------------------------------------------------------------------ whose, and which


def test_the_declaration_of_the_type_counts_unless_the_job_says_otherwise():
    type_id("tests.own"), type_id(OTHER_TYPE)
    declare_types([DeclaredType(TYPE, 2, (), {"on_exhausted": AFTER})])
    rows = [
        {},
        {"options": {"on_exhausted": "tests.own"}},
        {"options": {"on_exhausted": None}},
        {"options": {}},
    ]
    answers = enqueue_rows([{"job_type": TYPE, "max_attempts": 1, **row} for row in rows])

    settle([failed(lease) for lease in claim_many()])

    assert {argument["job_id"] for _, argument in made()} == {str(answers[0].job_id), str(answers[3].job_id)}
    assert [argument["job_id"] for _, argument in made("tests.own")] == [str(answers[1].job_id)]
    assert told(answers[2].job_id) == []


def test_the_declaration_as_it_is_at_the_death_counts():
    """As with timeout and backoff: what runs and fails now is the code of now."""
    enqueue_one(max_attempts=1)
    declare_types([DeclaredType(TYPE, 2, (), {"on_exhausted": AFTER})])

    die()

    assert len(made()) == 1


def test_a_former_name_means_the_type_that_took_it_over():
    declare_types([DeclaredType("tests.later", 2, (AFTER,), {})])
    doomed()

    die()

    assert (len(made("tests.later")), made()) == (1, [])


def test_the_new_job_takes_everything_but_its_argument_from_its_own_declaration():
    queue_id("alarms")
    declare_types(
        [DeclaredType(AFTER, 4, (), {"queue": "alarms", "priority": 7, "max_attempts": 9, "tags": ["alarm"]})]
    )
    dead = doomed(tags=["customer:7"], correlation_id="c-1", principal="ada", traceparent="00-ab", priority=3)
    die()

    ((after, _),) = made()
    job, payload = Job.objects.get(pk=after), JobPayload.objects.get(pk=after)
    assert (job.queue_id, job.priority, job.max_attempts) == (queue_id("alarms"), 7, 9)
    assert (payload.type_version, payload.tags, payload.idempotency_key) == (4, ["alarm"], None)
    # What follows the work across jobs.
    assert (payload.correlation_id, payload.principal, payload.traceparent) == ("c-1", "ada", "00-ab")
    assert JobPayload.objects.get(pk=dead).tags == ["customer:7"]


def test_a_batch_of_deaths_of_several_tenants_makes_each_in_its_own():
    jobs = {}
    for tenant in ("acme", "bolt", "acme", "core"):
        with tenant_context(tenant):
            jobs[doomed()] = tenant
    with tenant_context("bolt"):
        jobs[enqueue_one(max_attempts=1)] = "bolt"
    leases = claim_many()

    settle([failed(lease) for lease in leases])

    with scope_all():
        owners = dict(Job.objects.values_list("pk", "tenant_id"))
    assert len(made()) == 4
    for after, argument in made():
        assert owners[after] == jobs[UUID(argument["job_id"])]
    with tenant_context("acme"):
        assert Job.objects.filter(job_type__name=AFTER).count() == 2


def test_the_session_is_the_tenants_that_it_was_before():
    with tenant_context("acme"):
        doomed()
        lease = claim_one()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.cursor.execute(
            "select set_config('pgbroker.scope', 'all', true), set_config('pgbroker.tenant_id', 'core', true)"
        )
        cursor.cursor.execute(
            "update pgbroker.job set status = 12, finished_at = now(), worker_id = null, lease_expires_at = null "
            "where id = %s",
            [lease.job_id],
        )
        cursor.cursor.execute(
            "select current_setting('pgbroker.tenant_id'), current_setting('pgbroker.scope')"
        )
        assert cursor.cursor.fetchone() == ("core", "all")

    with tenant_context("acme"):
        assert len(made()) == 1


# ------------------------------------------------------------------ no loop, no harm


def test_a_job_that_was_made_so_brings_forth_none_when_it_dies():
    """Whatever its type says, its own name too: a chain has one link."""
    declare_types([DeclaredType(AFTER, 2, (), {"on_exhausted": AFTER, "max_attempts": 1})])
    doomed()
    die()
    ((after, _),) = made()

    die()

    assert status(after) == Status.DEAD_LETTER
    assert len(made()) == 1
    retry_many([after])
    die()
    assert len(made()) == 1


def test_a_type_may_name_itself():
    declare_types([DeclaredType(AFTER, 2, (), {"on_exhausted": AFTER})])
    first = enqueue_one(job_type=AFTER, max_attempts=1, args={"v": 1, "args": [{}], "kwargs": {}})

    die()

    assert [argument.get("job_id") for _, argument in made()] == [None, str(first)]


@pytest.mark.parametrize("name", ["tests.gone", "", "x" * 300], ids=["unknown", "empty", "long"])
def test_a_declaration_that_names_no_job_type_keeps_no_batch_from_being_settled_and_is_told(name):
    declare_types([DeclaredType(TYPE, 2, (), {"on_exhausted": name})])
    dead, other = enqueue_one(max_attempts=1), doomed()

    decisions = settle([failed(lease) for lease in claim_many()])

    assert {each.status for each in decisions} == {Status.DEAD_LETTER}
    (event,) = told(dead)
    assert event["error_code"] == "unknown_job_type"
    assert [argument["job_id"] for _, argument in made()] == [str(other)]


@pytest.mark.parametrize("value", [7, [], {}, True, None])
def test_a_declaration_that_makes_no_sense_harms_nobody(value):
    declare_types([DeclaredType(TYPE, 2, (), {"on_exhausted": value})])
    enqueue_one(max_attempts=1)

    die()

    assert made() == []


def test_whatever_goes_wrong_there_is_undone_and_told_and_the_batch_is_settled():
    dead = doomed()
    lease = claim_one()
    with connection.cursor() as cursor:
        cursor.execute(
            "create function pg_temp.refuse() returns trigger language plpgsql as "
            "$$ begin raise exception 'no room'; end $$"
        )
        cursor.execute(
            "create trigger refuse before insert on pgbroker.job_payload for each row execute function pg_temp.refuse()"
        )

    assert settle_one(failed(lease)).status == Status.DEAD_LETTER

    assert made() == []
    assert told(dead) == [{"error_code": "enqueue_failed", "error": "no room"}]
    assert Job.objects.count() == 1


def test_a_long_error_is_cut():
    doomed()
    (lease,) = claim_many(1)
    settle_one(Ended(lease, AttemptState.FAILED, lease.leased_at, 0.1, error_code="c", error="é" * 5000))

    assert [len(argument["error"]) for _, argument in made()] == [1000]


def test_an_event_is_told_whatever_is_recorded_otherwise(settings):
    settings.PGBROKER = {"EVENTS": "off"}
    dead = doomed()

    die()

    assert len(made()) == len(told(dead)) == 1


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        ({"on_exhausted": "tests.nobody"}, "unknown_job_type", "'tests.nobody'"),
        ({"on_exhausted": ""}, "unknown_job_type", "''"),
        ({"on_exhausted": 7}, "invalid_option", "options.on_exhausted is 7"),
        ({"on_exhausted": [AFTER]}, "invalid_option", "options.on_exhausted is"),
    ],
)
def test_a_call_that_names_no_job_type_is_refused_alone(options, code, word):
    row = {"job_type": TYPE}

    first, refused, last = enqueue_rows([row, {**row, "options": options}, row])

    assert (first.outcome, refused.outcome, last.outcome) == ("created", code, "created")
    assert word in refused.detail


def test_sql_may_say_that_there_is_none():
    declare_types([DeclaredType(TYPE, 2, (), {"on_exhausted": AFTER, "max_attempts": 1})])
    with connection.cursor() as cursor:
        cursor.execute(
            "select pgbroker.enqueue(%s, options => %s)", [TYPE, json.dumps({"on_exhausted": None})]
        )

    die()

    assert made() == []


# ------------------------------------------------------------------ one commit


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("commits", [True, False])
def test_the_dead_letter_and_the_new_job_are_seen_together_or_not_at_all(commits):
    with tenant_context("acme"):
        dead = doomed()
        lease = claim_one()
        with transaction.atomic():
            settle_one(failed(lease))
            assert len(made()) == 1
            with second_session() as other:
                assert other.execute("select count(*), max(status) from pgbroker.job").fetchone() == (1, 3)
            transaction.set_rollback(not commits)

    assert (status(dead), len(made())) == ((Status.DEAD_LETTER, 1) if commits else (Status.RUNNING, 0))


@pytest.mark.django_db(transaction=True)
def test_of_a_settle_and_a_reap_of_the_same_attempt_one_makes_it():
    dead = doomed()
    lease = claim_one()
    age(dead, only=["lease_expires_at"], hours=1)
    alive()
    with transaction.atomic():
        assert len(reap_all(max_crashes=1)) == 1
        settling = InThread(lambda: settle([failed(lease)])).start()
        wait_until_blocked(settling)

    assert settling.result() == []
    assert len(made()) == len(told(dead)) == 1


@pytest.mark.django_db(transaction=True)
def test_the_workers_of_the_new_jobs_queue_are_woken_with_the_commit():
    queue_id("alarms")
    declare_types([DeclaredType(AFTER, 4, (), {"queue": "alarms"})])
    doomed(), doomed()
    with second_session() as listener:
        listener.execute("listen pgbroker")
        settle([failed(lease) for lease in claim_many()])
        heard = [each.payload for each in listener.notifies(timeout=5, stop_after=1)]

    assert heard == ["alarms"]

"""On conflict `replace`: a job that has not started makes way for a new one; one that has is left, and it is said."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.claim import claim
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.release import release
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.settle import settle
from pgbroker.models import Idempotency, Job, JobState
from pgbroker.states import Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import (
    LEASE,
    OTHER_TYPE,
    TYPE,
    WORKER,
    age,
    age_key,
    claim_many,
    claim_one,
    completed,
    enqueue_one,
    events,
    failed,
    guards_off,
    queue_id,
    row,
    settle_one,
    status,
    type_id,
)
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db
two_sessions = pytest.mark.django_db(transaction=True)
K = {"job_type": TYPE, "idempotency_key": "k"}
CALL = "select job_id, outcome from pgbroker.enqueue_many_1(jsonb_build_array(%s::jsonb))"
REPLACE = json.dumps({**K, "on_conflict": "replace"})
CLAIM = (
    "update pgbroker.job set status = 3, attempt_count = 1, lease_token = 1, worker_id = %s, "
    "leased_at = statement_timestamp(), lease_expires_at = statement_timestamp() + '1 minute' where id = %s"
)


@pytest.fixture(autouse=True)
def declared() -> None:
    type_id()


def ask(**options):
    (answer,) = enqueue_rows([{**K, **options}])
    return answer


def replace(**options):
    return ask(on_conflict="replace", **options)


def holder() -> UUID:
    with scope_all():
        return Idempotency.objects.get(key="k").job_id


# ------------------------------------------------------------------ what is replaced


@pytest.mark.parametrize("scope", ["held", "live", "retained", "window"])
@pytest.mark.parametrize("body", [{}, {"priority": 7}], ids=["same body", "another body"])
@pytest.mark.parametrize("later", [{}, {"delay_seconds": 60}], ids=["ready", "scheduled"])
def test_a_job_that_has_not_started_is_cancelled_and_the_new_one_has_its_key(scope, body, later):
    terms = {"idempotency_scope": scope, **({"window_seconds": 60} if scope == "window" else {})}
    old = ask(**terms, **later)

    new = replace(**terms, **body)

    assert (new.outcome, new.made, new.refused) == ("replaced", True, False)
    assert new.detail == f"in place of job {old.job_id}"
    assert (status(old.job_id), status(new.job_id)) == (Status.CANCELLED, Status.READY)
    assert holder() == new.job_id
    assert events(old.job_id) == [Status.CANCELLED]
    why = JobState.objects.get(pk=old.job_id)
    assert (why.reason_code, why.reason) == ("replaced", f"job {new.job_id} took its place")


@pytest.mark.parametrize("state", [Status.WAITING, Status.BLOCKED], ids=lambda each: each.label)
def test_a_job_that_waits_for_others_has_not_started(state):
    old = ask()
    with guards_off():
        Job.objects.filter(pk=old.job_id).update(status=state, ready_at=None)

    assert replace().outcome == "replaced"
    assert status(old.job_id) == Status.CANCELLED


def test_where_nobody_has_the_key_or_its_holder_let_go_of_it_a_job_is_created():
    first = replace()
    cancel_many([first.job_id])
    second = replace()

    assert (first.outcome, first.detail) == (second.outcome, second.detail) == ("created", None)
    assert holder() == second.job_id


def test_a_job_whose_window_is_over_is_left_to_run():
    """It has let go of its key, so there is nobody to replace."""
    old = ask(idempotency_scope="window", window_seconds=60)
    age_key(seconds=60)

    new = replace()

    assert (new.outcome, new.detail) == ("created", None)
    assert (status(old.job_id), status(new.job_id)) == (Status.READY, Status.READY)
    assert holder() == new.job_id


def test_the_new_job_may_be_replaced_in_its_turn():
    jobs = [replace(priority=number).job_id for number in range(4)]

    assert [status(job_id) for job_id in jobs] == [Status.CANCELLED] * 3 + [Status.READY]
    assert holder() == jobs[-1]


def test_the_latest_call_runs_after_its_own_delay():
    """A debounce: each call puts the work off, and the last one's arguments count."""
    for number in range(3):
        last = replace(delay_seconds=30, args={"v": 1, "args": [number], "kwargs": {}})
    age(last.job_id, only=["available_at"], seconds=30)
    promote([queue_id()], limit=10)

    (lease,) = claim_many()

    assert (lease.job_id, lease.args["args"]) == (last.job_id, [2])


def test_only_the_key_of_this_tenant_and_type_is_meant():
    type_id(OTHER_TYPE)
    with tenant_context("acme"):
        ours, other = ask(), ask(job_type=OTHER_TYPE)
        assert replace().outcome == "replaced"
    with tenant_context("bolt"):
        assert replace().outcome == "created"

    assert (status(ours.job_id), status(other.job_id)) == (Status.CANCELLED, Status.READY)


# ------------------------------------------------------------------ what is not


def started() -> None:
    claim_one()


def failed_once() -> None:
    settle_one(failed(claim_one()))


def handed_back() -> None:
    release([(claim_one(), None)], code="drain")


def done() -> None:
    settle_one(completed(claim_one()))


@pytest.mark.parametrize("happen", [started, failed_once, handed_back, done])
@pytest.mark.parametrize("body", [{}, {"priority": 7}], ids=["same body", "another body"])
def test_a_job_that_has_started_or_ended_stays_and_the_call_says_so(happen, body):
    old = ask()
    happen()
    before = row(old.job_id)

    answer = replace(**body)

    assert (answer.outcome, answer.job_id, answer.refused) == ("not_replaceable", old.job_id, True)
    assert answer.detail == f"idempotency key 'k' is held by job {old.job_id}, which has started or ended"
    after = row(old.job_id)
    assert (after.status, after.cancel_requested_at) == (before.status, None)
    assert (Job.objects.count(), holder()) == (1, old.job_id)


def test_a_cancelled_job_whose_window_lasts_is_not_replaced_either():
    """Nothing is there to be cancelled, and a period has one job."""
    window = {"idempotency_scope": "window", "window_seconds": 60}
    old = ask(**window)
    cancel_many([old.job_id])

    assert (replace(**window).outcome, holder()) == ("not_replaceable", old.job_id)


@pytest.mark.parametrize("wrong", [{"idempotency_key": None}, {"on_conflict": "replaced"}])
def test_replace_without_a_key_and_a_misspelt_one_refuse_their_entry(wrong):
    first, refused = enqueue_rows([K, {**K, "on_conflict": "replace", **wrong}])

    assert (first.outcome, refused.outcome) == ("created", "invalid_option")


def test_a_refused_entry_replaces_nobody():
    old = ask()

    assert replace(priority=101).outcome == "invalid_option"
    assert status(old.job_id) == Status.READY


def test_a_retry_of_the_replaced_job_is_refused_while_the_new_one_has_the_key():
    old, new = ask(), replace()

    (answer,) = retry_many([old.job_id])

    assert (answer.outcome, answer.holder_id) == ("key_held_by_newer_job", new.job_id)


# ------------------------------------------------------------------ a call that is made again


def test_a_call_made_again_with_its_id_finds_its_job_and_replaces_nobody():
    """A client that never heard the answer, or a relay: the id says that it is the same call."""
    call = {"id": str(uuid4())}
    first = replace(**call)
    again = replace(**call)
    newer = replace()
    late = replace(**call)

    assert (first.outcome, newer.outcome) == ("created", "replaced")
    assert [(each.outcome, each.job_id) for each in (again, late)] == [("existing", first.job_id)] * 2
    assert (status(newer.job_id), holder()) == (Status.READY, newer.job_id)


def test_an_id_that_is_another_job_of_ours_is_refused_and_replaces_nobody():
    other, old = enqueue_one(), ask()

    answer = replace(id=str(other))

    assert (answer.outcome, answer.job_id) == ("invalid_option", other)
    assert (status(old.job_id), holder()) == (Status.READY, old.job_id)


def test_an_id_that_another_tenant_has_is_given_a_new_one_and_the_old_job_is_still_replaced():
    with tenant_context("bolt"):
        theirs = enqueue_one()
    with tenant_context("acme"):
        old = ask()
        answer = replace(id=str(theirs))

    assert (answer.outcome, answer.detail) == ("replaced", f"in place of job {old.job_id}")
    assert answer.job_id not in (theirs, old.job_id)
    assert [status(each) for each in (theirs, old.job_id, answer.job_id)] == [
        Status.READY,
        Status.CANCELLED,
        Status.READY,
    ]
    assert holder() == answer.job_id


# ------------------------------------------------------------------ bulk


def test_two_entries_of_a_call_with_one_key_are_two_calls_one_after_the_other():
    old = ask()

    first, second = enqueue_rows([{**K, "on_conflict": "replace", "priority": number} for number in (1, 2)])

    assert (first.detail, second.detail) == (
        f"in place of job {old.job_id}",
        f"in place of job {first.job_id}",
    )
    assert [status(each.job_id) for each in (old, first, second)] == [
        Status.CANCELLED,
        Status.CANCELLED,
        Status.READY,
    ]
    assert (holder(), row(second.job_id).priority) == (second.job_id, 2)


def test_a_bulk_call_answers_each_entry_in_its_place():
    started = ask(idempotency_key="started")
    claim_one()
    waiting = ask(idempotency_key="waiting")
    how = [
        ("waiting", "replace"), ("new", "return"), ("started", "replace"), ("new", "replace"), ("started", "return"),
        ("new", "return"), ("new", "replace"), (None, "return"), ("started", "reject"),
    ]  # fmt: skip

    answers = enqueue_rows([{**K, "idempotency_key": key, "on_conflict": mode} for key, mode in how])

    assert [answer.ordinal for answer in answers] == list(range(1, 10))
    assert [answer.outcome for answer in answers] == [
        "replaced", "created", "not_replaceable", "replaced", "existing", "existing", "replaced", "created",
        "idempotency_conflict",
    ]  # fmt: skip
    assert answers[0].detail == f"in place of job {waiting.job_id}"
    assert answers[3].detail == f"in place of job {answers[1].job_id}"
    assert answers[5].job_id == answers[3].job_id
    assert {answers[place].job_id for place in (2, 4, 8)} == {started.job_id}
    live = set(Job.objects.filter(status__lt=10).values_list("pk", flat=True))
    assert live == {started.job_id, *(answers[place].job_id for place in (0, 6, 7))}


def test_a_bulk_call_of_many_keys_replaces_each():
    keys = [f"key-{number}" for number in range(60)]
    old = enqueue_rows([{**K, "idempotency_key": key} for key in keys])

    new = enqueue_rows([{**K, "idempotency_key": key, "on_conflict": "replace"} for key in reversed(keys)])

    assert [answer.detail for answer in new] == [f"in place of job {each.job_id}" for each in reversed(old)]
    assert (
        Job.objects.filter(status=Status.CANCELLED).count()
        == Job.objects.filter(status=Status.READY).count()
        == 60
    )


# ------------------------------------------------------------------ two sessions


def test_a_replacement_that_is_rolled_back_leaves_the_old_job_as_it_was():
    old = ask()
    before = Job.objects.filter(pk=old.job_id).values().get()

    with transaction.atomic():
        assert replace().outcome == "replaced"
        transaction.set_rollback(True)

    assert Job.objects.filter(pk=old.job_id).values().get() == before
    assert (holder(), JobState.objects.exists()) == (old.job_id, False)
    assert claim_one().job_id == old.job_id


@two_sessions
@pytest.mark.parametrize("commits", [True, False])
def test_a_job_that_is_being_replaced_is_claimed_by_nobody_unless_that_rolls_back(commits):
    with tenant_context("acme"):
        old = ask()
    with second_session("acme") as replacing:
        replacing.execute("begin")
        new, outcome = replacing.execute(CALL, (REPLACE,)).fetchone()
        assert outcome == "replaced"
        assert claim_many() == []
        replacing.execute("commit" if commits else "rollback")

    assert [lease.job_id for lease in claim_many()] == [new if commits else old.job_id]
    with scope_all():
        assert Job.objects.filter(status__lt=10).count() == 1


@two_sessions
@pytest.mark.parametrize("commits", [True, False])
def test_a_replacement_waits_for_a_claim_and_gives_way_to_it_unless_that_rolls_back(commits):
    with tenant_context("acme"):
        old = ask()
    with second_session() as claiming:
        claiming.execute("begin")
        claiming.execute(CLAIM, (WORKER, old.job_id))
        with tenant_context("acme"):
            replacing = InThread(replace).start()
        wait_until_blocked(replacing, claiming)
        claiming.execute("commit" if commits else "rollback")
        answer = replacing.result()

    if commits:
        assert (answer.outcome, answer.job_id) == ("not_replaceable", old.job_id)
        assert (status(old.job_id), holder()) == (Status.RUNNING, old.job_id)
    else:
        assert (answer.outcome, answer.detail) == ("replaced", f"in place of job {old.job_id}")
        assert (status(old.job_id), holder()) == (Status.CANCELLED, answer.job_id)
    with scope_all():
        assert Job.objects.filter(status__lt=10).count() == 1


@two_sessions
def test_a_replacement_that_came_too_late_keeps_no_lock_on_the_running_job():
    """Its transaction may be long, and a settle of a whole batch would wait for it."""
    with tenant_context("acme"):
        ask()

    def replace_and_stay():
        with transaction.atomic():
            answer = replace()
            with connection.cursor() as cursor:
                cursor.execute("select pg_advisory_xact_lock_shared(7)")
            return answer

    with second_session() as claiming, second_session() as gate:
        gate.execute("select pg_advisory_lock(7)")
        claiming.execute("begin")
        (lease,) = _claim_in(claiming)
        with tenant_context("acme"):
            replacing = InThread(replace_and_stay).start()
        wait_until_blocked(replacing, claiming)
        claiming.execute("commit")
        wait_until_blocked(replacing, gate)
        claiming.execute("set lock_timeout = '2s'")
        claiming.execute("select from pgbroker.job where id = %s for no key update", (lease,))
        gate.execute("select pg_advisory_unlock(7)")
        assert replacing.result().outcome == "not_replaceable"


def _claim_in(session) -> list[UUID]:
    (job_id,) = session.execute("select id from pgbroker.job").fetchone()
    session.execute(CLAIM, (WORKER, job_id))
    return [job_id]


@two_sessions
@pytest.mark.parametrize("commits", [True, False])
def test_of_two_replacements_the_second_replaces_the_first_unless_that_rolls_back(commits):
    with tenant_context("acme"):
        old = ask()
    with second_session("acme") as first:
        first.execute("begin")
        middle, _ = first.execute(CALL, (REPLACE,)).fetchone()
        with tenant_context("acme"):
            second = InThread(replace).start()
        wait_until_blocked(second, first)
        first.execute("commit" if commits else "rollback")
        answer = second.result()

    replaced = middle if commits else old.job_id
    assert (answer.outcome, answer.detail) == ("replaced", f"in place of job {replaced}")
    assert holder() == answer.job_id
    with scope_all():
        assert list(Job.objects.filter(status__lt=10).values_list("pk", flat=True)) == [answer.job_id]


@two_sessions
def test_twenty_replacements_at_once_leave_the_last_ones_job():
    with tenant_context("acme"):
        old = ask()
        answers = [each.result() for each in [InThread(replace).start() for _ in range(20)]]

    assert {answer.outcome for answer in answers} == {"replaced"}
    # Each took the place of another one: a chain without a fork.
    assert len({answer.detail for answer in answers}) == 20
    with scope_all():
        (left,) = Job.objects.filter(status__lt=10).values_list("pk", flat=True)
        assert Job.objects.filter(status=Status.CANCELLED).count() == 20
    assert left == holder() != old.job_id


@two_sessions
def test_replacements_and_claims_at_once_run_or_replace_each_job():
    """Whoever comes first: a job runs, or another has its key. Nobody's work is lost, none runs beside another."""

    def replace_often():
        return [replace(idempotency_scope="live") for _ in range(30)]

    def work():
        ran = []
        for _ in range(60):
            leases = claim(
                queue_id(), limit=1, idle=1, quick=[], worker_id=WORKER, lease=LEASE, ageing=LEASE,
                max_crashes=3, suspects=1,
            )  # fmt: skip
            ran += [lease.job_id for lease in leases]
            assert settle([completed(lease) for lease in leases]) or not leases
        return ran

    with tenant_context("acme"):
        calls = [InThread(replace_often).start() for _ in range(3)]
        workers = [InThread(work).start() for _ in range(2)]
        answers = [answer for each in calls for answer in each.result()]
        ran = [job_id for each in workers for job_id in each.result()]
    while leases := claim_many():
        settle([completed(lease) for lease in leases])
        ran += [lease.job_id for lease in leases]

    made = {answer.job_id for answer in answers if answer.made}
    in_place_of = {UUID(answer.detail.split()[-1]) for answer in answers if answer.outcome == "replaced"}
    assert {answer.outcome for answer in answers} <= {"created", "replaced", "not_replaceable"}
    assert len(ran) == len(set(ran))
    assert set(ran) | in_place_of == made
    assert not set(ran) & in_place_of

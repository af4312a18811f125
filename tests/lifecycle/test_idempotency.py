"""Idempotency keys: one live job a key, within tenant and type; a contended key always yields an answer."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.db.utils import OperationalError

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.lifecycle.retry import retry_many
from pgbroker.models import Idempotency, Job, JobPayload
from pgbroker.states import TERMINAL, Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import (
    OTHER_TYPE,
    TYPE,
    claim_many,
    claim_one,
    completed,
    enqueue_one,
    failed,
    queue_id,
    settle_one,
    status,
    type_id,
)
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db
two_sessions = pytest.mark.django_db(transaction=True)
TAKE = "select job_id, outcome from pgbroker.enqueue_many_1(jsonb_build_array(%s::jsonb))"
K = f'{{"job_type": "{TYPE}", "idempotency_key": "k"}}'


@pytest.fixture(autouse=True)
def declared() -> None:
    type_id()


def ask(key="k", **options):
    """Enqueue one job with a key and return the answer."""
    (answer,) = enqueue_rows([{"job_type": TYPE, "idempotency_key": key, **options}])
    return answer


def end_as(state: Status) -> None:
    """Bring the one job there is to an end."""
    (lease,) = claim_many()
    if state == Status.CANCELLED:
        cancel_many([lease.job_id])
    outcome = {
        Status.COMPLETED: completed(lease),
        Status.CANCELLED: completed(lease),
        Status.FAILED: failed(lease, permanent=True),
        Status.DEAD_LETTER: failed(lease, dead=True),
    }[state]
    assert settle_one(outcome).status == state


# ------------------------------------------------------------------ who holds a key


def test_the_same_call_twice_is_one_job():
    first, second = ask(), ask()

    assert (first.outcome, second.outcome) == ("created", "existing")
    assert second.job_id == first.job_id
    assert Job.objects.count() == 1
    assert JobPayload.objects.get().idempotency_key == "k"


KEPT = {
    "held": {Status.COMPLETED},
    "live": set(),
    "retained": set(TERMINAL),
}


@pytest.mark.parametrize("state", sorted(TERMINAL), ids=lambda each: each.label)
@pytest.mark.parametrize("scope", KEPT)
def test_b041_an_ended_job_keeps_its_key_as_its_scope_says(scope, state):
    first = ask(idempotency_scope=scope)
    end_as(state)

    second = ask(idempotency_scope=scope)

    expected = ("existing", True) if state in KEPT[scope] else ("created", False)
    assert (second.outcome, second.job_id == first.job_id) == expected
    live = [job for job in Job.objects.all() if job.status < 10]
    assert len(live) == (0 if state in KEPT[scope] else 1)


def test_a_running_job_and_one_that_waits_for_its_retry_hold_their_key():
    first = ask(idempotency_scope="live")
    lease = claim_one()
    assert ask().job_id == first.job_id

    settle_one(failed(lease))
    assert ask().job_id == first.job_id


def test_the_scope_of_the_holder_decides_not_that_of_the_asker():
    first = ask(idempotency_scope="retained")
    end_as(Status.FAILED)

    assert ask(idempotency_scope="live").job_id == first.job_id


@pytest.mark.parametrize(
    "other",
    [
        {"args": {"v": 1, "args": [], "kwargs": {"a": 2}}},
        {"priority": 1},
        {"max_attempts": 9},
        {"options": {"backoff": {"base": 1}}},
    ],
    ids=lambda each: next(iter(each)),
)
def test_another_body_under_the_same_key_is_a_conflict_that_names_the_holder(other):
    first = ask()

    answer = ask(**other)

    assert (answer.outcome, answer.job_id, answer.refused) == ("idempotency_conflict", first.job_id, True)
    assert "'k'" in answer.detail
    assert "different body" in answer.detail
    assert Job.objects.count() == 1


def test_the_order_of_argument_names_and_what_does_not_change_the_work_make_no_other_body():
    first = ask(args={"v": 1, "args": [], "kwargs": {"a": 1, "b": 2}})

    again = ask(
        args={"kwargs": {"b": 2, "a": 1}, "args": [], "v": 1}, tags=["x"], correlation_id="c", delay_seconds=9
    )

    assert (again.outcome, again.job_id) == ("existing", first.job_id)


def test_left_out_arguments_are_the_same_body_as_no_arguments():
    first = ask()

    assert ask(args={"v": 1, "args": [], "kwargs": {}}).job_id == first.job_id
    assert ask(args={"v": 1, "args": [], "kwargs": {}}).outcome == "existing"


def test_on_conflict_reject_refuses_even_the_same_body():
    first = ask()

    answer = ask(on_conflict="reject")

    assert (answer.outcome, answer.job_id) == ("idempotency_conflict", first.job_id)
    assert "different body" not in answer.detail


def test_b043_a_key_belongs_to_a_tenant_and_a_type_whatever_the_queue():
    type_id(OTHER_TYPE)
    queue_id("other")
    with tenant_context("acme"):
        ours = ask()
        other_type = ask(job_type=OTHER_TYPE)
        other_queue = ask(queue="other")
    with tenant_context("bolt"):
        theirs = ask()

    assert [each.outcome for each in (ours, other_type, theirs)] == ["created"] * 3
    assert len({ours.job_id, other_type.job_id, theirs.job_id}) == 3
    assert (other_queue.outcome, other_queue.job_id) == ("existing", ours.job_id)
    assert str(ours.job_id) not in repr(theirs)


def test_b137_a_key_of_another_tenant_tells_nothing_even_with_another_body():
    with tenant_context("acme"):
        ask(priority=50)
    with tenant_context("bolt"):
        answer = ask(priority=1, on_conflict="reject")

    assert (answer.outcome, answer.detail) == ("created", None)


def test_a_refused_row_takes_no_key():
    answer = ask(priority=101)

    assert answer.outcome == "invalid_option"
    assert not Idempotency.objects.exists()
    assert ask().outcome == "created"


# ------------------------------------------------------------------ batches


def test_b045_a_batch_of_a_hundred_with_duplicates_keeps_everything_else():
    existing = ask("key-36")
    rows = [{"job_type": TYPE, "idempotency_key": f"key-{place}"} for place in range(100)]
    rows[89]["idempotency_key"] = "key-4"

    answers = enqueue_rows(rows)

    assert [answer.ordinal for answer in answers] == list(range(1, 101))
    assert (answers[36].outcome, answers[36].job_id) == ("existing", existing.job_id)
    assert (answers[4].outcome, answers[89].outcome) == ("created", "existing")
    assert answers[4].job_id == answers[89].job_id
    assert sum(answer.outcome == "created" for answer in answers) == 98
    assert Job.objects.count() == 99


def test_later_rows_of_a_batch_follow_the_first_with_their_key():
    rows = [
        {"job_type": TYPE, "idempotency_key": "k", "priority": 101},
        {"job_type": TYPE, "idempotency_key": "k"},
        {"job_type": TYPE, "idempotency_key": "k", "priority": 3},
        {"job_type": TYPE, "idempotency_key": "k", "on_conflict": "reject"},
        {"job_type": TYPE, "idempotency_key": "k"},
        {"job_type": TYPE},
    ]

    answers = enqueue_rows(rows)

    assert [answer.outcome for answer in answers] == [
        "invalid_option", "created", "idempotency_conflict", "idempotency_conflict", "existing", "created",
    ]  # fmt: skip
    assert {answer.job_id for answer in answers[1:5]} == {answers[1].job_id}
    assert Job.objects.count() == 2


def test_rows_of_a_batch_follow_a_holder_from_before_each_by_its_own_body():
    holder = ask(priority=3)
    rows = [{"job_type": TYPE, "idempotency_key": "k", "priority": priority} for priority in (1, 3, 1, 3)]

    answers = enqueue_rows(rows)

    conflict, existing = "idempotency_conflict", "existing"
    assert [answer.outcome for answer in answers] == [conflict, existing, conflict, existing]
    assert {answer.job_id for answer in answers} == {holder.job_id}


def test_b047_asking_a_thousand_times_for_a_held_key_uses_up_no_numbers():
    ask()
    counters = (
        "select sum(coalesce(last_value, 0)) from pg_sequences "
        "where schemaname = 'pgbroker' and sequencename !~ '(execution|job_event)'"
    )
    with connection.cursor() as cursor:
        cursor.execute(counters)
        before = cursor.fetchone()

        enqueue_rows([{"job_type": TYPE, "idempotency_key": "k"}] * 1000)
        for _ in range(20):
            ask()

        cursor.execute(counters)
        assert cursor.fetchone() == before
        cursor.execute(
            "select table_name, column_name from information_schema.columns "
            "where table_schema = 'pgbroker' and (is_identity = 'YES' or column_default ~ 'nextval') "
            "and data_type <> 'bigint'"
        )
        assert set(cursor.fetchall()) == {("queue", "id"), ("job_type", "id")}


def test_b047_a_queue_or_type_that_exists_costs_no_number_of_its_small_key():
    queue_id("fresh"), type_id("tests.fresh")
    with connection.cursor() as cursor:
        look = "select last_value from pg_sequences where sequencename in ('queue_id_seq', 'job_type_id_seq')"
        cursor.execute(look)
        before = cursor.fetchall()
        for _ in range(5):
            queue_id("fresh"), type_id("tests.fresh")
        cursor.execute(look)
        assert cursor.fetchall() == before


# ------------------------------------------------------------------ two sessions


@two_sessions
@pytest.mark.parametrize("commits", [True, False])
def test_b039_a_contended_key_waits_and_yields_a_job_that_exists(commits):
    with second_session("acme") as first:
        first.execute("begin")
        (first_id, outcome) = first.execute(TAKE, (K,)).fetchone()
        assert outcome == "created"
        with tenant_context("acme"):
            waiting = InThread(ask).start()
        wait_until_blocked(waiting, first)
        first.execute("commit" if commits else "rollback")
        answer = waiting.result()

    assert (answer.outcome, answer.job_id == first_id) == (
        ("existing", True) if commits else ("created", False)
    )
    assert status(answer.job_id) == Status.READY
    with scope_all():
        assert Job.objects.count() == 1
        assert Idempotency.objects.get().job_id == answer.job_id


@two_sessions
def test_b185_only_the_same_key_of_the_same_tenant_and_type_waits():
    with second_session("acme") as first, first.transaction():
        first.execute(TAKE, (K,))
        with tenant_context("acme"):
            assert ask("another").outcome == "created"
            assert [lease.tenant_id for lease in claim_many()] == ["acme"]
        with tenant_context("bolt"):
            assert ask().outcome == "created"


@two_sessions
def test_b185_a_duplicate_of_a_committed_key_waits_for_nobody():
    with tenant_context("acme"):
        first = ask()
    with second_session("acme") as other, other.transaction():
        other.execute(TAKE, (K,))
        with tenant_context("acme"):
            assert ask().job_id == first.job_id


@two_sessions
def test_a_key_that_was_let_go_goes_to_one_of_two_that_want_it():
    with tenant_context("acme"):
        old = ask()
        end_as(Status.FAILED)
    with second_session("acme") as first:
        first.execute("begin")
        new_id, outcome = first.execute(TAKE, (K,)).fetchone()
        assert (outcome, new_id == old.job_id) == ("created", False)
        with tenant_context("acme"):
            second = InThread(ask).start()
        wait_until_blocked(second, first)
        first.execute("commit")
        answer = second.result()

    assert (answer.outcome, answer.job_id) == ("existing", new_id)


@two_sessions
def test_a_key_that_was_let_go_is_free_again_when_the_one_that_took_it_rolls_back():
    with tenant_context("acme"):
        ask()
        end_as(Status.FAILED)
    with second_session("acme") as first:
        first.execute("begin")
        gone_id, _ = first.execute(TAKE, (K,)).fetchone()
        with tenant_context("acme"):
            second = InThread(ask).start()
        wait_until_blocked(second, first)
        first.execute("rollback")
        answer = second.result()

    assert (answer.outcome, answer.job_id == gone_id) == ("created", False)
    assert status(answer.job_id) == Status.READY


@two_sessions
@pytest.mark.own_session
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_contended_key_at_repeatable_read_is_a_serialisation_error(isolation):
    with second_session("acme") as first:
        first.execute("begin")
        first.execute(TAKE, (K,))

        def at_repeatable_read():
            with connection.cursor() as cursor:
                cursor.execute(f"set session characteristics as transaction isolation level {isolation}")
            with transaction.atomic():
                Job.objects.count()  # the transaction's snapshot
                return ask()

        with tenant_context("acme"):
            second = InThread(at_repeatable_read).start()
        wait_until_blocked(second, first)
        first.execute("commit")
        with pytest.raises(OperationalError) as caught:
            second.result()

    assert caught.value.__cause__.sqlstate == "40001"


@two_sessions
def test_two_batches_with_the_same_keys_in_opposite_order_do_not_deadlock():
    """Each takes its keys sorted, so the second waits for the first and never the other way round too."""
    keys = ["B", "a", "Z", "b", "ä", "A"]
    forward = [{"job_type": TYPE, "idempotency_key": key} for key in keys]
    with second_session("acme") as first:
        first.execute("begin")
        first.execute(TAKE, (f'{{"job_type": "{TYPE}", "idempotency_key": "A"}}',))
        with tenant_context("acme"):
            batches = [
                InThread(lambda: enqueue_rows(forward)).start(),
                InThread(lambda: enqueue_rows(forward[::-1])).start(),
            ]
        for batch in batches:
            wait_until_blocked(batch)
        first.execute("commit")
        answers = [batch.result() for batch in batches]

    outcomes = sorted(answer.outcome for batch in answers for answer in batch)
    assert outcomes == ["created"] * 5 + ["existing"] * 7
    assert [answer.job_id for answer in answers[0]] == [answer.job_id for answer in reversed(answers[1])]
    with scope_all():
        assert Job.objects.count() == 6


@two_sessions
def test_keys_that_were_let_go_are_taken_in_the_same_order_by_all():
    """Each batch finds every key held by an ended job: the row locks must come in one order as well."""
    keys = ["B", "a", "Z", "b", "A"]
    rows = [{"job_type": TYPE, "idempotency_key": key} for key in keys]
    with tenant_context("acme"):
        enqueue_rows(rows)
        cancel_many([job.pk for job in Job.objects.all()])
    with second_session("acme") as first:
        first.execute("begin")
        first.execute("select from pgbroker.idempotency where key = 'Z' for update")
        with tenant_context("acme"):
            batches = [
                InThread(lambda: enqueue_rows(rows)).start(),
                InThread(lambda: enqueue_rows(rows[::-1])).start(),
            ]
        for batch in batches:
            wait_until_blocked(batch)
        first.execute("commit")
        answers = [batch.result() for batch in batches]

    assert (
        sorted(answer.outcome for batch in answers for answer in batch) == ["created"] * 5 + ["existing"] * 5
    )


@two_sessions
def test_b049_twenty_at_once_make_one_job_and_one_says_created():
    with tenant_context("acme"):
        threads = [InThread(ask).start() for _ in range(20)]
        answers = [thread.result() for thread in threads]

    assert sorted(answer.outcome for answer in answers) == ["created"] + ["existing"] * 19
    assert len({answer.job_id for answer in answers}) == 1


# ------------------------------------------------------------------ retry against the key


def a_dead_job():
    answer = ask()
    end_as(Status.DEAD_LETTER)
    return answer.job_id


@two_sessions
@pytest.mark.parametrize("commits", [True, False])
def test_a_retry_that_waits_behind_an_enqueue_of_its_key_is_refused_unless_that_rolls_back(commits):
    with tenant_context("acme"):
        old = a_dead_job()
    with second_session("acme") as enqueuing:
        enqueuing.execute("begin")
        new, _ = enqueuing.execute(TAKE, (K,)).fetchone()
        with tenant_context("acme"):
            retrying = InThread(lambda: retry_many([old])).start()
        wait_until_blocked(retrying, enqueuing)
        enqueuing.execute("commit" if commits else "rollback")
        (answer,) = retrying.result()

    assert (answer.outcome, answer.holder_id) == (
        ("key_held_by_newer_job", new) if commits else ("retried", None)
    )
    with scope_all():
        assert Job.objects.filter(status=Status.READY).count() == 1


@two_sessions
def test_an_enqueue_that_waits_behind_a_retry_of_its_key_finds_the_old_job():
    with tenant_context("acme"):
        old = a_dead_job()
    with tenant_context("acme"), transaction.atomic():
        retry_many([old])
        asking = InThread(ask).start()
        wait_until_blocked(asking)
        # The commit follows the block.
    answer = asking.result()

    assert (answer.outcome, answer.job_id) == ("existing", old)
    with scope_all():
        assert Job.objects.count() == 1


@two_sessions
@pytest.mark.parametrize("holder_first", [True, False])
def test_of_two_retries_of_jobs_with_one_key_the_later_one_is_refused(holder_first):
    """The second waits for the key with a snapshot in which the holder is still dead."""
    with tenant_context("acme"):
        old, holder = a_dead_job(), a_dead_job()
        first, second = (holder, old) if holder_first else (old, holder)
        with transaction.atomic():
            assert [answer.outcome for answer in retry_many([first])] == ["retried"]
            later = InThread(lambda: retry_many([second])).start()
            wait_until_blocked(later)
        (answer,) = later.result()

    assert (answer.outcome, answer.holder_id) == ("key_held_by_newer_job", first)
    assert (status(first), status(second)) == (Status.READY, Status.DEAD_LETTER)


@two_sessions
def test_a_retry_does_not_wait_for_a_holder_that_lives():
    with tenant_context("acme"):
        old = a_dead_job()
        new = ask().job_id
        claim_many()
    with second_session() as settling, settling.transaction():
        settling.execute("select from pgbroker.job where id = %s for no key update", (new,))
        with tenant_context("acme"):
            (answer,) = retry_many([old])

    assert answer.outcome == "key_held_by_newer_job"


def test_enqueue_one_refuses_to_hide_a_duplicate():
    enqueue_one(idempotency_key="k")

    with pytest.raises(AssertionError):
        enqueue_one(idempotency_key="k")

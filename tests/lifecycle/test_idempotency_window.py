"""Idempotency scope `window`: at most one job a key within a period that begins with the job that holds it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.lifecycle.retry import retry_many
from pgbroker.models import Idempotency, Job
from pgbroker.states import TERMINAL, Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import (
    TYPE,
    age_key,
    claim_many,
    completed,
    failed,
    guards_off,
    settle_one,
    status,
    type_id,
)
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db
two_sessions = pytest.mark.django_db(transaction=True)
TAKE = "select job_id, outcome from pgbroker.enqueue_many_1(jsonb_build_array(%s::jsonb))"
K = f'{{"job_type": "{TYPE}", "idempotency_key": "k", "idempotency_scope": "window", "window_seconds": 60}}'


@pytest.fixture(autouse=True)
def declared() -> None:
    type_id()


def ask(key="k", *, window=60.0, **options):
    """Enqueue one job whose key is held for a while, and return the answer."""
    row = {"job_type": TYPE, "idempotency_key": key, "idempotency_scope": "window", "window_seconds": window}
    (answer,) = enqueue_rows([{**row, **options}])
    return answer


def end_as(state: Status) -> None:
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


# ------------------------------------------------------------------ the period


def test_within_the_period_the_holder_answers_and_after_it_a_new_job_is_made():
    first = ask()
    age_key(seconds=59)
    within = ask()
    age_key(seconds=1)
    after = ask()

    assert (within.outcome, within.job_id) == ("existing", first.job_id)
    assert (after.outcome, after.job_id == first.job_id) == ("created", False)
    assert status(first.job_id) == status(after.job_id) == Status.READY


def test_the_key_is_free_at_the_instant_of_its_end_and_held_a_microsecond_before():
    """The statement's own instant decides: both sides of the boundary in one statement's time."""
    with transaction.atomic(), connection.cursor() as cursor:
        held = "pgbroker.holds_key_1('window', statement_timestamp() + %s, 2::smallint)"
        cursor.execute(f"select {held}, {held}", [timedelta(microseconds=1), timedelta(0)])

        assert cursor.fetchone() == (True, False)


@pytest.mark.parametrize("state", sorted(TERMINAL), ids=lambda each: each.label)
def test_how_the_holder_ended_neither_frees_the_key_sooner_nor_keeps_it_longer(state):
    first = ask()
    end_as(state)

    assert ask().job_id == first.job_id
    age_key(seconds=60)
    assert ask().outcome == "created"


def test_the_period_slides_with_the_holder_and_not_with_those_who_ask():
    ask()
    age_key(seconds=40)
    ask()
    age_key(seconds=20)
    second = ask()
    age_key(seconds=59)

    assert second.outcome == "created"
    assert ask().job_id == second.job_id


def test_the_holders_own_window_counts_not_that_of_whoever_asks():
    first = ask(window=3600)
    age_key(seconds=600)

    assert ask(window=1).job_id == first.job_id


def test_what_is_stored_is_the_end_of_the_period_by_the_databases_clock():
    answer = ask(window=90.5)

    key = Idempotency.objects.get()
    assert key.expires_at - key.created_at == timedelta(seconds=90.5)
    assert abs(key.created_at - timezone.now()) < timedelta(seconds=30)
    assert key.created_at == Job.objects.get(pk=answer.job_id).created_at


def test_another_body_within_the_period_is_a_conflict_and_after_it_a_new_job():
    ask()

    assert ask(priority=1).outcome == "idempotency_conflict"
    age_key(seconds=60)
    assert ask(priority=1).outcome == "created"


def test_a_holder_whose_row_is_gone_holds_nothing():
    first = ask()
    with guards_off():
        Job.objects.filter(pk=first.job_id).delete()

    assert ask().outcome == "created"


def test_a_key_may_change_its_scope_with_its_holder():
    ask()
    age_key(seconds=60)
    (held,) = enqueue_rows([{"job_type": TYPE, "idempotency_key": "k"}])
    age_key(days=400)

    assert (held.outcome, ask().job_id) == ("created", held.job_id)
    assert Idempotency.objects.get().expires_at is None


# ------------------------------------------------------------------ bulk, tenants


def test_a_bulk_call_makes_one_job_a_key_and_period():
    old, current = ask("old"), ask("current")
    age_key("old", seconds=60)
    window = {"job_type": TYPE, "idempotency_scope": "window", "window_seconds": 60}

    answers = enqueue_rows(
        [{**window, "idempotency_key": key} for key in ("old", "current", "new", "old", "new")]
    )

    assert [answer.outcome for answer in answers] == [
        "created",
        "existing",
        "created",
        "existing",
        "existing",
    ]
    assert answers[0].job_id == answers[3].job_id != old.job_id
    assert (answers[1].job_id, answers[2].job_id) == (current.job_id, answers[4].job_id)


def test_a_window_belongs_to_its_tenant():
    with tenant_context("acme"):
        first = ask()
    with tenant_context("bolt"):
        assert ask().outcome == "created"
    with tenant_context("acme"):
        assert ask().job_id == first.job_id


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"window_seconds": None}, "window_seconds is missing"),
        ({"window_seconds": 0}, "window_seconds 0 is not more than 0"),
        ({"window_seconds": -1}, "window_seconds -1"),
        ({"window_seconds": 316224001}, "at most 316224000"),
        ({"window_seconds": "NaN"}, "window_seconds NaN"),
        ({"idempotency_scope": "held"}, "window_seconds is for idempotency_scope window, not held"),
        ({"idempotency_key": None}, "idempotency_key is missing"),
    ],
)
def test_a_window_that_means_nothing_refuses_its_own_entry(wrong, word):
    good = {"job_type": TYPE, "idempotency_key": "k", "idempotency_scope": "window", "window_seconds": 60}

    first, refused = enqueue_rows([good, {**good, **wrong}])

    assert (first.outcome, refused.outcome) == ("created", "invalid_option")
    assert word in refused.detail


# ------------------------------------------------------------------ two sessions


@two_sessions
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("expired", [True, False])
def test_a_contended_window_waits_and_yields_a_job_that_exists(commits, expired):
    """Both for a key that is new and for one whose period is over: one of the two takes it."""
    with tenant_context("acme"):
        if expired:
            old = ask()
            age_key(seconds=60)
            assert old.outcome == "created"
    with second_session("acme") as first:
        first.execute("begin")
        first_id, outcome = first.execute(TAKE, (K,)).fetchone()
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
        assert Idempotency.objects.get().job_id == answer.job_id


@two_sessions
def test_twenty_at_once_after_the_period_make_one_job():
    with tenant_context("acme"):
        old = ask()
        age_key(seconds=60)
        answers = [each.result() for each in [InThread(ask).start() for _ in range(20)]]

    assert sorted(answer.outcome for answer in answers) == ["created"] + ["existing"] * 19
    assert len({answer.job_id for answer in answers} | {old.job_id}) == 2


@two_sessions
def test_a_key_that_was_held_when_a_call_looked_is_not_taken_from_who_got_it_meanwhile():
    """
    A batch waits for the key `a`. While it waits, the holder of `k`, which it saw living, dies, and another
    call takes `k`: the batch must not take it from that one.
    """
    held = [{"job_type": TYPE, "idempotency_key": key} for key in ("a", "k")]
    with tenant_context("acme"):
        dead, dying = enqueue_rows(held)
        cancel_many([dead.job_id])
    with second_session("acme") as holder, second_session("acme") as taker:
        holder.execute("begin")
        holder.execute("select from pgbroker.idempotency where key = 'a' for update")
        with tenant_context("acme"):
            batch = InThread(lambda: enqueue_rows(held)).start()
            wait_until_blocked(batch, holder)
            cancel_many([dying.job_id])
        taker.execute("begin")
        (taken, outcome) = taker.execute(
            TAKE, (f'{{"job_type": "{TYPE}", "idempotency_key": "k"}}',)
        ).fetchone()
        assert outcome == "created"
        holder.execute("commit")
        wait_until_blocked(batch, taker)
        taker.execute("commit")
        answers = batch.result()

    assert [answer.outcome for answer in answers] == ["created", "existing"]
    assert answers[1].job_id == taken
    with scope_all():
        assert Idempotency.objects.get(key="k").job_id == taken


# ------------------------------------------------------------------ retry


def a_dead_job(**options):
    answer = ask(max_attempts=1, **options)
    (lease,) = claim_many()
    assert settle_one(failed(lease)).status == Status.DEAD_LETTER
    return answer.job_id


def test_a_retry_within_its_own_window_holds_its_key_as_before():
    job_id = a_dead_job()
    age_key(seconds=30)

    (answer,) = retry_many([job_id])

    assert answer.outcome == "retried"
    assert ask(max_attempts=1).job_id == job_id
    age_key(seconds=30)
    assert ask(max_attempts=1).outcome == "created"


def test_a_retry_is_refused_while_the_window_of_a_newer_job_lasts_and_no_longer():
    old = a_dead_job()
    age_key(seconds=60)
    new = ask(max_attempts=1)
    assert new.outcome == "created"

    (refused,) = retry_many([old])
    age_key(seconds=60)
    (retried,) = retry_many([old])

    assert (refused.outcome, refused.holder_id) == ("key_held_by_newer_job", new.job_id)
    assert retried.outcome == "retried"
    assert status(new.job_id) == status(old) == Status.READY


def test_a_retry_does_not_begin_its_period_anew():
    """The period began when the job was made: the retried job has no claim on its key any more."""
    old = a_dead_job()
    age_key(seconds=60)
    ask(max_attempts=1)
    age_key(seconds=60)
    retry_many([old])

    key = Idempotency.objects.get()
    assert (key.job_id, key.scope, key.expires_at < timezone.now()) == (old, "window", True)
    assert ask(max_attempts=1).outcome == "created"


def test_a_retry_takes_its_key_back_on_its_own_terms_and_not_on_those_of_who_had_it():
    (old,) = enqueue_rows([{"job_type": TYPE, "idempotency_key": "k", "idempotency_scope": "live"}])
    end_as(Status.FAILED)
    ask()
    age_key(seconds=60)

    retry_many([old.job_id])

    key = Idempotency.objects.get()
    assert (key.job_id, key.scope, key.expires_at) == (old.job_id, "live", None)
    assert ask().job_id == old.job_id

"""One look at everything: what fails, how fast queues go, and whose rows are looked at."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from pgbroker import overview, tenant_context
from pgbroker.lifecycle.reap import reap
from pgbroker.overview import Overview
from pgbroker.policy.backoff import Backoff
from pgbroker.states import AttemptState
from pgbroker.tenancy import scope_all
from tests.support.jobs import (
    OTHER_TYPE,
    age,
    claim_one,
    completed,
    ended,
    enqueue_one,
    failed,
    guards_off,
    queue_id,
    settle_one,
    snoozed,
)
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db


def look(**asked: Any) -> Overview:
    with scope_all():
        return overview.look(**{"tenant": None, "minutes": 5, "using": "default"} | asked)


def fail(code: str, **options: Any) -> None:
    enqueue_one(**options)
    lease = claim_one()
    settle_one(ended(lease, AttemptState.FAILED, permanent=True, error_code=code, error="it broke"))


def test_what_fails_is_told_by_type_and_code_the_most_frequent_first() -> None:
    fail("rare")
    fail("frequent", job_type=OTHER_TYPE)
    fail("frequent", job_type=OTHER_TYPE)
    enqueue_one()
    settle_one(completed(claim_one()))
    enqueue_one()
    settle_one(snoozed(claim_one()))

    told = [(each.job_type, each.error, each.times) for each in look().failing]

    assert told == [(OTHER_TYPE, "frequent", 2), ("tests.ok", "rare", 1)]
    assert 0 <= look().failing[0].last_seconds < 60


def test_an_attempt_that_is_tried_again_and_one_that_was_lost_count_as_failing() -> None:
    enqueue_one()
    settle_one(failed(claim_one(), delay=timedelta(hours=1)))
    lost = enqueue_one(job_type=OTHER_TYPE)
    claim_one()
    age(lost, minutes=5, only=["lease_expires_at"])
    reap(limit=10, max_crashes=3, backoff=Backoff())

    assert {(each.job_type, each.times) for each in look().failing} == {("tests.ok", 1), (OTHER_TYPE, 1)}


def test_what_failed_hours_ago_does_not_fail_now() -> None:
    fail("past")
    with guards_off(), connection.cursor() as cursor:
        cursor.execute("update pgbroker.execution set completed_at = completed_at - interval '2 hours'")

    assert look().failing == []


def test_one_tenant_sees_its_own_failures_and_no_rates() -> None:
    with tenant_context("acme"):
        fail("theirs")
    fail("ours")

    with tenant_context("acme"):
        seen = overview.look(tenant="acme", minutes=5, using="default")

    assert [each.error_code for each in seen.failing] == ["theirs"]
    assert (seen.rates, seen.minutes, seen.totals) == (None, None, None)
    assert {each.error_code for each in look().failing} == {"theirs", "ours"}


def test_rates_are_told_by_queue_and_the_history_leaves_the_minute_out_that_has_just_begun() -> None:
    queue_id("calm")
    for _ in range(3):
        enqueue_one()
        settle_one(completed(claim_one()))
    fail("x")

    seen = look()

    busy, calm = (seen.rates_of(each) for each in seen.depths if each.queue in ("default", "calm"))
    if calm and calm.done:
        busy, calm = calm, busy
    assert busy is not None
    assert calm is not None
    assert ((busy.done, busy.errors), (calm.done, calm.errors)) == ((3, 1), (0, 0))
    assert seen.minutes is not None
    assert len(seen.minutes) == overview.HISTORY_MINUTES
    assert sum(each.done for each in seen.minutes) == 0
    assert seen.totals is not None
    assert seen.totals["done"] == 3


@pytest.mark.django_db(transaction=True)
def test_a_look_that_takes_too_long_ends_and_is_not_told_as_a_database_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pgbroker.management.commands import broker_status

    monkeypatch.setattr(broker_status, "PATIENCE", timedelta(milliseconds=300))
    with second_session() as other, other.transaction():
        other.execute("lock table pgbroker.queue in access exclusive mode")
        with pytest.raises(CommandError, match="statement timeout") as caught:
            call_command("broker_status", stdout=StringIO())

    assert caught.value.returncode == 1


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["--watch", "0.01"], r"--watch is 0.01 s"),
        (["--watch", "soon"], r"--watch is 'soon'"),
        (["--top", "0"], r"--top"),
    ],
)
def test_what_cannot_be_watched_is_refused(typed: list[str], told: str) -> None:
    with pytest.raises(CommandError, match=told) as caught:
        call_command("broker_status", *typed)

    assert caught.value.returncode == 2

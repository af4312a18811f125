"""over_long: what runs for longer than it may is found page by page, and told once; nothing is taken from anybody."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.db import connection

from pgbroker.lifecycle.declare import DeclaredType, declare_types
from pgbroker.lifecycle.heartbeat import heartbeat
from pgbroker.lifecycle.over_long import START, find_over_long
from pgbroker.reports import list_over_long
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import (
    LEASE,
    TYPE,
    age,
    claim_many,
    claim_one,
    completed,
    enqueue_one,
    guards_off,
    settle_one,
)

pytestmark = pytest.mark.django_db

GRACE = timedelta(seconds=60)


def find(**options):
    return find_over_long(**{"timeout": None, "grace": GRACE, "limit": 100, **options})


def running(seconds: float, **options):
    """Claim a job, and let it run for so long while its worker renews the lease."""
    job_id = enqueue_one(**options)
    claim_one()
    age(job_id, only=["leased_at"], seconds=seconds)
    return job_id


@pytest.mark.parametrize(
    ("seconds", "options", "default", "found"),
    [
        (100, {"timeout": 30}, None, True),
        (89, {"timeout": 30}, None, False),
        (100, None, 30.0, True),
        (100, {"timeout": 300}, 30.0, False),
        (1_000_000, None, None, False),
        # What a row says that no code of ours would is as good as nothing.
        (100, {"timeout": "soon"}, 30.0, True),
        (100, {"timeout": -1}, 30.0, True),
        (100, {"timeout": 1e300}, 30.0, False),
        (100, [7], 30.0, True),
    ],
)
def test_an_attempt_is_over_long_beyond_its_timeout_and_a_grace(seconds, options, default, found):
    job_id = running(seconds)
    with guards_off(), connection.cursor() as cursor:
        cursor.execute(
            "update pgbroker.job_payload set options = %s where job_id = %s", [json.dumps(options), job_id]
        )

    late, _ = find(timeout=default)

    assert [each.job_id for each in late] == ([job_id] if found else [])


def test_the_type_says_how_long_where_the_job_does_not():
    job_id = running(100)
    declare_types([DeclaredType(TYPE, 1, (), {"timeout": 30.0})])

    (late,), _ = find(timeout=3000.0)

    assert (late.job_id, late.attempt_no) == (job_id, 1)
    assert 100 <= late.seconds < 130


def test_a_job_beyond_its_deadline_is_over_long_whatever_its_timeout():
    job_id = running(30, deadline_seconds=10)
    age(job_id, only=["deadline_at"], seconds=80)

    assert [each.job_id for each in find()[0]] == [job_id]


def test_what_has_lost_its_lease_is_the_reapers():
    job_id = running(100)
    age(job_id, only=["lease_expires_at"], hours=1)

    assert find(timeout=1.0) == ([], None)


def test_what_has_ended_is_not_found():
    job_id = enqueue_one()
    lease = claim_one()
    age(job_id, only=["leased_at"], hours=1)
    settle_one(completed(lease))

    assert find(timeout=1.0) == ([], None)


@pytest.mark.parametrize("page", [1, 2, 3, 7])
def test_pages_pass_over_nobody_where_all_leases_end_at_once(page):
    """One statement renews the leases of a worker: they end at the same microsecond."""
    ids = {enqueue_one() for _ in range(7)}
    leases = claim_many(7)
    heartbeat(leases, lease=LEASE)
    age(*ids, only=["leased_at"], hours=1)

    seen, place, pages = [], START, 0
    while place is not None:
        late, place = find(timeout=1.0, limit=page, after=place)
        seen += [each.job_id for each in late]
        pages += 1
        assert pages < 20

    assert sorted(seen) == sorted(ids)
    assert pages >= 7 // page


def test_a_page_of_attempts_that_are_in_time_is_no_end():
    for _ in range(4):
        running(1)
    late_one = running(500)
    age(late_one, only=["lease_expires_at"], seconds=-5)

    first, place = find(timeout=100.0, limit=2)
    second, place = find(timeout=100.0, limit=2, after=place)
    third, place = find(timeout=100.0, limit=2, after=place)

    assert (first, second, [each.job_id for each in third], place) == ([], [], [late_one], None)


def test_a_tenant_sees_its_own():
    for tenant in ("acme", "bolt"):
        with tenant_context(tenant):
            job_id = enqueue_one(options={"timeout": 1})
            claim_one()
            age(job_id, only=["leased_at"], hours=1)

    with tenant_context("acme"):
        (mine,) = list_over_long(using="default")
    assert mine.tenant_id == "acme"
    with scope_all():
        assert {each.tenant_id for each in list_over_long(using="default")} == {"acme", "bolt"}

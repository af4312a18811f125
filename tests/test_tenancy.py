"""tenant_context: whose rows statements see, on every way a statement can go, and that no connection remembers it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, ProgrammingError, connection, connections, transaction

from pgbroker import correlation, db
from pgbroker.errors import InvalidTenant
from pgbroker.models import Job, JobPayload
from pgbroker.tenancy import checked_tenant, current_tenant, scope_all, tenant_context
from tests.support.jobs import TYPE, WORKER, claim_many, enqueue_one, row

pytestmark = pytest.mark.django_db(transaction=True)
COUNT = "select count(*) from pgbroker.job"


@pytest.fixture(autouse=True)
def jobs():
    """One job of acme, two of bolt, three of the tenant that nobody chose."""
    for _ in range(3):
        enqueue_one()
    for tenant, number in (("acme", 1), ("bolt", 2)):
        with tenant_context(tenant):
            for _ in range(number):
                enqueue_one()
    assert settings_now() == ("", "")


def settings_now() -> tuple[str, str]:
    """Read what the connection itself remembers, past our wrapper."""
    with db.unscoped(), connection.cursor() as cursor:
        cursor.execute(
            "select coalesce(current_setting('pgbroker.scope', true), ''), "
            "coalesce(current_setting('pgbroker.tenant_id', true), '')"
        )
        return cursor.fetchone()


def seen() -> int:
    """Count the rows that the policy lets through, without a predicate of ours."""
    with connection.cursor() as cursor:
        cursor.execute(COUNT)
        return cursor.fetchone()[0]


def both() -> tuple[int, int]:
    """Count with the policy alone and through the manager."""
    return seen(), Job.objects.count()


# ------------------------------------------------------------------ which rows


def test_a_context_sees_its_own_rows_and_without_one_it_is_the_default_tenants():
    assert both() == (3, 3)
    with tenant_context("acme"):
        assert both() == (1, 1)
    with tenant_context("bolt"):
        assert both() == (2, 2)
    with tenant_context("nobody"):
        assert both() == (0, 0)
    with scope_all():
        assert both() == (6, 6)
    assert both() == (3, 3)
    assert settings_now() == ("", "")


def test_contexts_nest_and_each_comes_back_whatever_ends_the_inner_one():
    with tenant_context("acme"):
        with scope_all():
            with tenant_context("bolt"):
                assert (both(), current_tenant()) == ((2, 2), "bolt")
            assert both() == (6, 6)
        with contextlib.suppress(ZeroDivisionError), tenant_context("bolt"):
            raise ZeroDivisionError
        assert (both(), current_tenant()) == ((1, 1), "acme")
    assert current_tenant() == "default"


@pytest.mark.parametrize("tenant", ["", "a b", "x" * 64, "ä", "a;b", "a'b", None, 7, "a\n"])
def test_what_is_no_tenant_id_is_refused_before_any_statement(tenant):
    with pytest.raises(InvalidTenant), tenant_context(tenant):
        pass
    assert current_tenant() == "default"


def test_every_character_that_a_tenant_id_may_have_is_a_tenant_id():
    assert checked_tenant("A-z.0_9") == "A-z.0_9"
    assert checked_tenant("x" * 63)


# ------------------------------------------------------------------ ways of a statement


def test_in_a_transaction_the_setting_is_put_back_after_every_statement():
    with transaction.atomic():
        with tenant_context("acme"):
            assert both() == (1, 1)
            assert settings_now() == ("", "")
        assert both() == (3, 3)
        with scope_all():
            assert seen() == 6
        assert settings_now() == ("", "")


def test_what_the_project_itself_set_in_its_transaction_is_put_back():
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("select set_config('pgbroker.tenant_id', 'bolt', true)")
        with tenant_context("acme"):
            assert seen() == 1
        assert seen() == 2
        with tenant_context("acme"):
            enqueue_one()
        assert settings_now() == ("", "bolt")


def test_a_rollback_to_a_savepoint_changes_nothing_about_the_tenant():
    with transaction.atomic(), tenant_context("acme"):
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            assert seen() == 1
            raise ZeroDivisionError
        assert seen() == 1
        with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("select 1 / 0")
        assert both() == (1, 1)
    assert settings_now() == ("", "")


def test_after_an_error_in_autocommit_the_connection_works_and_remembers_nothing():
    with tenant_context("acme"):
        with pytest.raises(DatabaseError), connection.cursor() as cursor:
            cursor.execute("select 1 / 0")
        assert both() == (1, 1)
    assert (settings_now(), both()) == (("", ""), (3, 3))


def test_after_an_error_that_only_the_commit_finds_the_connection_works():
    with connection.cursor() as cursor:
        cursor.execute("create temp table parent (id int primary key)")
        cursor.execute("create temp table child (id int references parent deferrable initially deferred)")
    with tenant_context("acme"), pytest.raises(DatabaseError), connection.cursor() as cursor:
        cursor.execute("insert into child values (1)")
    with tenant_context("acme"):
        assert both() == (1, 1)
    with connection.cursor() as cursor:
        cursor.execute("drop table child, parent")


def test_an_iterator_reads_its_own_tenants_rows_in_autocommit():
    with tenant_context("acme"):
        assert [job.tenant_id for job in Job.objects.iterator(chunk_size=1)] == ["acme"]
        assert seen() == 1
    assert settings_now() == ("", "")


def test_an_iterator_in_a_transaction_leaves_nothing_behind_when_its_context_ends():
    with transaction.atomic():
        with tenant_context("bolt"):
            with db.unscoped(), connection.cursor() as cursor:
                cursor.execute("select set_config('pgbroker.tenant_id', 'acme', true)")
            assert len(list(Job.objects.iterator(chunk_size=1))) == 2
        assert settings_now() == ("", "acme")
    assert settings_now() == ("", "")


def test_an_iterator_that_is_left_half_read_leaves_nothing_behind():
    with tenant_context("bolt"):
        for _ in Job.objects.iterator(chunk_size=1):
            break
    assert (settings_now(), both()) == (("", ""), (3, 3))


def test_two_iterators_of_two_tenants_read_side_by_side():
    def tenants(tenant):
        with tenant_context(tenant):
            jobs = Job.objects.iterator(chunk_size=1)
            first = next(jobs)
        return itertools.chain([first], jobs)

    pairs = list(zip(tenants("bolt"), tenants("acme"), strict=False))

    assert [(one.tenant_id, other.tenant_id) for one, other in pairs] == [("bolt", "acme")]


def test_rows_written_one_by_one_or_many_at_once_belong_to_the_tenant():
    with tenant_context("acme"):
        job_id = enqueue_one()
        with connection.cursor() as cursor:
            cursor.executemany(
                "update pgbroker.job set lane = %s where tenant_id = %s", [("a", "acme"), ("b", "bolt")]
            )
    with scope_all():
        assert set(Job.objects.values_list("tenant_id", "lane")) == {
            ("default", None),
            ("acme", "a"),
            ("bolt", None),
        }
    assert row(job_id).tenant_id == "acme"


def test_a_statement_cannot_write_a_row_of_another_tenant():
    with tenant_context("acme"), pytest.raises(ProgrammingError, match="row-level security"):
        JobPayload.objects.create(job_id=WORKER, tenant_id="bolt", args={})


def test_a_worker_statement_sees_all_tenants_and_the_context_is_as_before():
    with tenant_context("acme"):
        leases = claim_many(9)
        assert len(leases) == 6
        assert both() == (1, 1)


def test_a_worker_statement_in_a_callers_transaction_puts_back_what_it_widened():
    with transaction.atomic():
        assert len(claim_many(9)) == 6
        assert (settings_now(), seen()) == (("", ""), 3)


# ------------------------------------------------------------------ B131, B133: one connection, many requests


def test_b131_requests_on_one_connection_never_see_each_others_tenant():
    pid = connection.connection.info.backend_pid
    with tenant_context("acme"):
        assert both() == (1, 1)
    assert settings_now() == ("", "")
    with contextlib.suppress(ZeroDivisionError), tenant_context("acme"), transaction.atomic():
        seen()
        raise ZeroDivisionError
    assert settings_now() == ("", "")
    with tenant_context("bolt"):
        assert both() == (2, 2)
    assert connection.connection.info.backend_pid == pid


def test_b133_a_setting_that_once_was_set_reads_as_no_tenant_afterwards():
    with tenant_context("acme"):
        seen()
    with connection.cursor() as cursor:
        cursor.execute("select current_setting('pgbroker.tenant_id', true)")
        assert cursor.fetchone() == ("",)
    assert both() == (3, 3)


# ------------------------------------------------------------------ threads, async, pools


def test_b141_threads_have_a_context_each():
    def work(tenant: str) -> tuple[str, int]:
        try:
            with tenant_context(tenant):
                counts = {seen() for _ in range(20)}
            return tenant, *counts
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(work, ["acme", "bolt", "nobody"] * 8))

    assert set(answers) == {("acme", 1), ("bolt", 2), ("nobody", 0)}


def test_b141_interleaved_requests_on_one_event_loop_keep_their_tenants():
    expected = {"acme": 1, "bolt": 2, "nobody": 0}

    async def request(tenant: str) -> list[int]:
        with tenant_context(tenant):
            counts = []
            for _ in range(10):
                await asyncio.sleep(0)
                counts.append(await sync_to_async(seen)())
                counts.append(await Job.objects.acount())
            counts.append(len([job async for job in Job.objects.aiterator(chunk_size=1)]))
            return counts

    async def requests() -> dict[str, list[list[int]]]:
        answers = await asyncio.gather(*(request(tenant) for tenant in list(expected) * 8))
        await sync_to_async(connections.close_all)()
        return answers

    for tenant, counts in zip(list(expected) * 8, asyncio.run(requests()), strict=True):
        assert set(counts) == {expected[tenant]}


@pytest.fixture
def pooled():
    """The alias `default` with a pool of two connections, for this test."""
    plain = connections["default"]
    plain.close()
    settings = copy.deepcopy(plain.settings_dict)
    plain.settings_dict["OPTIONS"] = {**settings["OPTIONS"], "pool": {"min_size": 1, "max_size": 2}}
    yield
    connections["default"].close()
    connections["default"].close_pool()
    plain.settings_dict["OPTIONS"] = settings["OPTIONS"]


def test_a_pooled_connection_goes_back_without_a_tenant(pooled):
    pids = set()
    for tenant, number in [("acme", 1), ("bolt", 2), ("nobody", 0)] * 3:
        with tenant_context(tenant), transaction.atomic():
            assert both() == (number, number)
        pids.add(connection.connection.info.backend_pid)
        connection.close()
        assert (settings_now(), both()) == (("", ""), (3, 3))
        connection.close()

    assert len(pids) <= 2


def test_a_job_enqueued_in_a_context_belongs_to_it_and_so_does_its_payload(pooled):
    with tenant_context("acme"):
        job_id = enqueue_one(job_type=TYPE)
        assert JobPayload.objects.get(pk=job_id).tenant_id == "acme"
    assert not JobPayload.objects.filter(pk=job_id).exists()
    assert correlation.tenant.get() is None


@pytest.mark.django_db
def test_several_statements_in_one_text_run_as_the_tenant_of_the_context() -> None:
    with tenant_context("acme"):
        enqueue_one()

    with tenant_context("acme"), connection.cursor() as cursor:
        cursor.execute("select 1; select array_agg(distinct tenant_id::text) from pgbroker.job")
        cursor.nextset()
        assert cursor.fetchone() == (["acme"],)

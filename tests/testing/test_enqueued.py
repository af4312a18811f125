"""What a test can find out about what was enqueued, and what a failing assertion says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest.mock import ANY

import pytest
from django.db import connection, transaction
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from pgbroker import JobContext, job, models, registry, run_group, schedule, tenant_context
from pgbroker.errors import (
    GroupNotFound,
    InvalidArgument,
    InvalidOption,
    InvalidTenant,
    UnknownJobType,
    UnknownQueue,
)
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.references import GroupRef
from pgbroker.schedules import operate
from pgbroker.schedules.declare import declarations
from pgbroker.schedules.sync import sync
from pgbroker.states import Status
from pgbroker.testing import EnqueuedJob, age, all_enqueued, assert_enqueued, refute_enqueued, run_jobs
from tests.support.jobs import queue_id, type_id


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal


@job(name="tests.shop.send_receipt", queue_name="tests.mail")
def send_receipt(order_id: int, resend: bool = False, day: date | None = None) -> None: ...


@job(name="tests.shop.price", takes_context=True, aliases=["tests.shop.quote"])
def price(context: JobContext, lines: list[Line], *codes: str, **rates: Decimal) -> None: ...


@job(name="tests.shop.close", priority=10)
def close() -> None: ...


def failure(**asked: Any) -> str:
    """Return what `assert_enqueued` says when it fails."""
    job_, count = asked.pop("job", None), asked.pop("count", None)
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(job_, count=count, **asked)
    return str(caught.value)


class TestWhatMatches(TestCase):
    def test_a_job_is_found_by_its_task_its_name_and_a_former_name(self) -> None:
        price.enqueue([])

        assert (
            assert_enqueued(price)
            == assert_enqueued("tests.shop.price")
            == assert_enqueued("tests.shop.quote")
        )
        assert [each.job_type for each in all_enqueued()] == ["tests.shop.price"]
        refute_enqueued(close)

    def test_a_call_stored_under_a_former_name_is_found_under_the_new_one(self) -> None:
        type_id("tests.shop.quote")
        enqueue_rows([{"job_type": "tests.shop.quote", "args": {"v": 1, "args": [[]], "kwargs": {}}}])

        assert [each.job_type for each in assert_enqueued(price)] == ["tests.shop.price"]

    def test_arguments_match_however_they_were_given(self) -> None:
        send_receipt.enqueue(7)
        send_receipt.enqueue(order_id=8, resend=True)

        for asked in (
            {"args": [7]},
            {"kwargs": {"order_id": 7}},
            {"kwargs": {"order_id": 7, "resend": False}},
        ):
            assert [each.arguments["order_id"] for each in all_enqueued(send_receipt, **asked)] == [7]
        assert len(assert_enqueued(send_receipt, args=[8, True])) == 1
        refute_enqueued(send_receipt, args=[7, True])

    def test_arguments_have_the_types_that_the_handler_takes(self) -> None:
        lines = [Line("book", Decimal("9.90"))]
        price.enqueue(lines, "a", "b", vat=Decimal("0.20"))
        send_receipt.enqueue(7, day=date(2026, 3, 1))

        (found,) = assert_enqueued(price, kwargs={"lines": lines, "vat": Decimal("0.2")})
        assert found.arguments == {"lines": lines, "codes": ("a", "b"), "vat": Decimal("0.20")}
        assert_enqueued(price, args=[lines, "a", "b"])
        refute_enqueued(price, args=[lines, "a"])
        assert_enqueued(send_receipt, kwargs={"day": date(2026, 3, 1)})
        refute_enqueued(send_receipt, kwargs={"day": date(2026, 3, 2)})

    def test_a_matcher_decides_by_its_own_equality(self) -> None:
        send_receipt.enqueue(7)

        assert_enqueued(send_receipt, kwargs={"order_id": ANY})
        assert_enqueued(send_receipt, kwargs={"order_id": pytest.approx(7.1, abs=0.2)})

    def test_true_is_not_one(self) -> None:
        type_id("tests.shop.elsewhere")
        stored = {"v": 1, "args": [1], "kwargs": {}}
        enqueue_rows([{"job_type": "tests.shop.elsewhere", "args": stored}])

        assert_enqueued("tests.shop.elsewhere", args=[1])
        refute_enqueued("tests.shop.elsewhere", args=[True])

    def test_what_the_handler_does_not_take_is_shown_as_it_is_stored(self) -> None:
        queue_id("tests.mail")
        type_id("tests.shop.send_receipt")
        enqueue_rows(
            [
                {
                    "job_type": "tests.shop.send_receipt",
                    "args": {"v": 1, "args": [], "kwargs": {"order": "x"}},
                },
                {"job_type": "tests.shop.send_receipt", "args": {"v": 1, "args": ["y", 2], "kwargs": {}}},
            ]
        )

        assert [each.arguments for each in all_enqueued()] == [{"order": "x"}, {"args[0]": "y", "args[1]": 2}]

    def test_queue_priority_and_tenant_narrow_the_search(self) -> None:
        send_receipt.enqueue(1)
        with tenant_context("acme"):
            send_receipt.using(priority=-5).enqueue(2)

        def ids(**asked: Any) -> list[int]:
            return [each.arguments["order_id"] for each in all_enqueued(send_receipt, **asked)]

        assert ids() == ids(queue="tests.mail") == [1, 2]
        assert (ids(queue="default"), ids(priority=-5), ids(priority=0)) == ([], [2], [1])
        assert (ids(tenant="acme"), ids(tenant="default"), ids(tenant="globex")) == ([2], [1], [])

    def test_some_of_the_tags_are_enough_and_what_is_missing_is_told(self) -> None:
        close.options(tags=["monthly", "billing"]).enqueue()
        close.enqueue()

        (found,) = assert_enqueued(close, tags=["billing"])
        text = failure(job=close, tags=["billing", "yearly"])

        assert found.tags == ("monthly", "billing")
        assert text.splitlines()[:4] == [
            "no job that is yet to run matches tests.shop.close, tags billing, yearly.",
            "Yet to run, the most similar first:",
            "  tests.shop.close(): ready, queue default, priority 10, tags monthly, billing",
            "      tag 'yearly' is missing",
        ]
        with pytest.raises(InvalidOption, match="tags"):
            refute_enqueued(tags=[""])

    def test_the_time_may_be_an_instant_or_a_wait_and_differ_by_a_tolerance(self) -> None:
        instant = timezone.now() + timedelta(hours=1)
        close.using(run_after=instant).enqueue()
        close.enqueue()

        (later,) = assert_enqueued(close, run_after=timedelta(hours=1))
        (now,) = assert_enqueued(close, run_after=timedelta(0))
        assert (later.status, later.run_after, now.status) == (Status.SCHEDULED, instant, Status.READY)
        assert assert_enqueued(close, run_after=instant + timedelta(seconds=4)) == [later]
        refute_enqueued(close, run_after=instant + timedelta(seconds=6))
        refute_enqueued(close, run_after=instant + timedelta(seconds=2), tolerance=timedelta(seconds=1))
        assert_enqueued(close, run_after=instant + timedelta(hours=2), tolerance=timedelta(hours=2))

    def test_a_wait_is_counted_from_the_enqueueing_however_old_the_row_is(self) -> None:
        close.using(run_after=timedelta(hours=1)).enqueue()

        age(minutes=30)

        assert_enqueued(close, run_after=timedelta(hours=1))

    def test_what_has_run_is_not_enqueued_any_more(self) -> None:
        close.enqueue()

        run_jobs()

        refute_enqueued()
        assert all_enqueued() == []

    def test_a_count_holds_exactly(self) -> None:
        close.enqueue()
        close.enqueue()

        assert len(assert_enqueued(close, count=2)) == 2
        text = failure(job=close, count=1)
        assert text.startswith(
            "2 jobs are yet to run, not 1, and match tests.shop.close:\n  tests.shop.close(): ready"
        )


class TestGroups(TestCase):
    def test_a_job_is_found_by_its_run_group_and_its_name_there(self) -> None:
        with run_group("import") as imported:
            imported.enqueue(send_receipt.bind(1), name="first")
            imported.enqueue(send_receipt.bind(2))
        with run_group("other"):
            close.options(group="other", name="first").enqueue()
        send_receipt.enqueue(3)

        for group in ("import", imported, GroupRef("import")):
            assert [each.arguments["order_id"] for each in assert_enqueued(send_receipt, group=group)] == [
                1,
                2,
            ]
        (first,) = assert_enqueued(group="import", name="first")
        assert (first.group, first.name) == ("import", "first")
        assert {each.group for each in all_enqueued(name="first")} == {"import", "other"}
        refute_enqueued(close, group="import")
        refute_enqueued(send_receipt, name="second")
        assert [(each.group, each.name) for each in all_enqueued(send_receipt, args=[3])] == [(None, None)]

    def test_what_a_tick_of_a_schedule_makes_is_in_the_group_of_the_tick(self) -> None:
        registry.synchronise(using="default")
        self.addCleanup(declarations.forget, "refresh")
        schedule(
            "refresh",
            [close.bind(), send_receipt.options(name="receipt").bind(7)],
            cron="0 2 * * *",
            timezone="UTC",
            group={"tolerate": 1},
        )
        sync(using="default")

        made = operate.run_now("refresh")

        found = all_enqueued()
        assert len({each.group for each in found}) == 1
        (group,) = {each.group for each in found}
        assert models.RunGroup.objects.get(id=made.run_group_id).name == group
        assert_enqueued(send_receipt, group=group, name="receipt", count=1)

    def test_groups_of_all_tenants_are_looked_at_unless_one_is_named(self) -> None:
        with tenant_context("acme"), run_group("import") as theirs:
            theirs.enqueue(close.bind())

        assert [each.tenant_id for each in assert_enqueued(close, group="import")] == ["acme"]
        assert_enqueued(close, group="import", tenant="acme")
        with pytest.raises(GroupNotFound):
            refute_enqueued(close, group="import", tenant="globex")

    def test_a_failure_tells_the_group_and_the_name(self) -> None:
        with run_group("import") as imported:
            imported.enqueue(close.bind(), name="last")
        with run_group("other"):
            pass

        text = failure(job=close, group="other", name="first")

        assert "matches tests.shop.close, group other, name first." in text
        assert "tests.shop.close(): ready, queue default, priority 10, group import, name last" in text
        assert "      group is 'import', not 'other'\n      name is 'last', not 'first'" in text

    def test_a_group_that_is_not_there_is_an_error_that_tells_which_are(self) -> None:
        with pytest.raises(GroupNotFound, match=r"no run group 'import'\. There is none at all\."):
            refute_enqueued(close, group="import")
        with run_group("import-2026"):
            pass
        with pytest.raises(
            GroupNotFound, match=r"no run group 'import'\. The newest there are: 'import-2026'\."
        ):
            assert_enqueued(close, group="import")
        with pytest.raises(InvalidOption, match="group is a int"):
            refute_enqueued(close, group=7)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="name has 0 characters"):
            refute_enqueued(close, name="")

    def test_the_names_of_groups_cost_no_query_of_their_own(self) -> None:
        with run_group("import") as imported:
            for _ in range(20):
                imported.enqueue(close.bind())

        with CaptureQueriesContext(connection) as queries:
            assert_enqueued(close, group="import", count=20)

        # Whether it is there, and the one that lists the jobs.
        assert len([each for each in queries if "run_group" in each["sql"]]) == 2


class TestWhatNothingCanMatch(TestCase):
    """Refuting it would pass for ever, so it is an error."""

    def test_names_that_are_not_there(self) -> None:
        with pytest.raises(UnknownJobType):
            refute_enqueued("tests.shop.send_reciept")
        with pytest.raises(UnknownQueue):
            refute_enqueued(queue="tests.nail")
        with pytest.raises(InvalidTenant):
            refute_enqueued(tenant="no such/tenant")
        with pytest.raises(InvalidOption, match="job is 7"):
            refute_enqueued(7)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="priority"):
            refute_enqueued(priority=101)
        with pytest.raises(InvalidOption, match=r"run_after is datetime\.date"):
            assert_enqueued(close, run_after=date(2027, 1, 1))  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="naive"):
            refute_enqueued(run_after=datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(InvalidOption, match="refute_enqueued"):
            assert_enqueued(close, count=0)

    def test_arguments_that_the_handler_does_not_take(self) -> None:
        with pytest.raises(InvalidArgument, match="order"):
            refute_enqueued(send_receipt, kwargs={"order": 7})
        with pytest.raises(InvalidArgument) as enqueued:
            send_receipt.enqueue(order=7)
        with pytest.raises(InvalidArgument) as asserted:
            assert_enqueued(send_receipt, kwargs={"order": 7})
        assert str(asserted.value) == str(enqueued.value)
        with pytest.raises(InvalidArgument, match="twice"):
            refute_enqueued(send_receipt, args=[ANY], kwargs={"order_id": 7})
        with pytest.raises(InvalidArgument, match="too many"):
            refute_enqueued(close, args=[1])
        with pytest.raises(InvalidArgument, match="order_id"):
            refute_enqueued(send_receipt, kwargs={"order_id": "7"})
        with pytest.raises(InvalidArgument, match="day"):
            refute_enqueued(send_receipt, kwargs={"day": "2026-03-01"})

    def test_a_task_that_goes_elsewhere(self) -> None:
        backend = f"{type(_immediate()).__module__}.{type(_immediate()).__qualname__}"
        with (
            override_settings(TASKS={"default": {"BACKEND": backend, "QUEUES": []}}),
            pytest.raises(InvalidOption, match=r"ImmediateBackend by TASKS\['default'\]"),
        ):
            refute_enqueued(close)


def _immediate() -> Any:
    try:
        from django.tasks.backends.immediate import ImmediateBackend
    except ImportError:
        from django_tasks.backends.immediate import ImmediateBackend
    return ImmediateBackend("x", {})


class TestWhatAFailureSays(TestCase):
    def test_the_most_similar_comes_first_with_what_differs(self) -> None:
        close.enqueue()
        send_receipt.using(queue_name="default").enqueue(8, resend=True)
        send_receipt.enqueue(8)

        text = failure(job=send_receipt, kwargs={"order_id": 7, "resend": False}, queue="tests.mail")

        assert text.splitlines() == [
            "no job that is yet to run matches "
            "tests.shop.send_receipt(order_id=7, resend=False), queue tests.mail.",
            "Yet to run, the most similar first:",
            "  tests.shop.send_receipt(order_id=8, resend=False, day=None): ready, queue tests.mail, priority 0",
            "      order_id is 8, not 7",
            "  tests.shop.send_receipt(order_id=8, resend=True, day=None): ready, queue default, priority 0",
            "      order_id is 8, not 7",
            "      resend is True, not False",
            "      queue is 'default', not 'tests.mail'",
            "  tests.shop.close(): ready, queue default, priority 10",
            "      is another job",
        ]

    def test_priority_tenant_and_time_are_told_as_well(self) -> None:
        instant = datetime(2090, 1, 2, 3, 4, tzinfo=UTC)
        with tenant_context("acme"):
            close.using(run_after=instant).enqueue()

        text = failure(job=close, priority=3, tenant="globex", run_after=instant - timedelta(minutes=1))

        assert (
            "tests.shop.close(): scheduled for 2090-01-02 03:04:00+0000, queue default, priority 10, tenant acme"
            in text
        )
        assert "priority is 10, not 3" in text
        assert "tenant is 'acme', not 'globex'" in text
        assert (
            "is to be run at 2090-01-02 03:04:00+00:00, not at 2090-01-02 03:03:00+00:00 (60 s apart, 5 s allowed)"
            in text
        )

    def test_a_wait_that_differs_is_told_as_a_wait(self) -> None:
        close.enqueue()

        assert "is to be run at once, not 60 s after it was enqueued (60 s apart" in failure(
            job=close, run_after=timedelta(minutes=1)
        )

    def test_nothing_enqueued_is_told(self) -> None:
        assert failure(job=close) == (
            "no job that is yet to run matches tests.shop.close.\nNothing is yet to run."
        )

    def test_what_matches_but_has_run_is_told(self) -> None:
        close.enqueue()
        run_jobs()

        assert re.search(
            r"Nothing is yet to run\.\nThese match, but have run or do:\n  tests\.shop\.close\(\): completed,",
            failure(job=close),
        )

    def test_a_long_list_and_long_values_are_cut(self) -> None:
        for number in range(8):
            send_receipt.enqueue(number)
        price.enqueue([Line("x" * 5000, Decimal(1))])

        text = failure(job=close)
        long = failure(job=price, kwargs={"lines": []})

        assert text.count("is another job") == 5
        assert text.endswith("… and 4 more")
        assert len(long) < 2000
        assert "characters)" in long

    def test_a_value_whose_repr_raises_does_not_hide_the_failure(self) -> None:
        class Odd:
            def __repr__(self) -> str:
                raise RuntimeError

        send_receipt.enqueue(1)

        assert "order_id is 1, not <Odd, whose repr raises RuntimeError>" in failure(
            job=send_receipt, kwargs={"order_id": Odd()}
        )

    def test_hooks_that_wait_for_a_commit_are_named_as_what_may_be_missing(self) -> None:
        transaction.on_commit(lambda: close.enqueue())
        send_receipt.enqueue(1)  # has a hook of pgbroker's own

        text = failure(job=close)

        assert "1 call(s) of transaction.on_commit wait for a commit" in text
        with self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: close.enqueue())
        assert_enqueued(close)

    def test_a_refuted_job_is_shown(self) -> None:
        send_receipt.enqueue(7)

        with pytest.raises(AssertionError) as caught:
            refute_enqueued(send_receipt, kwargs={"order_id": 7})

        assert str(caught.value).splitlines() == [
            "1 job is yet to run, though none should match tests.shop.send_receipt(order_id=7):",
            "  tests.shop.send_receipt(order_id=7, resend=False, day=None): ready, queue tests.mail, priority 0",
        ]


class TestWhatIsReturned(TestCase):
    def test_a_job_has_what_its_call_said(self) -> None:
        with tenant_context("acme"):
            result = send_receipt.options(
                idempotency_key="once", correlation_id="abc", max_attempts=3
            ).enqueue(7)

        (found,) = assert_enqueued(send_receipt)

        assert isinstance(found, EnqueuedJob)
        assert (str(found.id), found.tenant_id, found.queue) == (result.id, "acme", "tests.mail")
        assert (found.idempotency_key, found.correlation_id, found.max_attempts) == ("once", "abc", 3)

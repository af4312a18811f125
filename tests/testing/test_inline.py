"""Jobs that run as soon as the code that enqueued them has committed."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.test import TestCase

from pgbroker import control, enqueue_many, job
from pgbroker.compat import TaskResultStatus, task_enqueued, task_finished
from pgbroker.models import Job
from pgbroker.states import Status
from pgbroker.testing import Ran, inline_jobs
from tests.support.jobs import status

seen: list[object] = []


@job(name="tests.inline.note")
def note(what: str) -> str:
    seen.append(what)
    return what


@job(name="tests.inline.chain")
def chain(left: int) -> None:
    seen.append(left)
    if left:
        with transaction.atomic():
            chain.enqueue(left - 1)
        note.enqueue("after the block")


@job(name="tests.inline.endless")
def endless() -> None:
    endless.enqueue()


@job(name="tests.inline.fails", max_attempts=1)
def fails() -> None:
    raise LookupError("no such order")


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


class TestInATestCase(TestCase):
    def test_a_job_has_run_when_enqueue_returns_and_its_result_can_be_read(self) -> None:
        with inline_jobs() as ran:
            result = note.enqueue("a")

            assert seen == ["a"]

        result.refresh()
        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, "a")
        assert [each.result for each in ran] == ["a"]

    def test_a_job_does_not_run_before_the_code_s_outermost_block_has_ended(self) -> None:
        with inline_jobs():
            with transaction.atomic():
                with transaction.atomic():
                    note.enqueue("a")
                assert seen == []
            assert seen == ["a"]

    def test_what_is_rolled_back_does_not_run(self) -> None:
        with inline_jobs() as ran:
            with transaction.atomic():
                note.enqueue("a")
                transaction.set_rollback(True)
            note.enqueue("b")

        assert (seen, len(ran)) == (["b"], 1)

    def test_calls_in_bulk_run(self) -> None:
        with inline_jobs():
            enqueue_many([note.bind("a"), note.bind("b")])

        assert sorted(map(str, seen)) == ["a", "b"]

    def test_jobs_of_jobs_run_after_the_job_that_enqueued_them(self) -> None:
        with inline_jobs() as ran:
            chain.enqueue(2)

        assert [each for each in seen if isinstance(each, int)] == [2, 1, 0]
        assert len(ran) == 5

    def test_a_job_enqueued_on_commit_runs(self) -> None:
        with inline_jobs():
            with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
                transaction.on_commit(lambda: note.enqueue("a"))
            assert seen == ["a"]

    def test_a_retried_job_runs(self) -> None:
        failed = fails.enqueue()
        with inline_jobs() as ran:
            note.enqueue("a")
            assert status(failed_id := ran[0].job_id) == Status.DEAD_LETTER
            control.retry(failed)

        assert [each.job_id for each in ran].count(failed_id) == 2

    def test_an_error_stays_with_its_job_unless_it_is_asked_for(self) -> None:
        with inline_jobs() as ran:
            fails.enqueue()

            assert isinstance(ran[0].error, LookupError)
        with inline_jobs(reraise=True) as raised:
            with pytest.raises(LookupError, match="no such order"):
                fails.enqueue()
            with pytest.raises(LookupError), transaction.atomic():
                fails.enqueue()

        assert [each.status for each in raised] == [Status.DEAD_LETTER] * 2

    def test_jobs_without_end_are_an_error(self) -> None:
        with inline_jobs(limit=20), pytest.raises(AssertionError, match=r"20 jobs ran.*itself"):
            endless.enqueue()

    def test_what_is_scheduled_waits(self) -> None:
        with inline_jobs():
            note.using(run_after=timedelta(hours=1)).enqueue("a")

        assert seen == []

    def test_afterwards_jobs_wait_again(self) -> None:
        with inline_jobs():
            pass
        note.enqueue("a")

        assert seen == []
        assert Job.objects.get().status == Status.READY

    def test_the_signal_of_the_enqueueing_comes_before_that_of_the_end(self) -> None:
        told: list[str] = []

        def enqueued(**_: object) -> None:
            told.append("enqueued")

        def finished(**_: object) -> None:
            told.append("finished")

        task_enqueued.connect(enqueued)
        task_finished.connect(finished)
        try:
            with inline_jobs():
                note.enqueue("a")
        finally:
            task_enqueued.disconnect(enqueued)
            task_finished.disconnect(finished)

        assert told == ["enqueued", "finished"]

    async def test_an_async_test_enqueues_and_the_job_has_run(self) -> None:
        with inline_jobs():
            await note.aenqueue("a")
            await sync_to_async(_note_in_a_block)("b")

            assert seen == ["a", "b"]


def _note_in_a_block(what: str) -> None:
    with transaction.atomic():
        note.enqueue(what)
        assert what not in seen


@pytest.mark.django_db(transaction=True)
class TestInAutocommit:
    def test_a_job_runs_once_the_block_has_committed(self) -> None:
        with inline_jobs():
            with transaction.atomic():
                note.enqueue("a")
                assert seen == []
            assert seen == ["a"]
            note.enqueue("b")
            assert seen == ["a", "b"]

    def test_calls_in_bulk_run_once_they_are_all_stored(self) -> None:
        with inline_jobs():
            enqueue_many([note.bind("a"), note.bind("b")])

        assert sorted(map(str, seen)) == ["a", "b"]

    def test_a_job_of_another_thread_runs_there_as_a_live_server_s_does(self) -> None:
        def work() -> None:
            try:
                with transaction.atomic():
                    note.enqueue("a")
                seen.append(threading.get_ident() == thread.ident)
            finally:
                connection.close()

        with inline_jobs():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(20)

        assert seen == ["a", True]


def test_the_fixture_holds_for_the_whole_test(inline_jobs: list[Ran]) -> None:
    note.enqueue("a")

    assert [each.result for each in inline_jobs] == ["a"]

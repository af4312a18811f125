"""explain of a job whose reference came to nothing: what a retry would come to, by what there is now."""

from __future__ import annotations

from uuid import UUID

import pytest

from pgbroker import get_job
from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.unblock import unblock_many
from pgbroker.models import JobDependency
from pgbroker.policy.why_not_running import Explanation
from pgbroker.states import Status
from tests.support.groups import after, fail, member, open_group
from tests.support.jobs import enqueue_one, reason, status
from tests.support.links import deadlines_pass, deferred, passes, seal

pytestmark = pytest.mark.django_db


def explain(job_id: UUID) -> Explanation:
    assert reason(job_id) == "reference_expired"
    return get_job(job_id).explain()


def expired(name: str | None = None, *, on_failure: str = "cancel") -> UUID:
    reference = {"group": "later", "within_seconds": 5, **({"job": name} if name else {})}
    job = after(reference, on_failure=on_failure)
    deadlines_pass(job)
    deferred()
    return job


def retried(job: UUID) -> None:
    """Do what a cure says, and let the passes of the upkeep go over it."""
    assert [each.outcome for each in retry_many([job])] == ["retried"]
    passes()
    deferred()
    passes()


def in_a_circle(*, on_failure: str = "cancel", of_member: str = "cancel") -> tuple[UUID, UUID]:
    """A job that refers to a group, and a member of the group that waits for the job."""
    job = after({"group": "later", "within_seconds": 3600}, on_failure=on_failure)
    made = open_group("later")
    member("later", depends_on=[str(job)], on_failure=of_member)
    deferred()
    passes()
    return job, made


def test_a_reference_in_a_circle_says_so_and_that_a_retry_does_not_help():
    job, made = in_a_circle()

    told = explain(job)

    assert "It would wait for itself: run group later is there, and waits for it." in told.sentence
    assert (told.code, told.ids) == ("cancelled", (made,))
    assert told.cure == (
        "Enqueue it anew, without that reference. A retry ends the same way as long as run group later waits for it: "
        f"look there who does (broker_groups show {made})."
    )
    retried(job)
    assert (status(job), explain(job).cure) == (Status.CANCELLED, told.cure), "and it was true"


def test_a_blocked_one_in_a_circle_is_unblocked():
    job, _ = in_a_circle(on_failure="block")

    assert explain(job).cure.startswith(
        f"Let it run without (broker_jobs unblock {job}). A retry ends the same way"
    )
    cancel_many([job])
    retried(job)
    assert status(job) == Status.BLOCKED
    unblock_many([job])
    assert status(job) == Status.READY


def test_once_nobody_waits_for_it_any_more_it_is_retried():
    job, made = in_a_circle(of_member="ignore")

    told = explain(job)

    assert "By now run group later is there." in told.sentence
    assert told.cure.startswith(f"Retry it (broker_jobs retry {job}): it waits for that then.")
    retried(job)
    assert (status(job), get_job(job).explain().ids) == (Status.WAITING, (made,))


def test_a_circle_that_was_closed_after_the_time_was_over_is_told_too():
    job = expired("one")
    open_group("later")
    one = member("later", name="one", depends_on=[str(job)])
    passes()

    told = explain(job)

    assert "It would wait for itself: job one of run group later is there" in told.sentence
    assert (told.ids, f"broker_jobs explain {one}" in told.cure) == ((one,), True)


def test_what_came_too_late_and_failed_is_retried_first():
    job, other = expired("one"), expired(on_failure="block")
    made = open_group("later")
    one = member("later", name="one")
    seal(made)
    fail(one)
    passes()

    assert "By now job one of run group later is there, and failed." in explain(job).sentence
    assert explain(job).cure.startswith(
        f"Retry job one of run group later (broker_jobs retry {one}), then retry it (broker_jobs retry {job})."
    )
    assert f"retry run group later (broker_groups retry {made}), then cancel it and" in explain(other).cure


def test_what_is_too_deep_is_too_deep_after_a_retry():
    job = after({"group": "later", "job": "last", "within_seconds": 3600})
    open_group("later")
    last = member("later", name="last", depends_on=[str(enqueue_one())])
    # As if a chain of that length were above it.
    JobDependency.objects.filter(dependent_id=last).update(level=10_000)
    deferred()
    passes()

    told = explain(job)

    assert told.cure.startswith("Enqueue it anew, without that reference. A retry ends the same way")
    retried(job)
    assert (status(job), explain(job).cure) == (Status.CANCELLED, told.cure)

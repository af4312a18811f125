"""explain: the one true reason why a job does not run, with ids, and what to do about it."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.db import connection

from pgbroker import control, get_job
from pgbroker.errors import JobNotFound
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.lifecycle.release import release
from pgbroker.models import Job, JobDependency
from pgbroker.policy.job_facts import NAMED_MAX
from pgbroker.policy.why_not_running import Explanation
from pgbroker.states import Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.factories import JobFactory, WorkerFactory
from tests.support.groups import after, fail, member, open_group
from tests.support.jobs import (
    OTHER_TYPE,
    TYPE,
    WORKER,
    age,
    alive,
    claim_many,
    claim_one,
    completed,
    enqueue_one,
    failed,
    guards_off,
    reason,
    settle_one,
    snoozed,
    status,
    type_id,
)
from tests.support.links import deadlines_pass, deferred, passes, seal
from tests.support.links import run as run_one

pytestmark = pytest.mark.django_db


def explain(job_id: UUID) -> Explanation:
    told = get_job(job_id).explain()
    assert told.sentence.endswith((".", ")."))
    assert "since at" not in told.sentence
    assert told.cure
    return told


def busy(slots: int = 4, running: int = 0, *, queues: tuple[str, ...] = ("default",)) -> None:
    """A worker that lives, with so many of its slots taken."""
    WorkerFactory(slots=slots, running=running, queues=list(queues))


# ------------------------------------------------------------------ over


def test_a_completed_job_is_over():
    job = enqueue_one()
    settle_one(completed(claim_one()))

    told = explain(job)

    assert (told.code, told.ids) == ("completed", ())
    assert "attempt 1 of 5" in told.sentence


@pytest.mark.parametrize(("attempts", "permanent", "code"), [(1, False, "dead_letter"), (5, True, "failed")])
def test_a_job_that_ended_badly_says_how_and_where_to_look(attempts, permanent, code):
    job = enqueue_one(max_attempts=attempts)
    settle_one(failed(claim_one(), permanent=permanent))

    told = explain(job)

    assert told.code == code
    assert "boom" in told.sentence
    assert f"broker_jobs show {job}" in told.cure


def test_a_cancelled_job_says_by_whom_and_why():
    job = enqueue_one()
    control.cancel(job, reason="wrong month.", by="ada")

    told = explain(job)

    assert told.code == "cancelled"
    assert "by ada: wrong month." in told.sentence
    assert "month.." not in told.sentence


def test_a_job_cancelled_along_names_the_root_cause_and_what_it_waited_for():
    root = enqueue_one()
    middle = after(root)
    last = after(middle)
    fail(root)
    passes()

    told = explain(last)

    assert told.code == "prerequisite_failed"
    assert told.ids == (middle, root)
    assert f"The cause is job {root} (tests.ok, failed)." in told.sentence
    assert f"broker_jobs retry {root}" in told.cure


@pytest.mark.parametrize("policy", ["cancel", "block"])
def test_a_job_whose_cause_was_retried_is_told_to_come_back_and_not_to_retry_it_again(policy):
    root = enqueue_one()
    job = after(root, on_failure=policy)
    fail(root)
    passes()
    control.retry(root)

    told = explain(job)

    assert told.code == {"cancel": "prerequisite_failed", "block": "blocked"}[policy]
    assert "retry" not in told.cure
    assert "brings this one back" in told.cure
    passes()
    assert status(job) == Status.WAITING


@pytest.mark.parametrize("policy", ["cancel", "block"])
def test_where_two_went_wrong_the_other_one_is_named_once_the_first_lives_again(policy):
    first, second = enqueue_one(), enqueue_one()
    job = after(first, second, on_failure=policy)
    fail(first)
    fail(second)
    passes()
    other = second if f"broker_jobs retry {first}" in explain(job).cure else first
    control.retry(first if other == second else second)

    told = explain(job)

    assert f"broker_jobs retry {other}" in told.cure


@pytest.mark.parametrize("policy", ["cancel", "block"])
def test_where_several_went_wrong_the_cure_names_all_of_them(policy):
    causes = sorted((enqueue_one(), enqueue_one()))
    group = open_group("two words")
    members = [member("two words") for _ in range(2)]
    job = after(*causes, {"group": "two words"}, on_failure=policy)
    seal(group)
    for each in (*causes, *members):
        fail(each)
    passes()

    told = explain(job)

    typed = f"(broker_jobs retry {causes[0]} {causes[1]}, broker_groups retry 'two words')"
    assert f"etry all that is in its way {typed}" in told.cure


def test_of_a_group_with_several_bad_members_the_cure_is_to_retry_the_group():
    group = open_group("two words")
    bad = [member("two words") for _ in range(2)]
    waiting = after({"group": "two words"})
    seal(group)
    for each in bad:
        fail(each)
    passes()

    told = explain(waiting)

    assert "Retry the cause (broker_groups retry 'two words'): then it comes back" in told.cure


@pytest.mark.parametrize("policy", ["cancel", "block"])
def test_a_job_that_waits_for_a_group_that_was_retried_is_told_to_come_back(policy):
    group = open_group("import")
    bad = member("import")
    waiting = after({"group": "import"}, on_failure=policy)
    seal(group)
    fail(bad)
    passes()
    control.retry(bad)

    told = explain(waiting)

    assert "retry" not in told.cure
    assert "brings this one back" in told.cure
    passes()
    assert status(waiting) == Status.WAITING


@pytest.mark.parametrize("policy", ["cancel", "block"])
def test_a_job_whose_cause_was_replaced_is_told_so(policy):
    first = enqueue_one(idempotency_key="k")
    job = after(first, on_failure=policy)
    (answer,) = enqueue_rows([{"job_type": TYPE, "idempotency_key": "k", "on_conflict": "replace"}])
    passes()

    told = explain(job)

    assert (answer.outcome, status(first)) == ("replaced", Status.CANCELLED)
    assert "Another job took the place of the cause" in told.cure
    assert "retry" not in told.cure


def test_of_a_group_the_member_that_failed_is_the_cause():
    group = open_group("import")
    bad = member("import")
    waiting = after({"group": "import"})
    seal(group)
    fail(bad)
    passes()

    told = explain(waiting)

    assert (status(waiting), told.code) == (Status.CANCELLED, "prerequisite_failed")
    assert told.ids == (group, bad)
    assert "run group import, failed" in told.sentence


# ------------------------------------------------------------------ under way


def test_a_running_job_names_its_worker():
    alive()
    job = enqueue_one()
    claim_one()

    told = explain(job)

    assert (told.code, told.ids) == ("running", (WORKER,))
    assert f"worker w, h:1 ({WORKER})" in told.sentence


def test_a_running_job_that_was_asked_to_stop_says_so():
    job = enqueue_one()
    claim_one()
    control.cancel(job, reason="wrong month")

    told = explain(job)

    assert (told.code, told.ids) == ("cancel_requested", (WORKER,))
    assert "was asked to stop" in told.sentence
    assert "wrong month" in told.sentence


def test_a_lease_that_ran_out_is_told():
    job = enqueue_one()
    claim_one()
    age(job, minutes=5)

    assert explain(job).code == "lease_expired"


def test_a_suspended_job_is_suspended():
    assert explain(JobFactory(suspended=True).pk).code == "suspended"


def test_a_deadline_that_has_passed_comes_before_what_would_hold_it():
    alive()
    job = enqueue_one(deadline_seconds=60)
    control.pause(queue="default")
    age(job, only=["deadline_at"], minutes=5)

    assert explain(job).code == "deadline_passed"


# ------------------------------------------------------------------ paused, not due


@pytest.mark.parametrize(
    ("target", "said", "cure"),
    [
        ({"queue": "default"}, "Its queue default is paused", "resume --queue default ends"),
        ({"job_type": TYPE}, "Its type tests.ok is paused", "resume --type tests.ok ends"),
        ({"tenant": "default"}, "Its tenant default is paused", "resume --tenant default ends"),
        (
            {"queue": "default", "tenant": "default"},
            "Its tenant default in queue default is paused",
            "resume --queue default --tenant default ends",
        ),
    ],
)
def test_a_pause_is_told_with_who_and_why_and_how_to_end_it(target, said, cure):
    alive()
    job = enqueue_one()
    control.pause(**target, by="ada", reason="provider is down", duration=3600)

    told = explain(job)

    assert told.code == "paused"
    assert said in told.sentence
    assert "by ada, until " in told.sentence
    assert "provider is down" in told.sentence
    assert cure in told.cure


def test_a_pause_of_others_or_one_that_is_over_is_none():
    alive()
    type_id(OTHER_TYPE)
    job = enqueue_one()
    enqueue_one(queue="mail")
    for target in ({"queue": "mail"}, {"job_type": OTHER_TYPE}, {"tenant": "acme"}):
        control.pause(**target)
    control.pause(queue="default", duration=60)
    with connection.cursor() as cursor:
        cursor.execute("update pgbroker.pause set until = until - interval '1 h'")

    assert explain(job).code == "about_to_run"


def test_a_pause_does_not_hide_what_is_left_after_it():
    root = enqueue_one()
    job = after(root)
    control.pause(queue="default")

    told = explain(job)

    assert told.code == "paused"
    assert "Then this is left: It waits for its prerequisite" in told.sentence
    assert told.ids == (root,)


def test_a_scheduled_job_says_when_it_is_due():
    told = explain(enqueue_one(delay_seconds=90))

    assert told.code == "not_due"
    assert "in 1m" in told.sentence


def test_a_retry_says_what_went_wrong_and_a_snooze_that_it_was_asked_for():
    again = enqueue_one()
    settle_one(failed(claim_one(), delay=timedelta(hours=1)))
    later = enqueue_one()
    settle_one(snoozed(claim_one(), delay=timedelta(hours=1)))

    assert "Attempt 1 of 5 ended badly with boom and is tried again" in explain(again).sentence
    assert "Its handler asked to come back later" in explain(later).sentence


def test_a_type_that_no_worker_knows_comes_before_its_delay():
    alive()
    job = enqueue_one()
    for _ in range(2):
        release([(claim_one(), timedelta(0))], code="unknown_job_type")
        with guards_off():
            Job.objects.filter(pk=job).update(status=Status.READY, ready_at="2026-01-01T00:00:00Z")
    release([(claim_one(), timedelta(minutes=1))], code="unknown_job_type")

    told = explain(job)

    assert told.code == "unknown_job_type"
    assert "had loaded tests.ok: it was put back 3 times since" in told.sentence
    assert "offered again" in told.sentence


def test_a_type_that_was_unknown_once_and_then_ran_is_none_of_it():
    alive()
    job = enqueue_one()
    release([(claim_one(), None)], code="unknown_job_type")
    settle_one(failed(claim_one(), delay=timedelta(hours=1)))

    assert explain(job).code == "not_due"


# ------------------------------------------------------------------ waiting


def test_a_waiting_job_names_its_prerequisites_with_their_status():
    first, second = enqueue_one(), enqueue_one()
    job = after(first, second)
    run_one(first)

    told = explain(job)

    assert (told.code, told.ids) == ("waiting_for_prerequisites", (second,))
    assert f"its prerequisite: job {second} (tests.ok, ready)" in told.sentence
    assert f"broker_jobs explain {second}" in told.cure


def test_a_group_is_named_with_its_progress():
    group = open_group("import")
    done, wrong, _ = (member("import", name=f"m{n}") for n in range(3))
    job = after({"group": "import"})
    run_one(done)
    fail(wrong)

    told = explain(job)

    assert told.ids == (group,)
    assert f"run group import ({group}, open: 1 of 3 members to end, 1 ended badly)" in told.sentence
    assert "broker_groups show import" in told.cure


def test_a_group_that_only_waits_to_be_sealed_says_so():
    open_group("import")
    job = after({"group": "import"})

    told = explain(job)

    assert "0 members, all over" in told.sentence
    assert "broker_groups seal import" in told.cure


def test_a_member_is_named_as_in_its_group():
    open_group("import")
    extract = member("import", name="extract")
    job = member("import", depends_on=["extract"])

    assert f"job {extract} (import/extract, tests.ok, ready)" in explain(job).sentence


def test_of_many_prerequisites_a_few_are_named_and_all_are_counted():
    made = sorted(enqueue_one() for _ in range(NAMED_MAX + 5))
    job = after(*made)

    told = explain(job)

    assert told.ids == tuple(made[:NAMED_MAX])
    assert f"{NAMED_MAX + 5} prerequisites" in told.sentence
    assert "5 more" in told.sentence


def test_a_reference_that_need_not_exist_yet_is_named_with_its_deadline():
    job = after({"group": "later", "job": "load", "within_seconds": 3600})

    told = explain(job)

    assert (told.code, told.ids) == ("waiting_for_reference", ())
    assert "job load of run group later" in told.sentence
    assert "in 59m" in told.sentence


@pytest.mark.parametrize(
    ("policy", "code", "cures"),
    [
        ("cancel", "cancelled", ("broker_jobs retry {job}",)),
        (
            "block",
            "blocked",
            ("broker_jobs unblock {job}", "broker_jobs cancel {job}, broker_jobs retry {job}"),
        ),
    ],
)
def test_a_reference_that_expired_says_what_lets_it_run_and_what_lets_it_wait(policy, code, cures):
    job = after({"group": "later", "within_seconds": 5}, on_failure=policy)
    deadlines_pass(job)
    deferred()

    told = explain(job)

    assert told.code == code
    assert "run group later: it was not there in time" in told.sentence
    assert all(cure.format(job=job) in told.cure for cure in cures)


def test_an_edge_comes_before_a_reference_and_does_not_hide_it():
    first = enqueue_one()
    job = after(first, {"group": "later", "within_seconds": 3600})

    told = explain(job)

    assert (told.code, told.ids) == ("waiting_for_prerequisites", (first,))
    assert "It also waits for run group later" in told.sentence


def test_an_end_that_a_pass_has_not_yet_looked_at_is_told():
    first, job = enqueue_one(), None
    job = after(first)
    with guards_off(), connection.cursor() as cursor:
        # As after a crash of what should have resolved it.
        cursor.execute("alter table pgbroker.job disable trigger user")
        cursor.execute(
            "update pgbroker.job set status = 10, finished_at = statement_timestamp() where id = %s", [first]
        )
        cursor.execute("alter table pgbroker.job enable trigger user")

    told = explain(job)

    assert (told.code, told.ids) == ("about_to_be_resolved", (first,))
    assert "completed" in told.sentence


def test_a_waiting_job_without_anything_to_wait_for_is_about_to_be_freed():
    assert explain(JobFactory(waiting=True).pk).code == "about_to_be_resolved"


def test_a_blocked_job_names_what_blocks_it_and_the_root_cause():
    root = enqueue_one()
    middle = after(root)
    job = after(middle, on_failure="block")
    fail(root)
    passes()

    told = explain(job)

    assert (status(job), told.code, told.ids) == (Status.BLOCKED, "blocked", (middle, root))
    assert f"Job {middle} (tests.ok, cancelled) ended badly" in told.sentence
    assert f"The cause is job {root} (tests.ok, failed)." in told.sentence
    assert f"broker_jobs unblock {job}" in told.cure


def test_a_prerequisite_of_another_tenant_is_never_named_whatever_a_row_claims():
    with tenant_context("acme"):
        theirs = enqueue_one()
    job = after(enqueue_one())
    run_one(edge_of(job))
    with guards_off(), connection.cursor() as cursor:
        cursor.execute("select set_config('pgbroker.scope', 'all', true)")
        cursor.execute("alter table pgbroker.job_dependency disable trigger user")
        cursor.execute(
            "insert into pgbroker.job_dependency (dependent_id, prerequisite_id, kind, tenant_id) "
            "values (%s, %s, 0, 'default')",
            [job, theirs],
        )
        cursor.execute("alter table pgbroker.job_dependency enable trigger user")
        cursor.execute("update pgbroker.job set status = 1, ready_at = null where id = %s", [job])
        cursor.execute("select set_config('pgbroker.scope', '', true)")

    own = explain(job)
    with scope_all():
        operators = explain(job)

    for told in (own, operators):
        assert (told.code, told.ids) == ("waiting_for_prerequisites", ())
        assert str(theirs) not in told.sentence + told.cure
        assert "1 more" in told.sentence


def edge_of(job: UUID) -> UUID:
    return JobDependency.objects.get(dependent_id=job).prerequisite_id


# ------------------------------------------------------------------ ready


@pytest.mark.parametrize("how", ["none", "silent", "elsewhere", "draining"])
def test_a_queue_without_a_worker_is_told(how):
    match how:
        case "silent":
            WorkerFactory(silent=True)
        case "elsewhere":
            WorkerFactory(queues=["mail"])
        case "draining":
            WorkerFactory(draining_at="2026-01-01T00:00:00Z")

    told = explain(enqueue_one())

    assert told.code == "no_worker"
    assert "broker_worker --queues default" in told.cure
    assert ("shutting down" in told.sentence) == (how == "draining")


def test_a_job_behind_others_tells_how_many_go_before_it():
    busy(slots=4, running=4)
    for _ in range(3):
        enqueue_one()
    job = enqueue_one()
    enqueue_one(priority=-5)

    told = explain(job)

    assert told.code == "behind_others"
    assert "3 jobs go before it in queue default of tenant default" in told.sentence
    assert "4 of the 4 slots of 1 worker are taken" in told.sentence


def test_a_higher_priority_goes_before_and_an_older_job_of_a_lower_one_too():
    busy()
    old = enqueue_one(priority=-1)
    age(old, minutes=2)
    job = enqueue_one()
    enqueue_one(priority=10)
    enqueue_one(priority=-1)

    assert "2 jobs go before it" in explain(job).sentence


def test_what_is_paused_does_not_go_before():
    busy()
    enqueue_one(job_type=OTHER_TYPE)
    job = enqueue_one()
    control.pause(job_type=OTHER_TYPE)

    assert explain(job).code == "about_to_run"


def test_the_order_that_is_told_is_that_of_the_claim():
    busy()
    made = [enqueue_one(priority=priority) for priority in (0, 5, -3, 5, 0)]
    age(made[2], minutes=10)

    def ahead(job: UUID) -> int:
        told = explain(job)
        return 0 if told.code == "about_to_run" else int(told.sentence.split(", and ")[1].split()[0])

    by_explanation = sorted(made, key=ahead)

    assert [ahead(job) for job in by_explanation] == list(range(5))
    assert by_explanation == [lease.job_id for lease in claim_many()]


def test_jobs_of_other_tenants_are_counted_only_for_who_sees_them():
    busy()
    with tenant_context("acme"):
        enqueue_one()
    job = enqueue_one()

    own = explain(job)
    with scope_all():
        operators = explain(job)

    assert own.code == "about_to_run"
    assert "among the jobs of tenant default" in own.sentence
    assert operators.code == "behind_others"
    assert "1 job goes before it in queue default." in operators.sentence


def test_the_next_one_in_line_is_about_to_run_or_waits_for_a_slot():
    job = enqueue_one()
    busy(slots=2, running=2)
    assert explain(job).code == "slots_busy"

    busy(slots=2, running=1)

    assert explain(job).code == "about_to_run"


def test_a_job_that_is_due_is_told_like_a_ready_one():
    job = enqueue_one(delay_seconds=60)
    age(job, only=["available_at"], minutes=5)
    assert explain(job).code == "no_worker"

    busy()

    assert "It is due and the next one" in explain(job).sentence


# ------------------------------------------------------------------ whose, and at what cost


def test_another_tenants_job_is_not_there():
    with tenant_context("acme"):
        theirs = enqueue_one()
        found = get_job(theirs)

    with pytest.raises(JobNotFound):
        control.explain(theirs)
    with pytest.raises(JobNotFound):
        found.explain()
    with pytest.raises(JobNotFound):
        control.explain(uuid4())


@pytest.mark.parametrize("state", list(Status))
def test_every_status_has_a_reason(state):
    assert explain(JobFactory(**{state.label: True}).pk).code


def test_it_asks_once_and_changes_nothing(django_assert_num_queries):
    job = after(enqueue_one())
    found = get_job(job)

    with django_assert_num_queries(1):
        found.explain()

    assert (status(job), reason(job)) == (Status.WAITING, None)

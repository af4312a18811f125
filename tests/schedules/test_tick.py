"""A pass over what is due: each tick is created once, in its tenant, whatever is wrong with others."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from uuid import uuid4

import pytest

from pgbroker.lifecycle.declare import DeclaredType, declare_types
from pgbroker.lifecycle.dispatch import Decision, dispatch
from pgbroker.lifecycle.take_due import next_schedule, take_due
from pgbroker.models import Job, JobDependency, JobPayload, RunGroup, ScheduleRun
from pgbroker.schedules.decide import decide
from pgbroker.schedules.tick import tick
from pgbroker.states import GroupState, Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import TYPE, claim_many, completed, queue_id, settle_one, status
from tests.support.schedules import (
    EVERY_MINUTE,
    entry,
    jobs,
    make,
    minute,
    options_of,
    row,
    runs,
    set_row,
    states,
    stopped,
    tick_all,
)

pytestmark = pytest.mark.django_db


def test_a_tick_that_has_come_is_created_with_its_job_and_the_next_one_is_planned():
    schedule = make()
    due = schedule.next_run_at

    assert tick() == (1, 1, None)

    (run,) = runs(schedule)
    (job,) = jobs()
    assert (run.scheduled_for, run.kind, run.state, run.job_id) == (due, "tick", "created", job.id)
    assert job.status == Status.READY
    assert 0 <= run.lateness_seconds < 120
    after = row(schedule)
    assert (after.next_run_at, after.last_dispatched_for) == (due + timedelta(days=1), due)
    assert after.watermark < after.next_run_at
    assert after.revision == 0
    assert len(after.zone_rules) == 16
    assert options_of(job.id)["scheduled_for"] == due.isoformat()


def test_nothing_happens_before_the_tick():
    make(due=False)

    assert tick() == (0, 0, None)
    assert jobs() == []
    assert 86_000 < next_schedule().seconds <= 86_400


def test_a_second_pass_creates_nothing():
    schedule = make()
    tick()

    assert tick() == (0, 0, None)
    assert len(jobs()) == len(runs(schedule)) == 1


def test_b080_what_the_template_says_reaches_the_row_as_it_is():
    queue_id("q2")
    args = {"v": 1, "args": [1, "Grüße"], "kwargs": {"note": None, "n": 12345678901234567890}}
    with tenant_context("T"):
        schedule = make(
            jobs=[
                entry(
                    queue="q2",
                    priority=7,
                    max_attempts=5,
                    deadline_seconds=60,
                    tags=["a", "b"],
                    lane="customer-7",
                    args=args,
                    type_version=3,
                    options={"timeout": 9.5},
                )
            ]
        )

    tick()

    with scope_all():
        job, payload = Job.objects.select_related("queue").get(), JobPayload.objects.get()
    assert (job.queue.name, job.priority, job.max_attempts, job.tenant_id, job.lane) == (
        "q2", 7, 5, "T", "customer-7",
    )  # fmt: skip
    assert job.deadline_at - job.created_at == timedelta(seconds=60)
    assert (payload.args, payload.tags, payload.type_version) == (args, ["a", "b"], 3)
    assert payload.options["timeout"] == 9.5
    assert runs(schedule)[0].tenant_id == "T"


def test_occurrences_of_many_tenants_belong_to_the_tenants_of_their_schedules():
    made = {}
    for tenant in ("acme", "bolt", "default"):
        with tenant_context(tenant):
            made[tenant] = make()

    tick()

    assert {(job.tenant_id) for job in jobs()} == {"acme", "bolt", "default"}
    for tenant, schedule in made.items():
        (run,) = runs(schedule)
        assert run.tenant_id == tenant
        with tenant_context(tenant):
            assert Job.objects.get().id == run.job_id


def test_a_template_of_several_jobs_becomes_a_run_group_of_its_own():
    schedule = make(
        jobs=[
            entry(name="extract"),
            entry(name="load", depends_on=["extract"]),
            entry(name="tell", depends_on=["load"]),
        ]
    )
    due = schedule.next_run_at

    tick()

    (run,) = runs(schedule)
    group = RunGroup.objects.get()
    assert (run.run_group_id, run.job_id) == (group.id, None)
    assert group.name == f"nightly:{due:%Y-%m-%dT%H:%M:%SZ}:{str(schedule.id)[-12:]}"
    assert group.state == GroupState.SEALED
    by_name = {job.name: job for job in jobs()}
    assert {name: job.status for name, job in by_name.items()} == {
        "extract": Status.READY, "load": Status.WAITING, "tell": Status.WAITING,
    }  # fmt: skip
    assert {options_of(job.id)["scheduled_for"] for job in by_name.values()} == {due.isoformat()}
    for _ in range(3):
        settle_one(completed(claim_many()[0]))
    group.refresh_from_db()
    assert group.state == GroupState.COMPLETED


def test_the_next_run_waits_for_nothing_of_this_one():
    schedule = make(expression=EVERY_MINUTE, jobs=[entry(name="a"), entry(name="b", depends_on=["a"])])
    tick()
    stopped(schedule, minutes=-1)
    set_row(schedule, watermark=minute(5), next_run_at=minute(4))

    tick()

    assert len(runs(schedule)) >= 1
    groups = {job.id: job.run_group_id for job in jobs()}
    with scope_all():
        edges = list(JobDependency.objects.all())
    assert len(edges) == len(set(groups.values()))
    assert all(groups[edge.dependent_id] == groups[edge.prerequisite_id] for edge in edges)


@pytest.mark.parametrize(
    ("jobs_of_template", "code"),
    [
        ([entry(job_type="nobody.knows")], "unknown_job_type"),
        ([entry(queue="nowhere")], "unknown_queue"),
        ([entry(priority=1000)], "invalid_option"),
        ([entry(priority="high")], "invalid_option"),
        (["no entry"], "invalid_entry"),
        ([entry(name="a"), entry(name="b", depends_on=["c"])], "dependency_not_found"),
        ([entry(name="a"), entry(name="a")], "duplicate_job_name"),
        ([entry(name="a", depends_on=["b"]), entry(name="b", depends_on=["a"])], "cyclic_dependency"),
        ([entry(name="a"), {"job_type": 7}], "unknown_job_type"),
    ],
)
def test_a_template_that_cannot_be_enqueued_is_told_and_stops_no_other(jobs_of_template, code):
    good, bad, other = make("good"), make("bad", jobs=jobs_of_template), make("other")

    assert tick() == (3, 2, None)

    (run,) = runs(bad)
    assert (run.state, run.job_id, run.run_group_id) == ("failed", None, None)
    assert run.error_code == code, (run.error_code, run.error)
    after = row(bad)
    assert (after.failure_count, after.error_code) == (1, code)
    assert after.error
    assert after.failed_at is not None
    assert after.next_run_at > bad.next_run_at
    assert states(good) == states(other) == ["created"]
    with scope_all():
        assert not RunGroup.objects.exists()
    assert len(jobs()) == 2


def test_a_success_ends_the_count_of_failures():
    schedule = make(expression=EVERY_MINUTE, jobs=[entry(queue="nowhere")])
    tick()
    set_row(schedule, template={"jobs": [entry()]}, watermark=minute(), next_run_at=minute(-1))
    ScheduleRun.objects.all().delete()
    stopped(schedule, minutes=1)

    tick()

    after = row(schedule)
    assert (after.failure_count, after.error_code, after.error) == (0, None, None)
    assert after.failed_at is not None


def test_a_row_that_cannot_be_read_is_disabled_and_stops_no_other():
    bad, zone, good = make("bad", expression="61 * * * *"), make("zone", time_zone="Mars/Base"), make("good")

    tick()

    assert states(good) == ["created"]
    for schedule, code in ((bad, "invalid_cron"), (zone, "invalid_time_zone")):
        after = row(schedule)
        assert (after.enabled, after.next_run_at) == (False, None)
        assert f"[{code}]" in after.disabled_reason
    assert tick().seen == 0


def test_a_decision_upon_an_older_row_changes_nothing():
    schedule = make()
    (due,) = take_due(limit=10)
    old = decide(due, limit=10)
    tick()
    before = row(schedule).__dict__

    (answer,) = dispatch([old])

    assert answer.state == "stale"
    after = row(schedule).__dict__
    assert {k: v for k, v in after.items() if k != "_state"} == {
        k: v for k, v in before.items() if k != "_state"
    }
    assert len(jobs()) == 1


@pytest.mark.parametrize("change", [{"revision": 5}, {"enabled": False, "next_run_at": None}])
def test_a_decision_from_before_an_edit_changes_nothing(change):
    schedule = make()
    (due,) = take_due(limit=10)
    set_row(schedule, **change)

    (answer,) = dispatch([decide(due, limit=10)])

    assert (answer.state, jobs()) == ("stale", [])


def test_a_tick_that_was_created_before_is_counted_and_not_created_again():
    schedule = make()
    before = row(schedule)
    tick()
    set_row(schedule, watermark=before.watermark, next_run_at=before.next_run_at)
    (due,) = take_due(limit=10)

    (answer,) = dispatch([decide(due, limit=10)])

    assert answer.state == "duplicate"
    assert len(jobs()) == 1
    assert row(schedule).next_run_at > before.next_run_at


def test_a_schedule_that_is_gone_is_no_error():
    assert dispatch([Decision(id=uuid4(), create=[(minute(), None)])]) == []


def test_pages_are_bounded_and_go_on_where_the_last_one_ended():
    made = [make(f"s{number}") for number in range(7)]

    pages = tick_all(limit=3)

    assert [page.seen for page in pages] == [3, 3, 1]
    assert all(states(schedule) == ["created"] for schedule in made)


def test_a_page_creates_no_more_than_its_share_and_the_next_one_the_rest():
    schedule = make(expression=EVERY_MINUTE, misfire="catch_up", misfire_count=100)
    other = make("other")
    stopped(schedule, minutes=150)

    pages = tick_all(limit=20)

    assert [page.created for page in pages] == [40, 40, 21]
    created = [run.scheduled_for for run in runs(schedule, state="created")]
    assert len(created) == 100
    assert all(two - one == timedelta(minutes=1) for one, two in pairwise(created))
    assert minute() - created[-1] < timedelta(minutes=1)
    assert states(other) == ["created"]


def test_the_wait_of_jitter_is_the_same_for_everybody_and_less_than_the_most():
    schedule = make(jitter_seconds=3600)

    tick()

    (run,) = runs(schedule)
    (job,) = jobs()
    if job.status == Status.SCHEDULED:
        assert timedelta(0) < job.available_at - run.scheduled_for < timedelta(hours=1)
    assert status(job.id) in (Status.SCHEDULED, Status.READY)


def test_a_job_type_of_a_former_name_is_found():
    schedule = make(jobs=[entry(job_type="tests.former")])
    declare_types([DeclaredType(name=TYPE, version=1, aliases=("tests.former",), defaults={})])

    tick()

    assert states(schedule) == ["created"]

"""Occurrences whose job is plain go a short way, which creates what the long way would."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgbroker.lifecycle.declare import DeclaredType, declare_types
from pgbroker.lifecycle.dispatch import Decision, Occurrence, dispatch
from pgbroker.lifecycle.take_due import take_due
from pgbroker.models import Job, JobPayload, QueuePriority, Schedule
from pgbroker.schedules.decide import decide
from pgbroker.tenancy import scope_all
from tests.support.jobs import QUEUE, queue_id
from tests.support.schedules import ENVELOPE, entry, jobs, make, minute, now, options_of, runs

pytestmark = pytest.mark.django_db

NONE_PLAIN = """
    create or replace function pgbroker.enqueue_plain_occurrences_1(
        occurrences pgbroker.occurrence_1[], out places int[], out jobs uuid[]
    )
    language sql as 'select null::int[], null::uuid[]'
"""
PLAIN = {"type_version": 3, "priority": 0, "max_attempts": 7}


def plain(**changes: Any) -> dict[str, Any]:
    """Make an entry; what is "absent" is left out."""
    said = {**entry(queue=QUEUE), **PLAIN, **changes}
    return {name: value for name, value in said.items() if value != "absent"}


def made_by_the_short_way(*entries: dict[str, Any], start: datetime | None = None) -> int:
    """Tell how many jobs the short way makes of occurrences; it leaves the others to the long way."""
    one = (
        "row(gen_random_uuid(), %s, %s, 'tick', 'default', 's', "
        "jsonb_build_object('jobs', jsonb_build_array(%s::jsonb)), "
        "null, null, null, null, null)::pgbroker.occurrence_1"
    )
    parameters = [each for said in entries for each in (minute(), start, json.dumps(said))]
    given = ", ".join([one] * len(entries))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            f"select cardinality(places) from pgbroker.enqueue_plain_occurrences_1(array[{given}])",
            parameters,
        )
        (made,) = cursor.fetchone()
        transaction.set_rollback(True)
    return made


def dispatched(made: list[Schedule]) -> list[Occurrence]:
    order = {schedule.pk: place for place, schedule in enumerate(made)}
    answers = dispatch([decide(due, limit=10) for due in take_due(limit=1000)])
    return sorted(answers, key=lambda each: order[each.schedule_id])


def outcome(made: list[Schedule], *, long_way: bool) -> list[dict[str, Any]]:
    """Create what is due, tell what became of each, and undo it."""
    with transaction.atomic():
        if long_way:
            with connection.cursor() as cursor:
                cursor.execute(NONE_PLAIN)
        found = []
        for answer in dispatched(made):
            (run,) = runs(answer.schedule_id)
            told = {
                "state": answer.state, "code": answer.error_code, "error": answer.error, "queues": answer.queues,
                "run": (run.state, run.error_code, run.error, run.scheduled_for, run.job_id == answer.job_id),
            }  # fmt: skip
            if answer.job_id is not None:
                job, payload = Job.objects.get(pk=answer.job_id), JobPayload.objects.get(pk=answer.job_id)
                told |= {
                    field.attname: getattr(row, field.attname)
                    for row in (job, payload)
                    for field in row._meta.concrete_fields
                }
                # The two come a moment after each other.
                told |= {name: told[name] is not None for name in ("ready_at", "available_at", "deadline_at")}
                for name in ("id", "job_id", "created_at"):
                    del told[name]
            found.append(told)
        transaction.set_rollback(True)
    return found


NUMBERS = st.sampled_from(
    [
        0, 1, 3, 5, -7, 7, 7.0, 100, 101, -101, 10_000, 10_001, 2**31, -(10**11), 1e40, 1.5, 2.0, 1e3, "5", None, True,
        [1], "absent",
    ]
)  # fmt: skip
ODD = {
    "job_type": st.sampled_from(["tests.former", "tests.tagged", "no.such", 5, None, "absent"]),
    "queue": st.sampled_from(["narrow", "no-such", 5, None, "absent"]),
    "args": st.sampled_from([{"v": 1}, {**ENVELOPE, "args": [1, "é"]}, {"v": 2}, [1], None, "absent"]),
    "type_version": NUMBERS,
    "priority": NUMBERS,
    "max_attempts": NUMBERS,
    "options": st.sampled_from([None, {}, {"timeout": 5}, {"timeout": -5}, "x"]),
    "tags": st.sampled_from([None, [], ["a"], "x"]),
    **dict.fromkeys(
        ["idempotency_key", "delay_seconds", "deadline_seconds", "principal", "lane", "odd"],
        st.sampled_from([None, "x", 60]),
    ),
}
# Most with one thing that is odd about them, and some with several.
CHANGES = st.sampled_from(sorted(ODD)).flatmap(lambda name: st.fixed_dictionaries({name: ODD[name]}))
ENTRIES = st.lists(
    st.builds(lambda changes: plain(**changes), CHANGES | st.fixed_dictionaries({}, optional=ODD)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=ENTRIES, jitter=st.sampled_from([0, 86_400]))
def test_both_ways_create_the_same_and_say_the_same(entries, jitter):
    with transaction.atomic():
        queue_id("narrow")
        declare_types(
            [
                DeclaredType(name="tests.heir", version=2, aliases=("tests.former",), defaults={}),
                DeclaredType(name="tests.tagged", version=1, aliases=(), defaults={"tags": ["a"]}),
            ]
        )
        # The rest of what a template may not say is found out when it is saved.
        made = [make(f"s{place}", jobs=[each], jitter_seconds=jitter) for place, each in enumerate(entries)]

        short, long = (outcome(made, long_way=each) for each in (False, True))
        transaction.set_rollback(True)

    assert short == long


def test_what_is_plain_goes_the_short_way():
    make()
    later = now() + timedelta(hours=1)

    assert made_by_the_short_way(plain(), plain(type_version="absent"), plain(args={"v": 1})) == 3
    assert made_by_the_short_way(plain(), start=later) == 1
    for other in (
        {"priority": 5}, {"priority": 0.4}, {"priority": "0"}, {"max_attempts": 1.5},
        {"max_attempts": "absent"}, {"queue": "absent"},
        {"max_attempts": 7.0}, {"type_version": 3.0}, {"type_version": 2**31}, {"type_version": 10**40},
        {"job_type": "no.such"}, {"args": {"v": 2}}, {"args": "absent"}, {"options": {"timeout": 5}},
        {"tags": ["a"]}, {"delay_seconds": 5}, {"odd": None}, {"type_version": None},
    ):  # fmt: skip
        assert made_by_the_short_way(plain(**other), plain()) == 1, other


def test_what_breaks_the_short_way_leaves_all_of_them_to_the_long_way():
    made = [make("good", jobs=[plain()]), make("other", jobs=[plain()])]
    with connection.cursor() as cursor:
        cursor.execute(
            "alter table pgbroker.job_payload add constraint staged check (args -> 'args' <> '[13]')"
        )
    bad = make("bad", jobs=[plain(args={"v": 1, "args": [13]})])

    answers = dispatched([*made, bad])

    assert [each.state for each in answers] == ["created", "created", "failed"]
    assert len(jobs()) == 2


def test_a_later_start_makes_a_scheduled_job():
    schedule = make(jobs=[plain()])
    start = now() + timedelta(hours=1)
    (due,) = take_due(limit=10)

    (answer,) = dispatch(
        [Decision(id=schedule.pk, expected=due.next_run_at, revision=0, create=[(minute(), start)])]
    )

    (job,) = jobs()
    assert (job.id, job.available_at, job.ready_at) == (answer.job_id, start, None)
    assert options_of(job.id) == {"scheduled_for": minute().isoformat()}
    assert answer.queues == []


def test_a_new_priority_is_made_known_by_the_long_way():
    schedule = make(jobs=[plain(priority=7)])

    (answer,) = dispatched([schedule])

    assert answer.state == "created"
    assert QueuePriority.objects.filter(queue_id=queue_id(), priority=7).exists()
    with scope_all():
        assert Job.objects.get().priority == 7


def test_a_row_that_a_trigger_passes_over_is_no_job_that_was_created():
    made = [make("good", jobs=[plain()]), make("bad", jobs=[plain(max_attempts=9)])]
    with connection.cursor() as cursor:
        cursor.execute(
            "create function pg_temp.pass_over() returns trigger language plpgsql as 'begin return null; end'; "
            "create trigger staged before insert on pgbroker.job for each row when (new.max_attempts = 9) "
            "execute function pg_temp.pass_over()"
        )

    answers = dispatched(made)

    assert [(each.state, each.error_code) for each in answers] == [
        ("created", None),
        ("failed", "enqueue_failed"),
    ]
    assert [job.id for job in jobs()] == [answers[0].job_id]

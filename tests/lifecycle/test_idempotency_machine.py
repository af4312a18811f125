"""
Any order of keyed calls, single and bulk, of ends, cancels, retries and of time, against a model in plain Python.

A bulk call must do what its entries would do one after the other. Time passes in steps of half a minute, for
keys and jobs alike. `PGBROKER_MACHINE_EXAMPLES` makes the search longer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pgbroker.lease import Lease
from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.retry import retry_many
from pgbroker.models import Idempotency, Job, JobState
from pgbroker.states import RETRYABLE, TERMINAL, Status
from tests.support.jobs import (
    TYPE,
    age,
    age_key,
    claim_many,
    completed,
    failed,
    queue_id,
    settle_one,
    snoozed,
    type_id,
)

EXAMPLES = int(os.environ.get("PGBROKER_MACHINE_EXAMPLES", "12"))
STEP = 30.0
KEYS = ("a", "b")
MOST_JOBS = 8

CALLS = st.fixed_dictionaries({
    "key": st.sampled_from(["a", "a", "a", "b"]),
    "terms": st.sampled_from([("held", None), ("live", None), ("retained", None), ("window", 1), ("window", 2)]),
    "mode": st.sampled_from(["return", "reject", "replace", "replace"]),
    "body": st.integers(0, 1),
    "later": st.booleans(),
})  # fmt: skip
ENDS = {
    "completed": (lambda lease: completed(lease), Status.COMPLETED),
    "failed": (lambda lease: failed(lease, permanent=True), Status.FAILED),
    "dead": (lambda lease: failed(lease, dead=True), Status.DEAD_LETTER),
    "to be tried again": (lambda lease: failed(lease), Status.SCHEDULED),
    "snoozed": (lambda lease: snoozed(lease), Status.SCHEDULED),
}


@dataclass
class Model:
    """A job as it should be, with the terms on which it holds, or held, its key."""

    job_id: UUID
    key: str
    scope: str
    window: int | None
    body: int
    made_at: int
    status: Status
    started: bool = False
    reason: str | None = None
    lease: Lease | None = None

    def holds(self, now: int) -> bool:
        if self.scope == "retained":
            return True
        if self.scope == "window":
            return now < self.made_at + self.window
        if self.scope == "live":
            return self.status not in TERMINAL
        return self.status not in RETRYABLE

    @property
    def may_be_replaced(self) -> bool:
        return not self.started and self.status in (Status.READY, Status.SCHEDULED)


class Keys(RuleBasedStateMachine):
    """The calls against the model, in one transaction that is rolled back at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.transaction = transaction.atomic()
        self.transaction.__enter__()
        queue_id(), type_id()
        self.now = 0
        self.jobs: dict[UUID, Model] = {}
        self.holders: dict[str, UUID] = {}

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.transaction.__exit__(None, None, None)

    # -------------------------------------------------------------- calls

    def row(self, call: dict[str, Any]) -> dict[str, Any]:
        scope, window = call["terms"]
        return {
            "job_type": TYPE,
            "idempotency_key": call["key"],
            "idempotency_scope": scope,
            "on_conflict": call["mode"],
            "args": {"v": 1, "args": [call["body"]], "kwargs": {}},
            **({"window_seconds": window * STEP} if window else {}),
            **({"delay_seconds": 1e6} if call["later"] else {}),
        }

    def heard(self, call: dict[str, Any], answer: Any) -> None:
        """Say what the call should have heard, and remember what it did."""
        holder = self.jobs.get(self.holders.get(call["key"]))
        detail = None
        if holder is None or not holder.holds(self.now):
            expected = "created"
        elif call["mode"] == "replace":
            expected = "replaced" if holder.may_be_replaced else "not_replaceable"
        else:
            same = call["mode"] == "return" and holder.body == call["body"]
            expected = "existing" if same else "idempotency_conflict"
        assert answer.outcome == expected, (call, holder)
        if expected not in ("created", "replaced"):
            assert answer.job_id == holder.job_id
            return
        if expected == "replaced":
            holder.status, holder.reason = Status.CANCELLED, "replaced"
            detail = f"in place of job {holder.job_id}"
        assert answer.detail == detail
        status = Status.SCHEDULED if call["later"] else Status.READY
        assert answer.job_id not in self.jobs
        self.jobs[answer.job_id] = Model(
            answer.job_id, call["key"], *call["terms"], call["body"], self.now, status
        )
        self.holders[call["key"]] = answer.job_id

    @rule(calls=st.lists(CALLS, min_size=1, max_size=4))
    @precondition(lambda self: len(self.jobs) < MOST_JOBS)
    def call(self, calls):
        answers = enqueue_rows([self.row(call) for call in calls])

        assert [answer.ordinal for answer in answers] == list(range(1, len(calls) + 1))
        for call, answer in zip(calls, answers, strict=True):
            self.heard(call, answer)

    @rule(calls=st.lists(CALLS, min_size=1, max_size=3))
    def call_and_roll_back(self, calls):
        with transaction.atomic():
            enqueue_rows([self.row(call) for call in calls])
            transaction.set_rollback(True)

    @rule(call=CALLS)
    @precondition(lambda self: self.jobs)
    def repeat_the_call_of_a_job_that_is_there(self, call):
        """With the id, as a client does that never heard the answer; whoever has the key by now keeps it."""
        model = list(self.jobs.values())[-1]
        call = {**call, "key": model.key, "body": model.body, "mode": "replace"}

        (answer,) = enqueue_rows([{**self.row(call), "id": str(model.job_id)}])

        holder = self.jobs[self.holders[model.key]]
        assert (answer.outcome, answer.job_id) == ("existing", model.job_id)
        if holder is not model and not holder.holds(self.now):
            # Nobody held it: taking it for a job that is there is harmless, on the call's own terms.
            model.scope, model.window = call["terms"]
            self.holders[model.key] = model.job_id

    # -------------------------------------------------------------- what happens to jobs

    @rule(data=st.data(), how=st.sampled_from(sorted(ENDS)))
    @precondition(lambda self: any(each.status == Status.READY for each in self.jobs.values()))
    def all_ready_jobs_run_and_one_ends(self, data, how):
        for lease in claim_many():
            model = self.jobs[lease.job_id]
            assert model.status == Status.READY
            model.status, model.started, model.lease = Status.RUNNING, True, lease
        running = [each.job_id for each in self.jobs.values() if each.status == Status.RUNNING]
        model = self.jobs[data.draw(st.sampled_from(running), label="which")]
        make, to = ENDS[how]
        assert settle_one(make(model.lease)).status == to
        model.status = to

    @rule()
    def scheduled_jobs_come_due(self):
        scheduled = [each for each in self.jobs.values() if each.status == Status.SCHEDULED]
        if scheduled:
            age(*(each.job_id for each in scheduled), only=["available_at"], days=400)
        promote([queue_id()], limit=100)
        for each in scheduled:
            each.status = Status.READY

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def cancel(self, data):
        model = self.jobs[data.draw(st.sampled_from(list(self.jobs)), label="which")]
        if model.status != Status.RUNNING:
            (answer,) = cancel_many([model.job_id])
            assert answer.outcome == ("unchanged" if model.status in TERMINAL else "cancelled")
            if model.status not in TERMINAL:
                model.status, model.reason = Status.CANCELLED, "cancelled"

    @rule(data=st.data())
    @precondition(lambda self: any(each.status in RETRYABLE for each in self.jobs.values()))
    def retry(self, data):
        ended = [each.job_id for each in self.jobs.values() if each.status in RETRYABLE]
        model = self.jobs[data.draw(st.sampled_from(ended), label="which")]
        holder = self.jobs[self.holders[model.key]]

        (answer,) = retry_many([model.job_id])

        if holder is not model and holder.holds(self.now):
            assert (answer.outcome, answer.holder_id) == ("key_held_by_newer_job", holder.job_id)
            return
        assert answer.outcome == "retried"
        self.holders[model.key] = model.job_id
        model.status, model.reason = Status.READY, None

    @rule()
    def time_passes(self):
        self.now += 1
        for key in KEYS:
            age_key(key, seconds=STEP)
        others = [job_id for job_id in self.jobs if job_id not in self.holders.values()]
        if others:
            age(*others, seconds=STEP)

    # -------------------------------------------------------------- what always holds

    @invariant()
    def jobs_and_keys_are_as_they_should_be(self):
        assert dict(Job.objects.values_list("pk", "status")) == {
            each.job_id: each.status for each in self.jobs.values()
        }
        assert dict(Idempotency.objects.values_list("key", "job_id")) == self.holders
        assert dict(JobState.objects.values_list("pk", "reason_code")) == {
            each.job_id: each.reason for each in self.jobs.values() if each.reason
        }


@pytest.mark.django_db
def test_calls_with_keys_do_what_the_model_does_in_any_order():
    run_state_machine_as_test(
        Keys,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        ),
    )

"""
Any order of verbs, by any worker, holding any lease ever granted, in a world of two tenants and two jobs each.

The model is plain Python. Rules are drawn around the danger: a lease that passes on unseen, a second end of
an attempt, a cancel while the handler runs, a key that changes hands. `PGBROKER_MACHINE_EXAMPLES` makes the
search longer.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, connection, transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pgbroker import sql
from pgbroker.lease import Lease
from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.claim import claim
from pgbroker.lifecycle.enqueue import enqueue_rows
from pgbroker.lifecycle.expire import expire
from pgbroker.lifecycle.heartbeat import heartbeat
from pgbroker.lifecycle.promote import promote
from pgbroker.lifecycle.release import release
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.settle import settle
from pgbroker.models import Job
from pgbroker.outcomes import Ended
from pgbroker.states import RETRYABLE, TERMINAL, AttemptState, Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.jobs import (
    AGEING,
    LEASE,
    OTHER_WORKER,
    TYPE,
    WORKER,
    age,
    age_worker,
    alive,
    ended,
    queue_id,
    reap_all,
    type_id,
)

EXAMPLES = int(os.environ.get("PGBROKER_MACHINE_EXAMPLES", "40"))
MAX_CRASHES = 2
JOBS_PER_TENANT = 2
TENANTS = ("acme", "bolt")
A_DAY = timedelta(days=1)
NOW = timedelta(0)

ENDS = st.sampled_from(
    [
        {"state": AttemptState.COMPLETED},
        {"state": AttemptState.FAILED, "delay": NOW},
        {"state": AttemptState.FAILED, "delay": A_DAY},
        {"state": AttemptState.TIMED_OUT},
        {"state": AttemptState.FAILED, "permanent": True},
        {"state": AttemptState.FAILED, "dead": True},
        {"state": AttemptState.SNOOZED, "delay": NOW},
        {"state": AttemptState.SNOOZED, "delay": A_DAY},
        {"state": AttemptState.CANCELLED},
    ]
)


EVERYTHING = """
    select
        id, status, attempt_count, max_attempts, crash_count, lease_token, worker_id,
        cancel_requested_at is not null, finished_at is not null,
        array(select attempt_no from pgbroker.execution where job_id = job.id order by id),
        array(select state from pgbroker.execution where job_id = job.id order by id),
        array(select event from pgbroker.job_event where job_id = job.id order by id)
    from pgbroker.job
"""
VISIBLE = """
    select
        array(select id from pgbroker.job), array(select job_id from pgbroker.job_payload),
        array(select job_id from pgbroker.execution), array(select job_id from pgbroker.job_event),
        array(select job_id from pgbroker.idempotency), array(select job_id from pgbroker.job_state)
"""


@dataclass
class Model:
    """What a job should be."""

    job_id: UUID
    tenant: str
    maximum: int
    declared: int
    key: str | None
    deadline: timedelta | None
    status: Status = Status.READY
    attempts: int = 0
    crashes: int = 0
    token: int = 0
    worker: UUID | None = None
    lease_ran_out: bool = False
    asked_to_cancel: bool = False
    turn: int = 0
    history: list[tuple[int, AttemptState]] = field(default_factory=list)
    ends: list[Status] = field(default_factory=list)

    def holds(self, lease: Lease) -> bool:
        """The fence."""
        return (self.status, self.token, self.worker) == (Status.RUNNING, lease.lease_token, lease.worker_id)

    def too_late(self, delay: timedelta) -> bool:
        return self.deadline is not None and self.deadline < delay

    def end_attempt(self, state: AttemptState, to: Status) -> None:
        self.history.append((self.attempts, state))
        self.worker, self.lease_ran_out = None, False
        self.go(to)

    def go(self, to: Status) -> None:
        self.status = to
        if to in TERMINAL:
            self.ends.append(to)

    def settle(self, end: Ended) -> None:
        delay = end.delay or NOW
        if self.asked_to_cancel:
            to = Status.CANCELLED
        elif end.state == AttemptState.COMPLETED:
            to = Status.COMPLETED
        elif end.state == AttemptState.SNOOZED:
            to = Status.FAILED if self.too_late(delay) else Status.SCHEDULED
            self.maximum += to == Status.SCHEDULED
        elif end.permanent:
            to = Status.FAILED
        elif end.dead or self.attempts >= self.maximum:
            to = Status.DEAD_LETTER
        else:
            to = Status.FAILED if self.too_late(delay) else Status.SCHEDULED
        self.end_attempt(end.state, to)

    def reap(self, *, worker_lives: bool) -> None:
        self.crashes += not worker_lives
        if self.asked_to_cancel:
            to = Status.CANCELLED
        elif (not worker_lives and self.crashes >= MAX_CRASHES) or self.attempts >= self.maximum:
            to = Status.DEAD_LETTER
        else:
            to = Status.SCHEDULED
        self.end_attempt(AttemptState.LEASE_EXPIRED if worker_lives else AttemptState.CRASHED, to)

    @property
    def fragile(self) -> bool:
        return self.crashes > 0 or self.attempts + 1 >= self.maximum

    @property
    def suspect(self) -> bool:
        return self.crashes > 0 and (self.crashes + 1 >= MAX_CRASHES or self.attempts + 1 >= self.maximum)


class Verbs(RuleBasedStateMachine):
    """The verbs against the model, in one transaction that is rolled back at the end."""

    granted = Bundle("granted")

    def __init__(self) -> None:
        super().__init__()
        self.transaction = transaction.atomic()
        self.transaction.__enter__()
        self.queue, self.type = queue_id(), type_id()
        self.jobs: dict[UUID, Model] = {}
        self.keys: dict[tuple[str, str], UUID] = {}
        self.turns = 0

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.transaction.__exit__(None, None, None)

    def make_ready(self, model: Model) -> None:
        self.turns += 1
        model.status, model.turn = Status.READY, self.turns

    # -------------------------------------------------------------- enqueue

    @initialize(tenant=st.sampled_from(TENANTS), attempts=st.integers(1, 3), key=st.sampled_from([None, "k"]))
    def there_is_a_job(self, tenant, attempts, key):
        self.enqueue_one(tenant, attempts, key, later=False, deadline=False)

    @rule(
        tenant=st.sampled_from(TENANTS),
        attempts=st.integers(1, 3),
        key=st.sampled_from([None, "k"]),
        later=st.booleans(),
        deadline=st.booleans(),
    )
    def enqueue(self, tenant, attempts, key, later, deadline):
        self.enqueue_one(tenant, attempts, key, later=later, deadline=deadline)

    def enqueue_one(
        self, tenant: str, attempts: int, key: str | None, *, later: bool, deadline: bool
    ) -> None:
        holder = self.jobs.get(self.keys.get((tenant, key))) if key else None
        held = holder is not None and holder.status <= Status.COMPLETED
        if not held and sum(model.tenant == tenant for model in self.jobs.values()) >= JOBS_PER_TENANT:
            return
        row = {"job_type": TYPE, "max_attempts": attempts, "idempotency_key": key}
        row |= {"delay_seconds": 3600} if later else {}
        row |= {"deadline_seconds": 12 * 3600} if deadline else {}

        with tenant_context(tenant):
            (answer,) = enqueue_rows([row])

        if held:
            same = holder.declared == attempts
            expected = ("existing" if same else "idempotency_conflict", holder.job_id)
            assert (answer.outcome, answer.job_id) == expected
            return
        assert answer.outcome == "created"
        model = Model(
            answer.job_id, tenant, attempts, attempts, key, timedelta(hours=12) if deadline else None
        )
        self.jobs[answer.job_id] = model
        if key:
            self.keys[tenant, key] = answer.job_id
        if later:
            model.status = Status.SCHEDULED
        else:
            self.make_ready(model)

    # -------------------------------------------------------------- claim

    def claim_like_the_model(self, limit: int, idle: int, suspects: int, worker: UUID) -> list[Lease]:
        ready = [
            model
            for model in sorted(self.jobs.values(), key=lambda each: each.turn)
            if model.status == Status.READY
            and not model.too_late(NOW)
            and not (model.suspect and suspects == 0)
        ][:limit]
        beyond = [model for model in ready if model.suspect][suspects:]
        chosen = [
            model
            for place, model in enumerate(ready, 1)
            if (place <= idle or not model.fragile) and model not in beyond
        ]

        leases = claim(
            self.queue,
            limit=limit,
            idle=idle,
            quick=[self.type],
            worker_id=worker,
            lease=LEASE,
            ageing=AGEING,
            max_crashes=MAX_CRASHES,
            suspects=suspects,
        )

        assert [lease.job_id for lease in leases] == [model.job_id for model in chosen]
        for model, lease in zip(chosen, leases, strict=True):
            model.status, model.worker = Status.RUNNING, worker
            model.attempts += 1
            model.token += 1
            assert (lease.lease_token, lease.attempt_count) == (model.token, model.attempts)
            assert model.attempts <= model.maximum
        return leases

    @rule(
        target=granted,
        limit=st.integers(1, 4),
        idle=st.integers(0, 4),
        suspects=st.integers(0, 2),
        worker=st.sampled_from([WORKER, OTHER_WORKER]),
    )
    def claim(self, limit, idle, suspects, worker):
        return multiple(*self.claim_like_the_model(limit, idle, suspects, worker))

    # -------------------------------------------------------------- whoever holds, or held, a lease

    @rule(lease=granted, how=ENDS)
    def settle(self, lease, how):
        self.settle_one(lease, how)

    def settle_one(self, lease: Lease, how: dict[str, Any]) -> None:
        model = self.jobs[lease.job_id]
        held = model.holds(lease)
        outcome = ended(lease, **how)

        decisions = settle([outcome])

        assert [decision.job_id for decision in decisions] == ([lease.job_id] if held else [])
        if held:
            model.settle(outcome)
            assert decisions[0].status == model.status

    @rule(leases=st.lists(granted, min_size=2, max_size=4), how=ENDS)
    def settle_a_batch_with_stale_and_double_outcomes(self, leases, how):
        held = {lease.job_id: lease for lease in leases if self.jobs[lease.job_id].holds(lease)}

        decisions = settle([ended(lease, **how) for lease in leases])

        assert {decision.job_id for decision in decisions} == set(held)
        for lease in held.values():
            self.jobs[lease.job_id].settle(ended(lease, **how))

    @rule(lease=granted)
    def heartbeat(self, lease):
        self.beat(lease)

    def beat(self, lease: Lease) -> None:
        model = self.jobs[lease.job_id]
        kept = model.holds(lease) and not model.lease_ran_out

        (answer,) = heartbeat([lease], lease=timedelta(minutes=5))

        assert answer.kept == kept
        assert answer.cancel == (kept and model.asked_to_cancel)

    @rule(lease=granted, delay=st.sampled_from([None, NOW, A_DAY]))
    def release(self, lease, delay):
        self.hand_back(lease, delay)

    def hand_back(self, lease: Lease, delay: timedelta | None) -> None:
        model = self.jobs[lease.job_id]
        handed_back = model.holds(lease) and not model.asked_to_cancel

        released = release([(lease, delay)], code="drain")

        assert [decision.job_id for decision in released] == ([lease.job_id] if handed_back else [])
        if handed_back:
            model.maximum += 1
            model.end_attempt(AttemptState.RELEASED, Status.SCHEDULED)
            if delay is None:
                self.make_ready(model)

    # -------------------------------------------------------------- time passes

    def running(self) -> list[Model]:
        return [model for model in self.jobs.values() if model.status == Status.RUNNING]

    @rule(data=st.data())
    @precondition(lambda self: self.running())
    def a_lease_runs_out(self, data):
        model = data.draw(st.sampled_from(self.running()), label="whose")
        age(model.job_id, only=["lease_expires_at"], hours=1)
        model.lease_ran_out = True

    @rule(worker_lives=st.booleans())
    def reap(self, worker_lives):
        self.take_back(worker_lives=worker_lives)

    def take_back(self, *, worker_lives: bool) -> None:
        for worker in (WORKER, OTHER_WORKER):
            alive(worker)
            if not worker_lives:
                age_worker(worker, hours=1)
        expired = [model for model in self.running() if model.lease_ran_out]

        taken = reap_all(max_crashes=MAX_CRASHES)

        assert {each.job_id for each in taken} == {model.job_id for model in expired}
        for model in expired:
            model.reap(worker_lives=worker_lives)
        assert {each.job_id: each.status for each in taken} == {
            model.job_id: model.status for model in expired
        }

    @rule()
    def what_is_scheduled_comes_due_and_is_promoted(self):
        self.promote_all()

    def promote_all(self) -> None:
        due = [model for model in self.jobs.values() if model.status == Status.SCHEDULED]
        if due:
            age(*(model.job_id for model in due), only=["available_at"], days=400)

        promoted = promote([self.queue], limit=10)

        assert promoted == ({self.queue: len(due)} if due else {})
        with scope_all():
            order = Job.objects.filter(pk__in=[model.job_id for model in due]).order_by("ready_at")
            for job in order:
                self.make_ready(self.jobs[job.pk])

    @rule(target=granted, lease=granted, worker=st.sampled_from([WORKER, OTHER_WORKER]), how=ENDS)
    def the_first_holder_reports_after_a_take_over(self, lease, worker, how):
        """The danger itself: the same job runs again, and its former attempt ends."""
        leases = self.take_over_by(lease, worker)
        self.settle_one(lease, how)
        self.hand_back(lease, None)
        self.beat(lease)
        return multiple(*leases)

    @rule(target=granted, lease=granted, worker=st.sampled_from([WORKER, OTHER_WORKER]))
    def take_over(self, lease, worker):
        return multiple(*self.take_over_by(lease, worker))

    def take_over_by(self, lease: Lease, worker: UUID) -> list[Lease]:
        """The lease runs out and a worker gets the job, unknown to the first."""
        model = self.jobs[lease.job_id]
        if not model.holds(lease):
            return []
        age(lease.job_id, only=["lease_expires_at"], hours=1)
        model.lease_ran_out = True
        self.take_back(worker_lives=True)
        self.promote_all()
        return self.claim_like_the_model(4, 4, 4, worker)

    @rule(data=st.data())
    @precondition(lambda self: any(model.deadline for model in self.jobs.values()))
    def a_deadline_passes(self, data):
        with_one = [model for model in self.jobs.values() if model.deadline]
        model = data.draw(st.sampled_from(with_one), label="whose")
        age(model.job_id, only=["deadline_at"], days=1)
        model.deadline -= A_DAY

    @rule()
    def expire(self):
        overdue = [
            model
            for model in self.jobs.values()
            if model.too_late(NOW) and model.status not in TERMINAL | {Status.RUNNING}
        ]

        over = expire(limit=10)

        assert {each.job_id for each in over} == {model.job_id for model in overdue}
        for model in overdue:
            model.go(Status.FAILED)

    # -------------------------------------------------------------- people

    @rule(data=st.data(), tenant=st.sampled_from(TENANTS))
    @precondition(lambda self: self.jobs)
    def cancel(self, data, tenant):
        self.cancel_one(self.jobs[data.draw(st.sampled_from(sorted(self.jobs)), label="which")], tenant)

    @rule(lease=granted, how=ENDS, worker_dies=st.booleans())
    def a_cancel_is_asked_for_while_the_handler_runs(self, lease, how, worker_dies):
        """The danger itself: whatever happens next, the job ends cancelled and is handed on to nobody."""
        model = self.jobs[lease.job_id]
        if not model.holds(lease):
            return
        self.cancel_one(model, model.tenant)
        self.beat(lease)
        self.hand_back(lease, None)
        if worker_dies:
            age(lease.job_id, only=["lease_expires_at"], hours=1)
            model.lease_ran_out = True
            self.beat(lease)
            self.take_back(worker_lives=False)
        self.settle_one(lease, how)

    def cancel_one(self, model: Model, tenant: str) -> None:
        before = model.status
        with tenant_context(tenant):
            answers = cancel_many([model.job_id])

        if tenant != model.tenant:
            assert answers == []
        elif before in TERMINAL:
            assert answers[0].outcome == "unchanged"
        elif before == Status.RUNNING:
            assert answers[0].outcome == "requested"
            model.asked_to_cancel = True
        else:
            assert answers[0].outcome == "cancelled"
            model.go(Status.CANCELLED)

    @rule(data=st.data(), tenant=st.sampled_from(TENANTS), attempts=st.sampled_from([1, None]))
    @precondition(lambda self: self.jobs)
    def retry(self, data, tenant, attempts):
        chosen = data.draw(
            st.lists(st.sampled_from(sorted(self.jobs)), min_size=1, unique=True), label="which"
        )
        with tenant_context(tenant):
            answers = {answer.job_id: answer.outcome for answer in retry_many(chosen, attempts=attempts)}

        models = [self.jobs[job_id] for job_id in chosen if self.jobs[job_id].tenant == tenant]
        assert set(answers) == {model.job_id for model in models}
        wanting = [model for model in models if model.status in RETRYABLE]
        may: dict[str | UUID, Model] = {}
        for model in sorted(wanting, key=lambda each: each.job_id):
            holder = self.jobs[self.keys[tenant, model.key]] if model.key else None
            if holder is None or holder is model:
                may[model.key or model.job_id] = model
            elif holder.status > Status.COMPLETED and may.get(model.key) is not holder:
                may[model.key] = model
        # The jobs are ready in the order of their ids.
        for model in sorted(models, key=lambda each: each.job_id):
            if model in may.values():
                assert answers[model.job_id] == "retried"
                granted = model.declared if attempts is None else attempts
                model.maximum = max(model.maximum, model.attempts + granted)
                model.asked_to_cancel, model.deadline = False, None
                self.make_ready(model)
                if model.key:
                    self.keys[tenant, model.key] = model.job_id
            else:
                expected = "key_held_by_newer_job" if model in wanting else "unchanged"
                assert answers[model.job_id] == expected

    # -------------------------------------------------------------- what always holds

    @invariant()
    def every_row_is_what_the_model_says(self):
        """And each ended attempt has one execution, and each end one event."""
        with scope_all(), connection.cursor() as cursor:
            cursor.execute(EVERYTHING)
            rows = {job_id: row for job_id, *row in cursor.fetchall()}
        assert rows == {
            job_id: [
                model.status, model.attempts, model.maximum, model.crashes, model.token, model.worker,
                model.asked_to_cancel, model.status in TERMINAL,
                [number for number, _ in model.history], [state for _, state in model.history], model.ends,
            ]
            for job_id, model in self.jobs.items()
        }  # fmt: skip
        assert all(model.attempts <= model.maximum for model in self.jobs.values())

    @invariant()
    def a_tenant_sees_its_own_rows_and_no_others(self):
        tenant = TENANTS[self.turns % 2]
        with tenant_context(tenant), connection.cursor() as cursor:
            cursor.execute(VISIBLE)
            seen = [set(ids) for ids in cursor.fetchone()]
        own = {model.job_id for model in self.jobs.values() if model.tenant == tenant}
        assert seen[0] == seen[1] == own
        assert set().union(*seen) == own

    @invariant()
    def no_two_live_jobs_share_a_key(self):
        live = [
            (model.tenant, model.key)
            for model in self.jobs.values()
            if model.key and model.status not in RETRYABLE
        ]
        assert len(live) == len(set(live))


def search(examples: int, **options: Any) -> None:
    """Look for an order of verbs that the model does not expect."""
    run_state_machine_as_test(
        Verbs,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            **options,
        ),
    )


@pytest.mark.django_db(transaction=True)
def test_any_order_of_verbs_is_what_the_model_says():
    search(EXAMPLES)


# The ones that are found soonest. The worker and the status of the fence are not here: as long as tokens only
# rise they say nothing more. What they are for, a claim that is lost in a crash, is staged in test_races.
BROKEN = {
    "settle without the token": ("settle", "and job.lease_token = outcome.lease_token", ""),
    "settle that forgets the cancel": ("settle", "when job.cancel_requested_at is not null", "when false"),
    "release of a job asked to cancel": ("release", "where job.cancel_requested_at is null", "where true"),
    "claim under the old token": ("claim", "lease_token = lease_token + 1", "lease_token = lease_token"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", BROKEN)
def test_the_search_finds_a_statement_that_is_broken_on_purpose(name, monkeypatch):
    """A property that misses the missing fence is decoration."""
    broken, whole, part = BROKEN[name]
    load = sql.load

    def load_broken(name: str) -> sql.Statement:
        statement = load(name)
        if name != broken:
            return statement
        assert whole in statement.text
        return dataclasses.replace(statement, text=statement.text.replace(whole, part))

    monkeypatch.setattr(sql, "load", load_broken)

    with pytest.raises((AssertionError, DatabaseError, BaseExceptionGroup)):
        search(600, phases=[Phase.generate], database=None, derandomize=True)

"""Staged: who waits for whom. Workers for nobody, passes for nobody; names, deadlocks, other levels of isolation."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError, connection, transaction

from pgbroker.lifecycle.add_edge import add_edge
from pgbroker.lifecycle.cancel import cancel_many
from pgbroker.lifecycle.heartbeat import heartbeat
from pgbroker.lifecycle.resolve import resolve
from pgbroker.lifecycle.retry import retry_many
from pgbroker.lifecycle.settle import settle
from pgbroker.lifecycle.unblock import unblock_many
from pgbroker.models import Job, JobDependency
from tests.support.held import (
    CLOSING,
    at_once,
    claim_apart,
    closing,
    held,
    outcome_of,
    passes_while_open,
    settling,
)
from tests.support.jobs import LEASE, completed, events, status
from tests.support.links import (
    BLOCKED,
    CANCELLED,
    COMPLETED,
    FAILED,
    READY,
    WAITING,
    add,
    ask,
    claim,
    count_all,
    end,
    job,
    left,
    levels,
    links,
    open_group,
    passes,
    run,
    seal,
    statuses,
    why,
)
from tests.support.plain import plain
from tests.support.sessions import PATIENCE_SECONDS, InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)


# ------------------------------------------------------------------ nobody waits who works

OPEN_WORK: dict[str, Callable[[dict[str, UUID]], object]] = {
    "enqueues a dependent": lambda ids: job(ids["parent"]),
    "enqueues dependents the short way": lambda ids: links(plain(depends_on=[str(ids["parent"])])),
    "waits for its group": lambda ids: job("g"),
    "adds a member to its group": lambda ids: links({"group": "g"}),
    "adds a member that waits for it": lambda ids: links({"group": "g", "depends_on": [str(ids["parent"])]}),
    "adds an edge to its dependent": lambda ids: add(ids["dependent"], ids["other"]),
    "cancels its dependent": lambda ids: cancel_many([ids["dependent"]]),
    "unblocks its dependent": lambda ids: unblock_many([ids["dependent"]]),
    "seals its group": lambda ids: seal(ids["group"]),
    "opens a group that waits for it": lambda ids: open_group("another", ids["parent"]),
    "asks for a late reference": lambda ids: add(ids["dependent"], {"group": "later", "within_seconds": 60}),
}


@pytest.mark.parametrize("what", OPEN_WORK)
def test_heartbeat_settle_and_claim_wait_for_nobody_who(what):
    group_id = open_group("g")
    (parent,) = (each.job_id for each in links({"group": "g"}))
    dependent, other, ready = job(parent), job(), job()
    ids = {"parent": parent, "dependent": dependent, "other": other, "group": group_id}
    (lease,) = claim(parent)

    with held(lambda: OPEN_WORK[what](ids)) as open_:
        assert at_once(lambda: heartbeat([lease], lease=LEASE)) is not None
        at_once(lambda: claim(ready))
        assert len(at_once(settling(lease))) == 1
        open_.commit()
    passes()

    expected = {"cancels its dependent": CANCELLED, "adds an edge to its dependent": WAITING}
    waits = {"asks for a late reference": WAITING}
    assert status(dependent) == {**expected, **waits}.get(what, READY)
    assert status(parent) == COMPLETED


def test_a_late_edge_that_makes_those_below_deeper_holds_up_nobody_who_works():
    parent, above, other, ready = job(), job(), job(), job()
    dependent = job(parent, above)
    (lease,) = claim(parent)

    with held(lambda: add(above, other)) as open_:
        assert at_once(lambda: heartbeat([lease], lease=LEASE)) is not None
        at_once(lambda: claim(ready))
        assert len(at_once(settling(lease))) == 1
        open_.commit()
    passes()

    assert (levels(above, dependent), status(dependent)) == ([1, 2], WAITING)
    run(other)
    run(above)
    assert (status(dependent), left()) == (READY, 0)


def test_a_late_edge_waits_for_nobody_who_holds_those_below():
    above, other = job(), job()
    dependent = job(above)

    with held(lambda: cancel_many([dependent])) as open_:
        assert at_once(lambda: add(above, other)) == 1
        open_.commit()

    assert (levels(above), status(dependent)) == ([1], CANCELLED)


# ------------------------------------------------------------------ passes


def test_two_passes_at_once_share_the_work_and_neither_waits():
    parents = [job(), job()]
    dependents = [links(*({"depends_on": [str(parent)]} for _ in range(600))) for parent in parents]
    end(*parents, status=COMPLETED)

    with held(lambda: resolve(limit=150)) as one:
        at_once(lambda: resolve(limit=150))
        one.commit()
    passes()

    ids = [answer.job_id for answers in dependents for answer in answers]
    assert set(statuses(*ids)) == {READY}
    assert left() == 0


def test_a_prerequisite_that_is_retried_while_a_pass_is_at_its_dependents_takes_them_back():
    made = chain_of_groups()
    with held(lambda: resolve(limit=500)) as pass_:
        retrying = InThread(lambda: retry_many([made["parent"]])).start()
        if not retrying.over:
            pass_.commit()
    retrying.result()
    passes()

    assert statuses(made["parent"], made["dependent"]) == [READY, WAITING]


def chain_of_groups() -> dict[str, UUID]:
    """A failed job, whose dependent a pass is about to cancel: somebody held it while the job was settled."""
    parent = job()
    dependent = job(parent)
    (lease,) = claim(parent)
    with held(lambda: add(dependent, {"group": "later", "within_seconds": 60})) as holder:
        at_once(settling(lease, FAILED))
        holder.roll_back()
    assert status(dependent) == WAITING
    with second_session() as session:
        session.execute("update pgbroker.unresolved set not_before = statement_timestamp()")
    return {"parent": parent, "dependent": dependent}


def test_a_pass_does_not_wait_for_a_retry_that_is_not_committed_and_comes_back_to_it():
    made = chain_of_groups()
    with held(lambda: retry_many([made["parent"]])) as retrying:
        passes_while_open()
        retrying.commit()
    passes()

    assert statuses(made["parent"], made["dependent"]) == [READY, WAITING]
    run(made["parent"])
    assert status(made["dependent"]) == READY


def test_a_dependent_that_somebody_holds_does_not_keep_the_others():
    parent = job()
    held_back, *others = (each.job_id for each in links(*({"depends_on": [str(parent)]} for _ in range(20))))
    (lease,) = claim(parent)

    with held(lambda: add(held_back, job())) as holder:
        at_once(settling(lease))
        assert set(statuses(*others)) == {READY}
        passes_while_open()
        assert left() == 1
        holder.roll_back()
    passes()

    assert status(held_back) == READY


HOLDING: dict[str, Callable[[UUID, UUID], object]] = {
    "cancels it": lambda parent, dependent: cancel_many([job(parent), dependent]),
    "reads it": lambda _, dependent: ask("select id from pgbroker.job where id = %s for share", dependent),
}


@pytest.mark.parametrize("what", HOLDING)
def test_prerequisites_of_a_dependent_leave_that_alone_to_a_pass_where_somebody(what):
    parents = [each.job_id for each in links(*({} for _ in range(20)))]
    dependent = job(*parents)
    leases = claim(*parents)

    with held(lambda: HOLDING[what](parents[0], dependent)) as holder:
        at_once(lambda: settle([completed(lease) for lease in leases]))
        assert left() == 1
        passes_while_open()
        assert left() == 1
        holder.roll_back()
    passes()

    assert (status(dependent), left()) == (READY, 0)


@pytest.mark.parametrize("policy", ["cancel", "ignore"])
def test_an_edge_that_somebody_holds_is_satisfied_later_and_the_others_at_once(policy):
    parents = [job(), job()]
    (answer,) = links({"depends_on": [str(each) for each in parents], "on_failure": policy})
    how = FAILED if policy == "ignore" else COMPLETED

    def hold() -> None:
        ask(
            "select id from pgbroker.job_dependency where prerequisite_id = %s for no key update",
            parents[0],
        )

    leases = claim_apart(*parents)
    with held(hold) as holder:
        for lease in leases:
            at_once(settling(lease, how))
        assert open_edges(answer.job_id) == [parents[0]]
        passes_while_open()
        assert status(answer.job_id) == WAITING
        holder.roll_back()
    passes()

    assert (status(answer.job_id), open_edges(answer.job_id), left()) == (READY, [], 0)


def open_edges(dependent: UUID) -> list[UUID]:
    """Return what a job waits for."""
    edges = JobDependency.objects.filter(dependent_id=dependent, satisfied_at=None)
    return list(edges.values_list("prerequisite_id", flat=True))


@pytest.mark.parametrize("commits", [True, False])
def test_one_whose_key_a_newer_job_is_taking_stays_as_it_is_whatever_else_completes(commits):
    parents = [job(), job()]
    dependent = job(*parents, idempotency_key="k")
    run(parents[0], how=FAILED)
    retry_many([parents[0]])

    with held(lambda: job(idempotency_key="k", priority=5)) as newer:
        passes_while_open()
        at_once(lambda: run(parents[1]))
        passes_while_open()
        assert status(dependent) == CANCELLED
        newer.commit() if commits else newer.roll_back()
    passes()

    assert status(dependent) == (CANCELLED if commits else WAITING)


def test_what_falls_stops_at_a_job_that_somebody_holds_and_goes_on_later():
    made = [job()]
    for _ in range(4):
        made.append(job(made[-1]))
    (lease,) = claim(made[0])

    with held(lambda: cancel_many([made[2]])) as holder:
        at_once(settling(lease, FAILED))
        passes_while_open()
        holder.roll_back()
    passes()

    assert statuses(*made) == [FAILED] + [CANCELLED] * 4
    assert {why(each) for each in made[1:]} == {("prerequisite_failed", made[0])}
    assert [events(each) for each in made[1:]] == [[CANCELLED]] * 4


@pytest.mark.parametrize("commits", [True, False])
def test_a_key_that_a_newer_job_is_just_taking_decides_once_that_is_over(commits):
    parent = job()
    dependent = job(parent, idempotency_key="k")
    run(parent, how=FAILED)
    retry_many([parent])

    with held(lambda: job(idempotency_key="k", priority=5)) as newer:
        passes_while_open()
        at_once(lambda: run(parent))
        passes_while_open()
        newer.commit() if commits else newer.roll_back()
    passes()

    assert status(dependent) == (CANCELLED if commits else READY)


# ------------------------------------------------------------------ names and deadlocks


@pytest.mark.parametrize("commits", [True, False])
def test_of_two_who_take_a_name_at_once_one_is_refused_and_leaves_nothing(commits):
    open_group("g")
    with held(lambda: links({"group": "g", "name": "one"})) as first:
        second = InThread(
            lambda: links(
                {"group": "g", "name": "one", "idempotency_key": "k", "tags": ["t"]}, {"group": "g"}
            )
        ).start()
        wait_until_blocked(second, first.thread)
        first.commit() if commits else first.roll_back()

    outcomes = [each.outcome for each in second.result()]
    assert outcomes == (["duplicate_job_name", "created"] if commits else ["created", "created"])
    counts = count_all()
    assert counts["job"] == counts["job_payload"] == 2
    assert counts["idempotency"] == counts["job_tag"] == (0 if commits else 1)


def test_what_waits_for_an_entry_whose_name_was_taken_a_moment_ago_is_refused_with_it():
    open_group("g")
    top = str(uuid4())
    with held(lambda: links({"group": "g", "name": "one"})) as first:
        second = InThread(
            lambda: outcome_of(
                lambda: [
                    each.outcome
                    for each in links({"id": top, "group": "g", "name": "one"}, {"depends_on": [top]})
                ]
            )
        ).start()
        wait_until_blocked(second, first.thread)
        first.commit()

    assert second.result() in ("prerequisite_refused", ["duplicate_job_name", "prerequisite_refused"])
    assert count_all()["job"] == count_all()["job_payload"] == 1


def test_a_deadlock_of_opposite_orders_is_repeated_and_nobody_hears_of_it():
    """Two calls take the same names the other way round; a third holds both up in the middle."""
    open_group("g")
    before = deadlocks_after(-1)

    def named(*names: str) -> list[str]:
        return [each.outcome for each in links(*({"group": "g", "name": name} for name in names))]

    with held(lambda: links({"group": "g", "name": "middle"})) as third:
        one = InThread(lambda: named("a", "middle", "z")).start()
        wait_until_blocked(one, third.thread)
        other = InThread(lambda: named("z", "a")).start()
        wait_until_blocked(other, one)
        third.roll_back()

    assert deadlocks_after(before) > before, "it was staged in vain"
    assert one.result().count("created") + other.result().count("created") == 3
    assert set(one.result() + other.result()) == {"created", "duplicate_job_name"}


def deadlocks_after(count: int) -> int:
    """Return how many deadlocks the server has counted; it tells a moment later than it knows."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = ask("select deadlocks from pg_stat_database where datname = current_database()")
        if found > count or time.monotonic() > until:
            return found
        time.sleep(0.05)


def test_two_transactions_that_add_edges_in_opposite_orders_do_not_deadlock():
    parents = sorted([job(), job()])
    leases = claim(*parents)

    with held(lambda: [job(parents[1]), job(parents[0])]) as one, held(lambda: [job(*parents)]) as other:
        settling_ = InThread(lambda: settle([completed(lease) for lease in leases])).start()
        one.commit()
        other.commit()
        settling_.result()

    assert set(statuses(*one.answer, *other.answer)) == {READY}


# ------------------------------------------------------------------ other levels of isolation


def at_level(level: str, work: Callable[[], object]) -> object:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"set transaction isolation level {level}")
            cursor.execute("select count(*) from pgbroker.job")
        return work()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_at_a_higher_level_an_edge_to_what_has_not_moved_is_made(level):
    parent, done = job(), job()
    run(done)

    dependent = at_level(level, lambda: job(parent, done))

    assert status(dependent) == WAITING
    run(parent)
    assert status(dependent) == READY


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_at_a_higher_level_a_target_that_ends_meanwhile_is_a_failed_serialisation(level):
    """Run the transaction again: nothing of it was stored."""
    parent = job()
    (lease,) = claim(parent)

    def add_while_it_ends() -> UUID:
        dependent = job(parent)
        at_once(settling(lease))
        return dependent

    with pytest.raises(OperationalError) as caught:
        at_level(level, add_while_it_ends)

    assert caught.value.__cause__.sqlstate == "40001"
    assert Job.objects.count() == 1
    assert status(at_level(level, lambda: job(parent))) == READY


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("what", CLOSING)
def test_at_a_higher_level_a_cycle_is_not_closed_with_what_is_not_seen(what, level):
    one, other = closing(what)

    def after_the_other() -> object:
        at_once(one)
        return other()

    code = outcome_of(lambda: at_level(level, after_the_other))

    assert code in ("40001", "cyclic_dependency")
    assert outcome_of(other) == "cyclic_dependency"


def test_an_edge_at_a_blocked_job_and_its_unblock_take_turns():
    parent, other = job(), job()
    dependent = job(parent, on_failure="block")
    run(parent, how=FAILED)
    assert status(dependent) == BLOCKED

    with held(lambda: add_edge(dependent, [str(other)])) as adder:
        unblocking = InThread(lambda: unblock_many([dependent])).start()
        wait_until_blocked(unblocking, adder.thread)
        adder.commit()

    assert unblocking.result()[0].status == WAITING
    run(other)
    assert status(dependent) == READY

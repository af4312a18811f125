"""A schedule that is deleted creates nothing more; what it has created goes on, and what code declares stays."""

from __future__ import annotations

from uuid import uuid4

import pytest

from pgbroker import schedule
from pgbroker.errors import ScheduleDeclared, ScheduleNotFound
from pgbroker.models import Schedule
from pgbroker.registry import synchronise
from pgbroker.schedules import operate
from pgbroker.schedules.declare import declarations
from pgbroker.schedules.remove import delete
from pgbroker.schedules.sync import GONE, sync
from pgbroker.schedules.tick import tick
from pgbroker.states import Status
from pgbroker.tenancy import scope_all, tenant_context
from tests.support.handlers import nothing
from tests.support.schedules import entry, jobs, make, minute, row, runs, set_row, states, tick_all
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh(monkeypatch, db) -> None:
    monkeypatch.setattr(declarations, "_known", {})
    synchronise(using="default")


def declare(name: str = "nightly") -> operate.ScheduleLine:
    schedule(name, nothing, cron="0 2 * * *", timezone="UTC")
    sync(using="default")
    return operate.get_schedule(name)


def test_what_a_deleted_schedule_created_goes_on_and_its_history_stays():
    made = make(jobs=[entry()])
    tick_all()
    (job,) = jobs()

    gone = delete("nightly")

    assert gone.id == made.id
    assert not Schedule.objects.filter(pk=made.pk).exists()
    (left,) = jobs()
    assert (left.id, left.status) == (job.id, Status.READY)
    assert states(made) == ["created"]


def test_a_tick_that_is_due_or_waits_dies_with_its_schedule():
    waiting = make("waiting", overlap="buffer_one")
    tick_all()
    set_row(waiting, buffered_for=minute())
    make("due")

    delete("waiting")
    delete("due")
    tick_all()

    assert len(jobs()) == 1
    assert Schedule.objects.count() == 0


def test_one_of_the_same_name_begins_anew():
    former = make()
    tick_all()
    delete("nightly")

    again = make()
    tick_all()

    assert again.pk != former.pk
    assert (states(former), states(again)) == (["created"], ["created"])


def test_what_the_code_declares_is_not_deleted_until_it_is_gone_from_there():
    line = declare()

    with pytest.raises(ScheduleDeclared, match="Remove it from the code first") as caught:
        delete("nightly")
    assert caught.value.code == "schedule_declared"
    assert operate.get_schedule("nightly").id == line.id

    declarations.forget("nightly")
    delete("nightly")
    sync(using="default")

    assert operate.list_schedules() == []


def test_what_another_projects_code_declares_is_not_deleted_until_it_is_gone_from_there():
    line = declare()
    declarations.forget("nightly")
    set_row(line.id, declared_by="warehouse")

    with pytest.raises(ScheduleDeclared, match="project 'warehouse'"):
        delete("nightly")

    operate.disable("nightly", reason="by hand")
    with pytest.raises(ScheduleDeclared):
        delete("nightly")
    set_row(line.id, disabled_reason=GONE)
    delete("nightly")
    assert operate.list_schedules() == []


def test_b137_another_tenants_schedule_is_not_deleted_by_name_or_by_id():
    with tenant_context("acme"):
        other = make()

    for key in ("nightly", other.pk, uuid4()):
        with pytest.raises(ScheduleNotFound):
            delete(key)
    assert row(other).name == "nightly"
    with scope_all():
        delete(other.pk)
    with pytest.raises(Schedule.DoesNotExist):
        row(other)


@pytest.mark.django_db(transaction=True)
def test_what_is_declared_while_a_delete_waits_is_not_deleted():
    made = make()
    with second_session() as other, other.transaction():
        other.execute("set local pgbroker.scope = 'all'")
        other.execute("update pgbroker.schedule set declared = true, declared_by = 'warehouse'")
        deleting = InThread(lambda: delete(made.pk))
        deleting.start()
        wait_until_blocked(deleting, other)

    with pytest.raises(ScheduleDeclared):
        deleting.result()
    assert row(made).declared


@pytest.mark.django_db(transaction=True)
def test_a_delete_waits_for_the_pass_that_holds_the_schedule_and_a_pass_after_it_does_nothing():
    made = make()
    with second_session() as passing, passing.transaction():
        passing.execute("set local pgbroker.scope = 'all'")
        passing.execute("select from pgbroker.schedule where id = %s for no key update", [made.pk])
        deleting = InThread(lambda: delete(made.pk))
        deleting.start()
        wait_until_blocked(deleting, passing)
    deleting.result()

    assert tick().seen == 0
    assert (jobs(), runs(made)) == ([], [])

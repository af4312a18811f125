"""lead and resign: one holder at a time by the database's clock, and an epoch that rises with each reign."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction

from pgbroker.lifecycle.resign import resign
from pgbroker.models import Leader
from pgbroker.reports import list_leaders
from tests.support.leaders import ADA, BEN, DUTY, LEASE, age_lease, ask, leader
from tests.support.sessions import InThread, second_session, wait_until_blocked

pytestmark = pytest.mark.django_db

TAKE = (
    "update pgbroker.leader set holder = %s, epoch = epoch + 1, "
    "expires_at = statement_timestamp() + interval '10 s' where duty = 'upkeep'"
)


def test_the_first_who_asks_leads_for_as_long_as_the_lease():
    answer = ask(ADA)

    assert (answer.leads, answer.epoch, answer.seconds) == (True, 1, LEASE.total_seconds())
    assert (leader().holder, leader().name) == (ADA, "candidate a1")


def test_a_renewal_begins_the_lease_anew_and_leaves_the_reign_as_it_was():
    ask(ADA)
    age_lease(6)
    before = leader()

    answer = ask(ADA)

    assert (answer.leads, answer.epoch, answer.seconds) == (True, 1, LEASE.total_seconds())
    assert leader().since == before.since
    assert leader().expires_at - before.expires_at >= timedelta(seconds=6)


def test_who_asks_for_somebody_elses_lease_hears_how_long_it_lasts():
    ask(ADA)
    age_lease(3)

    answer = ask(BEN)

    assert (answer.leads, answer.epoch) == (False, 1)
    assert 6 < answer.seconds <= 7
    assert leader().holder == ADA


def test_a_lease_that_has_run_out_goes_to_the_next_who_asks_and_the_epoch_rises():
    ask(ADA)
    age_lease(11)

    assert ask(BEN)[:2] == (True, 2)
    assert ask(ADA)[:2] == (False, 2)
    age_lease(11)
    assert ask(ADA)[:2] == (True, 3)


def test_a_holder_that_comes_back_too_late_begins_a_new_reign():
    """What it sent in the old one may still be under way: it must not pass for the new one's."""
    ask(ADA)
    age_lease(11)
    before = leader()

    assert ask(ADA)[:2] == (True, 2)
    assert leader().since > before.since


def test_duties_are_led_apart():
    assert ask(ADA)[:2] == (True, 1)
    assert ask(BEN, duty="another")[:2] == (True, 1)
    assert [each.duty for each in list_leaders(using="default")] == ["another", DUTY]


# ------------------------------------------------------------------ resign


def test_after_a_resignation_the_next_who_asks_leads_at_once():
    ask(ADA)

    assert resign(DUTY, holder=ADA, epoch=1)

    assert list_leaders(using="default")[0].leads is False
    assert ask(BEN)[:2] == (True, 2)


@pytest.mark.parametrize(("holder", "epoch"), [(BEN, 1), (ADA, 2)])
def test_nobody_resigns_for_another_or_for_another_reign(holder, epoch):
    ask(ADA)

    assert not resign(DUTY, holder=holder, epoch=epoch)

    assert ask(BEN)[:2] == (False, 1)


def test_who_resigns_after_the_lease_has_run_out_ends_nothing():
    ask(ADA)
    age_lease(11)

    assert not resign(DUTY, holder=ADA, epoch=1)


def test_an_epoch_never_comes_back():
    ask(ADA)
    age_lease(11)
    ask(BEN)

    for change in (
        "update pgbroker.leader set epoch = 1",
        "update pgbroker.leader set duty = 'another'",
        "delete from pgbroker.leader",
    ):
        with (
            pytest.raises(DatabaseError, match="only rises"),
            transaction.atomic(),
            connection.cursor() as sql,
        ):
            sql.execute(change)
    assert leader().epoch == 2


# ------------------------------------------------------------------ two sessions


@pytest.mark.django_db(transaction=True)
def test_who_waits_for_somebody_elses_lease_neither_writes_nor_waits_for_its_row():
    """Standbys are many: they must not disturb the leader, nor make garbage of its row."""
    ask(ADA)
    version = "select xmin::text, xmax::text, ctid::text from pgbroker.leader"
    with second_session() as other, other.transaction():
        before = other.execute(version).fetchone()
        other.execute("select from pgbroker.leader for update")
        assert InThread(lambda: ask(BEN)).start().result().leads is False
    with second_session() as other:
        after = other.execute(version).fetchone()

    # The lock that this test took is all that has changed.
    assert (after[0], after[2]) == (before[0], before[2])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_of_two_who_find_a_lease_free_the_second_waits_and_leads_only_if_the_first_does_not(end):
    ask(ADA)
    age_lease(11)
    with second_session() as other:
        other.execute("begin")
        other.execute(TAKE, [BEN])
        asking = InThread(lambda: ask(ADA)).start()
        wait_until_blocked(asking, other)
        other.execute(end)
        answer = asking.result()

    assert answer.leads == (end == "rollback")
    assert leader().holder == (BEN if end == "commit" else ADA)
    assert leader().epoch == 2


@pytest.mark.django_db(transaction=True)
def test_of_two_who_ask_first_of_all_one_leads():
    with second_session() as other:
        other.execute("begin")
        other.execute(
            "insert into pgbroker.leader values ('upkeep', %s, 'b', 1, statement_timestamp(), "
            "statement_timestamp() + interval '10 s')",
            [BEN],
        )
        asking = InThread(lambda: ask(ADA)).start()
        wait_until_blocked(asking, other)
        other.execute("commit")

        assert asking.result() is None
    assert leader().holder == BEN


@pytest.mark.django_db(transaction=True)
def test_a_renewal_that_waited_counts_from_when_it_was_sent():
    """The leader counts from there too: a lease that began later would end later than anybody is sure of."""
    ask(ADA)
    with second_session() as other:
        other.execute("begin")
        other.execute("select from pgbroker.leader for update")
        asking = InThread(lambda: ask(ADA)).start()
        wait_until_blocked(asking, other)
        other.execute("select pg_sleep(0.2)")
        (now,) = other.execute("select clock_timestamp()").fetchone()
        other.execute("commit")
        assert asking.result().leads

    assert Leader.objects.get().expires_at <= now + LEASE - timedelta(seconds=0.2)

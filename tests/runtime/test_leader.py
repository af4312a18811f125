"""A candidate for the lead: never two at one instant, whatever is stopped, late or lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from pgbroker import telemetry
from pgbroker.db import Session
from pgbroker.models import Leader as Row
from pgbroker.runtime.leader import PAGE_SHARE, Leader
from tests.support.crash import fault
from tests.support.jobs import guards_off
from tests.support.leaders import ADA, BEN, DUTY, age_lease, ask, leader
from tests.support.sessions import second_session

pytestmark = pytest.mark.django_db(transaction=True)

SECONDS = 10.0


def candidate(holder: UUID = ADA, session: Session | None = None) -> Leader:
    session = session or Session("default", purpose="upkeep")
    return Leader(DUTY, holder=holder, name="a", lease_seconds=SECONDS, session=session)


def pass_time(seconds: float, *candidates: Leader) -> None:
    """Let time pass: in the database for the lease, and for candidates by their own clocks."""
    age_lease(seconds)
    for each in candidates:
        each.ask_at -= seconds
        each._asked_at -= seconds


@pytest.fixture
def ada() -> Iterator[Leader]:
    ada = candidate()
    yield ada
    ada.session.drop()


@pytest.fixture
def told() -> Iterator[list[tuple[str, dict]]]:
    """What was told of leaders."""
    heard: list[tuple[str, dict]] = []
    unsubscribe = telemetry.subscribe(
        lambda event, keys: heard.append((event, keys)), wants=lambda event: event.startswith("leader.")
    )
    yield heard
    unsubscribe()


def test_a_candidate_leads_from_its_first_question_on_and_renews_when_it_is_time_to(ada, told):
    assert ada.keep()
    assert ada.leads

    expires_at = leader().expires_at
    assert not ada.keep()
    assert leader().expires_at == expires_at, "it asked again too soon"
    pass_time(SECONDS / 3, ada)
    assert not ada.keep()

    assert leader().expires_at > expires_at
    assert [event for event, _ in told] == ["leader.elected"]
    assert told[0][1]["epoch"] == 1


def test_a_standby_asks_again_when_the_lease_may_have_run_out_and_not_before(ada):
    ask(BEN)
    age_lease(4)

    ada.keep()

    assert not ada.leads
    assert 5.9 < ada.ask_at - time.monotonic() < 6 + 1 + 0.1


def test_the_time_to_lead_counts_from_when_the_renewal_was_sent(ada):
    """An answer that comes late says what was true when it was asked."""
    with fault(lambda moment, name: time.sleep(0.3)):
        ada.keep()

    assert ada._age >= 0.6


def test_a_leader_that_is_not_heard_stops_before_its_lease_ends(ada, told):
    ada.keep()

    pass_time(SECONDS * 0.75, ada)

    assert not ada.leads
    assert ada.reign is not None, "it may still be renewed"
    assert ada.keep() is False
    assert ada.leads
    assert [event for event, _ in told] == ["leader.elected"]


def test_a_leader_that_finds_another_in_its_place_says_so(ada, told):
    ada.keep()
    pass_time(SECONDS + 1, ada)
    ask(BEN)

    ada.keep()

    assert not ada.leads
    assert [(event, keys["epoch"]) for event, keys in told] == [("leader.elected", 1), ("leader.lost", 1)]


def test_a_leader_that_comes_back_before_anybody_else_begins_a_new_reign(ada, told):
    ada.keep()
    pass_time(SECONDS + 1, ada)

    assert ada.keep()

    assert ada.reign.epoch == leader().epoch == 2
    assert [event for event, _ in told] == ["leader.elected", "leader.lost", "leader.elected"]


def test_a_resigned_leader_leads_no_more_and_the_next_does_at_once(ada, told):
    ada.keep()

    ada.resign(using=ada.session)

    assert not ada.leads
    assert ask(BEN)[:2] == (True, 2)
    assert told[-1][0] == "leader.resigned"


class Candidates(RuleBasedStateMachine):
    """Any order of questions, late answers, stops and waits, by two candidates; whoever is not asked stands still."""

    both = st.integers(0, 1)
    # Around what decides: when to renew, when to begin nothing more, when the lease has ended.
    while_ = st.sampled_from([0.0, 1.0, 2.6, 4.0, 6.9, 7.6, 10.1])

    def __init__(self) -> None:
        super().__init__()
        with guards_off():
            Row.objects.all().delete()
        self.candidates = [
            candidate(holder, session) for holder, session in zip((ADA, BEN), SESSIONS, strict=True)
        ]

    @rule(number=both)
    def ask(self, number):
        self.candidates[number].ask_at = 0.0
        self.candidates[number].keep()

    @rule(number=both, there=while_, back=while_)
    def ask_over_a_slow_network(self, number, there, back):
        asking = self.candidates[number]
        others = [each for each in self.candidates if each is not asking]

        def late(moment, name):
            pass_time(there if moment == "before" else back, *others)

        asking.ask_at = 0.0
        with fault(late):
            asking.keep()
        # For the asker too so much time has passed, since the renewal was sent or, without one, since the last.
        asking._asked_at -= there + back

    @rule(number=both, seconds=while_)
    def fall_silent(self, number, seconds):
        """One leads and is not heard of for a while, then the other asks: where two could meet."""
        self.ask(number)
        self.wait(seconds)
        self.who_believes_to_lead_leads_for_as_long_as_a_page_may_take()
        self.ask(1 - number)

    @rule(seconds=while_)
    def wait(self, seconds):
        pass_time(seconds, *self.candidates)

    @rule(number=both)
    def resign(self, number):
        self.candidates[number].resign(using=self.candidates[number].session)

    @invariant()
    def who_believes_to_lead_leads_for_as_long_as_a_page_may_take(self):
        leading = [each for each in self.candidates if each.leads]
        assert len(leading) <= 1
        with connection.cursor() as cursor:
            cursor.execute(
                "select holder, epoch, extract(epoch from expires_at - statement_timestamp()) from pgbroker.leader"
            )
            rows = cursor.fetchall()
        for each in leading:
            ((holder, epoch, seconds),) = rows
            assert (holder, epoch) == (each.holder, each.reign.epoch)
            assert seconds >= PAGE_SHARE * SECONDS


SESSIONS: list[Session] = []


def test_no_two_candidates_lead_at_one_instant():
    SESSIONS[:] = [Session("default", purpose="upkeep") for _ in range(2)]
    try:
        run_state_machine_as_test(
            Candidates, settings=settings(max_examples=25, stateful_step_count=12, deadline=None)
        )
    finally:
        for session in SESSIONS:
            session.drop()


def test_a_row_that_somebody_holds_costs_a_moment_and_not_the_lead(ada):
    """An operator looks at the row in a transaction, say: the renewal gives up soon and comes again."""
    ada.session.limits = (("lock_timeout", "50ms"),)
    ada.keep()
    pass_time(SECONDS / 3, ada)
    with second_session() as other, other.transaction():
        other.execute("select from pgbroker.leader for update")
        began = time.monotonic()
        with pytest.raises(Exception, match="lock timeout"):
            ada.keep()
        assert time.monotonic() - began < 5
        assert ada.leads
        assert ada.ask_at - time.monotonic() <= 1.0
    ada.ask_at = 0.0
    ada.keep()

    assert ada.reign.epoch == 1
    assert Row.objects.get().expires_at - Row.objects.get().since > timedelta(seconds=SECONDS)

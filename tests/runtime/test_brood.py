"""Children that cannot be made: tried again, told, and given up in the end."""

from __future__ import annotations

import os
import selectors
import signal
import time

import pytest

from pgbroker.conf import Settings
from pgbroker.errors import ChildrenUnavailable
from pgbroker.runtime.executors.brood import MOST_FAILURES, Brood
from pgbroker.runtime.executors.child import Rules
from pgbroker.runtime.executors.endings import how_it_ended
from pgbroker.runtime.executors.nursery import Nursery
from tests.runtime.fleet import wait_until

RULES = Rules(settings=Settings(), alias="default", max_jobs=None, max_rss=None)


class Unreadable:
    """What a child dies of when it reads it."""

    def __reduce__(self):
        return os._exit, (3,)


@pytest.fixture
def brood(request, monkeypatch):
    monkeypatch.setattr("pgbroker.runtime.executors.brood.FIRST_WAIT", 0.001)
    selector = selectors.DefaultSelector()
    found = Brood(Nursery.early(), request.param, selector)
    yield found
    found.close()
    selector.close()


def turn(brood: Brood, wanted: int) -> None:
    brood.keep(wanted)
    for link, status in brood.ended():
        brood.bury(link, status)
    for link in brood.links():
        if not link.ready and list(link.hear()):
            brood.ready(link)


@pytest.mark.parametrize("brood", [Unreadable()], indirect=True)
def test_children_that_end_before_they_are_ready_are_given_up_in_the_end(brood: Brood):
    with pytest.raises(
        ChildrenUnavailable, match=f"{MOST_FAILURES} child processes in a row.*exited with code 3"
    ):
        wait_until(lambda: turn(brood, 1), "it gives up")

    assert not brood.has_been_ready


@pytest.mark.parametrize("brood", [RULES], indirect=True)
def test_a_nursery_that_does_not_answer_is_given_up_in_the_end(brood: Brood, monkeypatch):
    monkeypatch.setattr("pgbroker.runtime.executors.brood.BIRTH_SECONDS", 0.2)
    os.kill(brood._nursery.pid, signal.SIGSTOP)
    try:
        with pytest.raises(ChildrenUnavailable, match="No child process was made"):
            wait_until(lambda: turn(brood, 1), "it gives up")
    finally:
        os.kill(brood._nursery.pid, signal.SIGCONT)


@pytest.mark.parametrize("brood", [RULES], indirect=True)
def test_a_child_that_does_not_leave_when_it_was_asked_to_is_killed(brood: Brood, monkeypatch):
    monkeypatch.setattr("pgbroker.runtime.executors.brood.LEAVE_SECONDS", 0.2)
    wait_until(lambda: turn(brood, 1) or brood.idle, "it is ready")
    (link,) = brood.links()
    os.kill(link.pid, signal.SIGSTOP)

    brood.let_go(link)
    began = time.monotonic()
    wait_until(lambda: turn(brood, 0) or not brood.size, "it is gone")

    assert time.monotonic() - began > 0.15


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, "it exited with code 0"),
        (9 << 8, "it exited with code 9"),
        (11, "it was ended by signal 11 (SIGSEGV)"),
        (9, "it was ended by signal 9 (SIGKILL)"),
        (50, "it was ended by signal 50"),
        (None, "it ended; how is not known"),
    ],
)
def test_how_a_child_ended_is_said_in_words(status, said):
    assert how_it_ended(status) == said

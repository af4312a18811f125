"""What a worker and its children say to each other arrives as it was said, and nonsense is known as such."""

from __future__ import annotations

import json
import socket
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgbroker.errors import UndecodableArgument
from pgbroker.outcomes import Ended
from pgbroker.runtime.executors import wire
from pgbroker.runtime.executors.child_link import ChildLink
from pgbroker.states import AttemptState
from tests.runtime.test_parts import NOW, attempt

texts = st.none() | st.text(st.characters(codec=None), max_size=20)
seconds = st.floats(0, 1e8)


@given(
    state=st.sampled_from(AttemptState),
    ran=seconds,
    delay=st.none() | st.timedeltas(timedelta(0), timedelta(days=366)),
    flags=st.tuples(st.booleans(), st.booleans()),
    rest=st.tuples(*[texts] * 6),
    leaving=st.booleans(),
)
def test_an_outcome_arrives_as_it_was_said(state, ran, delay, flags, rest, leaving):
    told = attempt()
    told.started = told.claimed_at + 1.5
    ended = Ended(told.lease, state, NOW + timedelta(seconds=1.5), ran, delay, *flags, *rest)

    outcome = wire.read_outcome(wire.write_outcome(7, told, ended, leaving=leaving))

    assert (outcome.number, outcome.leaving) == (7, leaving)
    assert outcome.ended(told)._replace(started_at=ended.started_at) == ended
    assert abs(outcome.ended(told).started_at - ended.started_at) < timedelta(milliseconds=1)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
json_values = scalars | st.lists(scalars, max_size=16) | st.dictionaries(st.text(max_size=3), scalars)


@settings(max_examples=50)
@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_whatever_else_a_child_says_is_nonsense(body):
    with pytest.raises(wire.Nonsense):
        wire.read_outcome(body)


@settings(max_examples=50)
@given(
    rest=st.lists(scalars, max_size=10),
    numbers=st.tuples(*[st.integers() | st.floats() | st.booleans()] * 3),
    state=st.integers(-1, 11),
)
def test_an_outcome_that_is_read_can_be_settled(rest, numbers, state):
    number, started, ran = numbers
    body = json.dumps([number, False, started, state, ran, *rest]).encode()
    try:
        outcome = wire.read_outcome(body)
    except wire.Nonsense:
        return
    assert isinstance(outcome.ended(attempt()), Ended)


@given(bodies=st.lists(st.binary(max_size=50), max_size=6), cuts=st.lists(st.integers(1, 30), min_size=1))
def test_frames_are_put_together_wherever_the_stream_is_cut(bodies, cuts):
    stream = b"".join(map(wire.frame, bodies))
    frames, found = wire.Frames(), []
    while stream:
        cut = cuts[len(stream) % len(cuts)]
        found += frames.feed(stream[:cut])
        stream = stream[cut:]

    assert found == bodies


def test_a_frame_of_impossible_length_is_nonsense():
    with pytest.raises(wire.Nonsense):
        wire.Frames().feed(b"\xff\xff\xff\xff")


@pytest.fixture
def link():
    link = ChildLink()
    yield link
    link.close()


@pytest.mark.parametrize("size", [0, wire.INLINE - 100, 3 * wire.INLINE, 3_000_000])
def test_an_attempt_of_any_size_arrives_once_at_the_child_or_back_at_the_worker(link, size):
    told = attempt(stored_args={"v": 1, "args": ["x" * size], "kwargs": {}})
    body = wire.write_assignment(wire.Assignment.of(told, "mail", 0.0))
    for _ in range(3):
        assert link.give(told, body)

    number, received = wire.receive_attempt(link.far_attempts)
    taken = [link.take_back(), link.take_back(), link.take_back()]

    assert number == 1
    read = wire.read_assignment(received)
    assert (read.lease, read.queue, read.job_type, read.stop) == (told.lease, "mail", told.job_type.key, None)
    assert taken == [told, told, None]
    assert [number for number, _ in link.queue] == [1]


def test_a_child_that_reads_nothing_is_given_no_more_than_its_socket_holds(link):
    told = attempt(stored_args={"v": 1, "args": ["x" * wire.INLINE], "kwargs": {}}, options=None)
    body = wire.write_assignment(wire.Assignment.of(told, None, 0.0))
    given = 0
    while link.give(told, body):
        given += 1

    assert 16 < given < 10_000
    assert len(link.queue) == given


def test_after_the_last_attempt_the_child_hears_that_there_is_none(link):
    told = attempt()
    link.give(told, wire.write_assignment(wire.Assignment.of(told, None, 0.0)))
    link.let_go()

    assert wire.receive_attempt(link.far_attempts)[0] == 1
    assert wire.receive_attempt(link.far_attempts) is None


def test_arguments_that_cannot_be_copied_are_refused():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(UndecodableArgument, match="RecursionError"):
        wire.write_assignment(wire.Assignment.of(attempt(stored_args=deep), None, 0.0))


def test_descriptors_do_not_stay_open_when_an_attempt_is_taken_back(link):
    told = attempt(stored_args={"v": 1, "args": ["x" * 100_000], "kwargs": {}})
    body = wire.write_assignment(wire.Assignment.of(told, None, 0.0))

    with socket.socket() as before:
        lowest = before.fileno()
    for _ in range(20):
        link.give(told, body)
        link.take_back()
    with socket.socket() as after:
        assert after.fileno() == lowest

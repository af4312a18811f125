"""Any exception becomes bounded text that PostgreSQL stores (B021)."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgbroker.policy.error_text import bounded, describe_exception

LIMIT = 64 * 1024
FIFTY_MB = 50 * 1024 * 1024


def storable(text: str) -> bool:
    return "\x00" not in text and len(text.encode()) <= LIMIT  # encode() raises on a lone surrogate


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@given(text=st.text(st.characters(codec=None)) | st.text("é\x00\udc80a"), limit=st.integers(0, 60))
def test_b021_bounded_text_is_storable_and_within_the_limit(text, limit):
    cut = bounded(text, limit)

    assert len(cut.encode()) <= limit
    assert "\x00" not in cut


@given(text=st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])))
def test_text_within_the_limit_is_left_alone(text):
    assert bounded(text, len(text.encode())) == text


def test_b021_a_cut_ends_with_a_marker_that_tells_the_size():
    assert bounded("x" * FIFTY_MB, 30) == "xxxxx… [cut, 52428800 bytes]"
    assert bounded("é" * 100, 40).endswith("… [cut, 200 bytes]")
    assert bounded("é" * FIFTY_MB, 60).endswith("… [cut, 52428800 characters]")


def test_nul_and_lone_surrogates_become_visible():
    assert bounded("a\x00b\udc80c", 100) == "a\\x00b\\udc80c"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise self.args[0]

    __repr__ = __str__


class Lying(Exception):
    __cause__ = property(lambda self: 1 / 0)  # type: ignore[assignment]
    __notes__ = property(lambda self: 1 / 0)  # type: ignore[assignment]


class Unnamed(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise ValueError


class Nameless(Exception, metaclass=Unnamed):
    pass


def chain(length: int, *, explicit: bool) -> BaseException:
    error: BaseException = ValueError("first")
    for number in range(length):
        following = RuntimeError(f"number {number}")
        if explicit:
            following.__cause__ = error
        else:
            following.__context__ = error
        error = following
    return error


def circle() -> BaseException:
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    return one


def from_deep_recursion() -> BaseException:
    def deeper() -> None:
        deeper()

    try:
        deeper()
    except RecursionError as error:
        return error


MONSTERS: dict[str, Any] = {
    "str raises": lambda: Unprintable(ValueError("no")),
    "str exits": lambda: Unprintable(SystemExit(3)),
    "str is interrupted": lambda: Unprintable(KeyboardInterrupt()),
    "50 MB": lambda: ValueError("x" * FIFTY_MB),
    "50 MB, not ASCII": lambda: ValueError("é" * FIFTY_MB),
    "10 000 causes": lambda: chain(10_000, explicit=True),
    "10 000 contexts": lambda: chain(10_000, explicit=False),
    "circle": circle,
    "deep recursion": from_deep_recursion,
    "NUL and surrogates": lambda: ValueError("\x00\udc80" * 100_000),
    "exit": lambda: SystemExit("bye"),
    "group": lambda: ExceptionGroup("many", [ValueError(str(n)) for n in range(10_000)]),
    "lying attributes": Lying,
    "no module": Nameless,
    "no str": lambda: type("Bad", (Exception,), {"__str__": lambda self: 3})(),
    "local class": lambda: type("x" * 100_000, (Exception,), {})("m"),
}


@pytest.mark.parametrize("make", MONSTERS.values(), ids=MONSTERS)
def test_b021_any_exception_is_described_in_bounded_text_and_time(make):
    error = raised(make())

    began = time.process_time()
    described = describe_exception(error, limit_bytes=LIMIT)
    seconds = time.process_time() - began

    assert all(storable(text) for text in described)
    assert described.class_path
    assert described.traceback
    assert seconds < 1  # 50 ms are meant; the rest is for a busy machine


def test_b021_a_50_mb_message_ends_with_a_cut_marker():
    described = describe_exception(ValueError("x" * FIFTY_MB), limit_bytes=LIMIT)

    assert len(described.message.encode()) == LIMIT
    assert described.message.endswith("… [cut, 52428800 bytes]")


def test_the_class_the_message_and_the_raising_line_are_told():
    def fail() -> None:
        raise KeyError("missing")

    try:
        fail()
    except KeyError as error:
        error.add_note("seen by the caller")
        described = describe_exception(error)

    assert described.class_path == "builtins.KeyError"
    assert described.message == "'missing'"
    assert 'raise KeyError("missing")' in described.traceback
    assert described.traceback.endswith("KeyError: 'missing'\nseen by the caller\n")


def test_b021_a_long_chain_shows_its_end_and_its_first_cause():
    traceback = describe_exception(chain(10_000, explicit=True)).traceback

    assert traceback.startswith("ValueError: first\n")
    assert traceback.endswith("RuntimeError: number 9999\n")
    assert "direct cause" in traceback
    assert "causes left out" in traceback


def test_a_suppressed_context_is_not_shown():
    error = RuntimeError("outer")
    error.__context__ = ValueError("inner")
    shown = describe_exception(error).traceback
    error.__suppress_context__ = True

    hidden = describe_exception(error).traceback

    assert "inner" in shown
    assert "inner" not in hidden


def test_what_does_not_fit_is_dropped_from_the_front_of_a_traceback():
    error = ValueError("outer")
    error.__cause__ = ValueError("i" * 4000)

    traceback = describe_exception(error, limit_bytes=1024).traceback

    assert traceback.endswith("ValueError: outer\n")
    assert traceback.startswith("… [cut, 1 earlier parts]")

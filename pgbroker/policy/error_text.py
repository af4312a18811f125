"""
Turn any exception into text that PostgreSQL stores: short, printable, never raising. Pure.

A handler may raise anything: an exception whose `str` fails, one with a 50 MB message, or ten thousand
of them chained. What is read here is bounded before it is formatted, since the worker that describes a
failed attempt must go on to the next one.
"""

import linecache
from collections.abc import Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import NamedTuple

DEFAULT_LIMIT_BYTES = 64 * 1024

# Of a chain, the error that was raised and its nearest causes tell most, and then the very first one.
_OUTER_LINKS = 8
_INNER_LINKS = 2
_MOST_LINKS = 100_000
_OUTER_FRAMES = 10
_INNER_FRAMES = 30
_MOST_FRAMES = 100_000
_MOST_NOTES = 10
_MOST_MEMBERS = 10
_LINK_MESSAGE_BYTES = 2048
_CLASS_PATH_BYTES = 512
_LINE_BYTES = 512
# Encoding is the only way to count the bytes of text that is not ASCII; beyond this we count characters.
_COUNTABLE_CHARACTERS = 4 * 1024 * 1024

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


class Description(NamedTuple):
    """What is stored about an exception: all three parts are bounded and free of NUL and surrogates."""

    class_path: str
    message: str
    traceback: str


class _Link(NamedTuple):
    error: BaseException
    joined_by: str


def bounded(text: str, limit_bytes: int) -> str:
    """
    Return *text* in at most *limit_bytes* of UTF-8, as PostgreSQL can store it.

    A cut falls between characters and ends with a marker that tells the former size. NUL and lone
    surrogates become visible escapes (`\\x00`, `\\udc80`).
    """
    # One character takes a byte at least, so the rest of a huge text need not be looked at.
    encoded = _storable(text[: limit_bytes + 1]).encode()
    if len(text) <= limit_bytes and len(encoded) <= limit_bytes:
        return encoded.decode()
    marker = f"… [cut, {_size_of(text)}]"
    room = limit_bytes - len(marker.encode())
    if room < 0:
        return marker.encode()[:limit_bytes].decode(errors="ignore")
    return encoded[:room].decode(errors="ignore") + marker


def describe_exception(error: BaseException, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Description:
    """
    Return the class path, the message and the traceback text of *error*, each within *limit_bytes*.

    Never raises, whatever `__str__` does. Of long chains and deep stacks the middle is left out.
    """
    # Asked for once: `str` of a KeyError with 50 MB in it escapes all of them each time.
    message = _message(error)
    return Description(
        class_path=_class_path(error),
        message=bounded(message, limit_bytes),
        traceback=_within(list(_chain_text(error, message)), limit_bytes),
    )


def _storable(text: str) -> str:
    if "\x00" in text:
        text = text.replace("\x00", "\\x00")
    if text.isascii():
        return text
    return text.encode(errors="backslashreplace").decode()


def _size_of(text: str) -> str:
    if text.isascii():
        return f"{len(text)} bytes"
    if len(text) <= _COUNTABLE_CHARACTERS:
        return f"{len(text.encode(errors='surrogatepass'))} bytes"
    return f"{len(text)} characters"


def _class_path(error: BaseException) -> str:
    kind = type(error)
    try:
        path = f"{kind.__module__}.{kind.__qualname__}"
    except BaseException:
        path = "unknown"
    return bounded(path, _CLASS_PATH_BYTES)


def _message(error: BaseException) -> str:
    try:
        # A subclass of str may bring methods of its own; this makes a plain one of it.
        return str.__str__(str(error))
    except BaseException as failure:
        return f"<the message is not printable: str() raised {_class_path(failure)}>"


def _within(parts: list[str], limit_bytes: int) -> str:
    """
    Join *parts*, dropping from the front what does not fit: the error that was raised stands last.

    Only a last part that alone is too long is cut at its end.
    """
    kept: list[str] = []
    room = limit_bytes - _LINE_BYTES
    for part in reversed(parts):
        room -= len(part.encode())
        if room < 0 and kept:
            kept.append(f"… [cut, {len(parts) - len(kept)} earlier parts]\n")
            break
        kept.append(part)
    return bounded("".join(reversed(kept)), limit_bytes)


def _chain_text(error: BaseException, message: str) -> Iterator[str]:
    """Yield one text for each shown exception of the chain, the first cause first, as Python prints it."""
    chain = list(islice(_chain(error), _MOST_LINKS))
    left_out = len(chain) - _OUTER_LINKS - _INNER_LINKS
    shown = chain if left_out <= 0 else chain[:_OUTER_LINKS] + chain[-_INNER_LINKS:]
    for position in range(len(shown) - 1, -1, -1):
        link = shown[position]
        if left_out > 0 and position == _OUTER_LINKS - 1:
            yield f"\n… [{left_out} causes left out]\n"
        yield "".join(_link_text(link.error, _message(link.error) if position else message)) + link.joined_by


def _chain(error: BaseException) -> Iterator[_Link]:
    """Yield *error* and what led to it, nearest first; a loop in the chain ends it."""
    seen: set[int] = set()
    link: _Link | None = _Link(error, "")
    while link is not None and id(link.error) not in seen:
        seen.add(id(link.error))
        yield link
        link = _before(link.error)


def _before(error: BaseException) -> _Link | None:
    # Read through BaseException's own descriptors: a subclass may hide them behind a property.
    own = vars(BaseException)
    cause = own["__cause__"].__get__(error)
    if cause is not None:
        return _Link(cause, _CAUSED)
    context = own["__context__"].__get__(error)
    if context is not None and not own["__suppress_context__"].__get__(error):
        return _Link(context, _DURING)
    return None


def _link_text(error: BaseException, message: str) -> Iterator[str]:
    trace = vars(BaseException)["__traceback__"].__get__(error)
    if trace is not None:
        yield "Traceback (most recent call last):\n"
        yield from _frames_text(trace)
    yield _headline(error, message)
    yield from _notes_text(error)
    if isinstance(error, BaseExceptionGroup):
        yield from _members_text(error)


def _headline(error: BaseException, message: str) -> str:
    path = _class_path(error).removeprefix("builtins.")
    return f"{path}: {bounded(message, _LINK_MESSAGE_BYTES)}\n" if message else f"{path}\n"


def _frames_text(trace: TracebackType) -> Iterator[str]:
    frames = list(islice(_frames(trace), _MOST_FRAMES))
    left_out = len(frames) - _OUTER_FRAMES - _INNER_FRAMES
    if left_out <= 0:
        yield from map(_frame_text, frames)
        return
    yield from map(_frame_text, frames[:_OUTER_FRAMES])
    yield f"  … [{left_out} frames left out]\n"
    yield from map(_frame_text, frames[-_INNER_FRAMES:])


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _frame_text(trace: TracebackType) -> str:
    code = trace.tb_frame.f_code
    head = f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}'
    source = _source_line(trace)
    return bounded(head, _LINE_BYTES) + (f"\n    {bounded(source, _LINE_BYTES)}\n" if source else "\n")


def _source_line(trace: TracebackType) -> str:
    frame = trace.tb_frame
    try:
        return linecache.getline(frame.f_code.co_filename, trace.tb_lineno, frame.f_globals).strip()
    except BaseException:  # a loader of the handler's module may fail in any way
        return ""


def _notes_text(error: BaseException) -> Iterator[str]:
    try:
        given: Iterable[object] = error.__notes__
        notes = [str.__str__(note) for note in islice(given, _MOST_NOTES) if isinstance(note, str)]
    except BaseException:  # no notes, or anything else that was assigned to the name
        return
    for note in notes:
        yield bounded(note, _LINK_MESSAGE_BYTES) + "\n"


def _members_text(group: BaseExceptionGroup[BaseException]) -> Iterator[str]:
    members = vars(BaseExceptionGroup)["exceptions"].__get__(group)
    for number, member in enumerate(members[:_MOST_MEMBERS], 1):
        yield f"  {number}. {_headline(member, _message(member))}"
    if len(members) > _MOST_MEMBERS:
        yield f"  … [{len(members) - _MOST_MEMBERS} more]\n"

"""
Walk values that are JSON already, and say precisely why another one is not. Pure.

Every type is compared exactly: a subclass would come back as its base, which is a silent change.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

MAX_DEPTH = 64
# json refuses integers of more than 4300 digits, and reading one takes quadratic time.
MAX_INT_BITS = 13_000
# From here on `repr` writes an exponent, which PostgreSQL's numeric spells out as the digits of an integer.
_FIRST_EXPONENT = 1e16
_SHOWN_KEY = 60
_SHOWN_PATH = 300

_BY_ID = "Pass its id and load it in the handler."
_SHAPES = {
    ("django.db.models.base", "Model"): ("is a model instance", _BY_ID),
    ("django.db.models.query", "QuerySet"): ("is a queryset", "Pass the ids and query in the handler."),
    ("django.db.models.manager", "BaseManager"): ("is a manager", "Query in the handler."),
    ("django.http.request", "HttpRequest"): ("is a request", "Pass the values the handler needs."),
    ("django.core.files.base", "File"): ("is a file", "Store it and pass its name."),
    ("django.utils.functional", "LazyObject"): ("is a lazy object, such as request.user", _BY_ID),
    ("django.utils.functional", "Promise"): (
        "is a lazy translation string",
        "Pass str(value), or translate in the handler.",
    ),
}
_ANNOTATABLE = frozenset(
    {"tuple", "set", "frozenset", "bytes", "uuid.UUID", "decimal.Decimal"}
    | {f"datetime.{name}" for name in ("datetime", "date", "time", "timedelta")}
)
# What the classes of dataclasses, named tuples and enums have.
_RECORD_MARKS = ("__dataclass_fields__", "_fields", "__members__")


class Refused(Exception):
    """A value that cannot make the journey; containers add their step to the path as it passes them."""

    def __init__(self, trouble: str, cure: str, *, mismatch: bool = False) -> None:
        super().__init__(trouble, cure)
        self.trouble, self.cure, self.mismatch = trouble, cure, mismatch
        self.steps: list[str] = []

    def within(self, step: str) -> None:
        """Put *step* before the path that is known so far."""
        self.steps.append(step)

    @property
    def path(self) -> str:
        """Where the value stands, such as `order.lines[3].price`."""
        path = "".join(reversed(self.steps))
        return path if len(path) <= _SHOWN_PATH else path[:_SHOWN_PATH] + "…"


def refused_at(step: str, trouble: str, cure: str) -> Refused:
    """Make a refusal that already knows the last *step* of its path."""
    refused = Refused(trouble, cure)
    refused.within(step)
    return refused


class TooLarge(Exception):
    """The value takes more than the bytes allowed; found before all of it was written, so nobody knows its size."""


class Walk:
    """
    Bound one encoding: the depth, and the bytes that are left.

    Bytes are counted as the least a value can take. That stops a small object which refers to itself
    many times over, long before json would write gigabytes.
    """

    __slots__ = ("depth", "left", "limit")

    def __init__(self, limit_bytes: int) -> None:
        self.limit = self.left = limit_bytes
        self.depth = 0

    def take(self, size: int) -> None:
        """Count *size* bytes; raise `TooLarge` when none are left."""
        self.left -= size
        if self.left < 0:
            raise TooLarge

    def enter(self, length: int) -> None:
        """Go into a container of *length* items."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Refused(
                f"is nested deeper than {MAX_DEPTH} levels", "Flatten it, or store it and pass its id."
            )
        self.take(2 * length)

    def leave(self) -> None:
        """Come out of a container."""
        self.depth -= 1


def key_step(key: object) -> str:
    """Return the step of a path for a mapping's *key*."""
    if isinstance(key, str):
        return f"[{json.dumps(str.__str__(key)[:_SHOWN_KEY])}]"
    if type(key) is int and key.bit_length() < 64:
        return f"[{key}]"
    return f"[<{type_name(key)}>]"


def type_name(value: object) -> str:
    """Return the name of a value's type, with its module unless it is built in."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _known_shape(value: object) -> tuple[str, str] | None:
    # Recognised by the names of its bases: this module knows no Django, and touching an attribute of a
    # lazy object or a queryset would run a query.
    for base in type(value).__mro__:
        if shape := _SHAPES.get((base.__module__, base.__name__)):
            return shape
    if isinstance(value, type) or callable(value):
        return f"is a callable ({type_name(value)})", "Pass a name, and look it up in the handler."
    return None


def mismatch(value: object, wanted: str) -> Refused:
    """Make the refusal of a *value* where *wanted* (such as "an int") was declared."""
    if shape := _known_shape(value):
        return Refused(f"{shape[0]}, not {wanted}", shape[1], mismatch=True)
    return Refused(f"is of type {type_name(value)}, not {wanted}", f"Give {wanted}.", mismatch=True)


def not_plain(value: object) -> Refused:
    """Make the refusal of a *value* that JSON does not know, where no annotation tells how to write it."""
    if shape := _known_shape(value):
        return Refused(*shape)
    name = type_name(value)
    trouble = f"is of type {name}"
    if name in _ANNOTATABLE or any(hasattr(type(value), mark) for mark in _RECORD_MARKS):
        return Refused(
            trouble,
            f"Unsupported type in JSON: annotate the parameter as {name}, so that it comes back as one.",
        )
    for base in (bool, int, float, str, list, dict, tuple):
        if isinstance(value, base):
            return Refused(
                trouble,
                f"Unsupported type in JSON: annotate the parameter with its type, or pass {base.__name__}(value).",
            )
    return Refused(
        trouble,
        "Unsupported type in JSON: pass None, bool, int, float, str, list or dict, or annotate the parameter.",
    )


def write_text(value: str, walk: Walk) -> str:
    """Return *value*, a str, when PostgreSQL can store it."""
    walk.left -= len(value)
    if walk.left < 0:
        raise TooLarge
    if "\x00" in value:
        raise Refused("contains the NUL character, which PostgreSQL cannot store", "Remove U+0000.")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Refused(
                "contains a lone surrogate, which is not valid text",
                "Decode the bytes it came from correctly, or pass them as bytes.",
            ) from None
    return value


def write_int(value: int, walk: Walk) -> int:
    """Return *value*, an int, when json can write and read it."""
    bits = value.bit_length()
    if bits > 64:
        if bits > MAX_INT_BITS:
            raise Refused(f"is an integer of more than {MAX_INT_BITS} bits", "Pass it as str or bytes.")
        walk.take(bits // 4)
    return value


def finite(value: float) -> float:
    """Return *value*, a float, unless it is NaN or infinite."""
    if not math.isfinite(value):
        raise Refused(f"is {value!r}, which JSON does not have", "Pass None or a finite number.")
    return value


def write_stable_float(value: float) -> float:
    """Return *value*, a float, when it still is the same float after PostgreSQL has printed it as numeric."""
    finite(value)
    if not -_FIRST_EXPONENT < value < _FIRST_EXPONENT:
        raise Refused(f"is the float {value!r}, which jsonb turns into an integer", "Annotate it as float.")
    if value == 0.0 and math.copysign(1.0, value) < 0:
        raise Refused("is the float -0.0, whose sign jsonb drops", "Annotate it as float, or pass 0.0.")
    return value


def write_plain(value: Any, walk: Walk) -> Any:
    """Return a copy of *value* when it consists of JSON's own types only, each of them exactly."""
    kind = type(value)
    if kind is str:
        return write_text(value, walk)
    if kind is int:
        return write_int(value, walk)
    if value is None or kind is bool:
        return value
    if kind is float:
        return write_stable_float(value)
    if kind is list:
        return _write_list(value, walk)
    if kind is dict:
        return _write_dict(value, walk)
    raise not_plain(value)


def _write_list(value: list[Any], walk: Walk) -> list[Any]:
    walk.enter(len(value))
    written: list[Any] = []
    try:
        for item in value:
            written.append(write_plain(item, walk))  # noqa: PERF401 - its length is the index of a refusal
    except Refused as refused:
        refused.within(f"[{len(written)}]")
        raise
    walk.leave()
    return written


def _write_dict(value: dict[Any, Any], walk: Walk) -> dict[str, Any]:
    walk.enter(len(value))
    written: dict[str, Any] = {}
    key: Any = None
    try:
        for key, item in value.items():
            if type(key) is not str:
                raise Refused(
                    f"is a key of type {type_name(key)}, which JSON would turn into text",
                    "Use str keys, or annotate the parameter, such as dict[int, str].",
                )
            written[write_text(key, walk)] = write_plain(item, walk)
    except Refused as refused:
        refused.within(key_step(key))
        raise
    walk.leave()
    return written


def write_lenient(value: Any, walk: Walk) -> Any:
    """
    Return *value* as Django's task framework would: tuples as lists, bytes as text, keys as text.

    What PostgreSQL cannot store is still refused. Runs the value's own code where it is not of a
    built-in type, so it may raise anything.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return write_text(str.__str__(value), walk)
    if isinstance(value, int):
        return write_int(int.__int__(value), walk)
    if isinstance(value, float):
        return finite(float.__float__(value))
    if isinstance(value, bytes):
        return _text_of_bytes(value, walk)
    if isinstance(value, Mapping):
        return _write_lenient_mapping(value, walk)
    if isinstance(value, Sequence):
        return _write_lenient_sequence(value, walk)
    raise not_plain(value)


def _text_of_bytes(value: bytes, walk: Walk) -> str:
    walk.take(len(value))
    try:
        return write_text(value.decode(), walk)
    except UnicodeDecodeError:
        raise Refused("is bytes that are not UTF-8", "Annotate the parameter as bytes.") from None


def _write_lenient_sequence(value: Sequence[Any], walk: Walk) -> list[Any]:
    walk.enter(0)
    written: list[Any] = []
    try:
        for item in value:
            walk.take(2)
            written.append(write_lenient(item, walk))
    except Refused as refused:
        refused.within(f"[{len(written)}]")
        raise
    walk.leave()
    return written


def _write_lenient_mapping(value: Mapping[Any, Any], walk: Walk) -> dict[str, Any]:
    walk.enter(0)
    written: dict[str, Any] = {}
    key: Any = None
    try:
        for key, item in value.items():
            walk.take(2)
            text = write_text(_key_text(key), walk)
            if text in written:
                raise Refused("is the second key of that text", "Use str keys.")
            written[text] = write_lenient(item, walk)
    except Refused as refused:
        refused.within(key_step(key))
        raise
    walk.leave()
    return written


def _key_text(key: object) -> str:
    """Return the text json gives a key of another type than str."""
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, bytes):
        return key.decode(errors="surrogateescape")
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int):
        return int.__repr__(write_int(key, Walk(MAX_INT_BITS)))
    if isinstance(key, float):
        return float.__repr__(finite(key))
    raise Refused(f"is a key of type {type_name(key)}", "Use str keys.")
